"""Real serving engines, each in a process of its own: are models faster where they are served?"""

from __future__ import annotations

from gacprof.evaluation.engines.bench import bench_engine, greedy
from gacprof.evaluation.engines.engine import ENGINES, Engine

__all__ = ["ENGINES", "Engine", "bench_engine", "greedy"]
