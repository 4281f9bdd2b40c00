"""Real serving engines, each in a process of its own: are models faster where they are served?"""

from __future__ import annotations

from gacprof.extras.serve.engines.bench import bench_engine, greedy
from gacprof.extras.serve.engines.engine import ENGINES, Engine

__all__ = ["ENGINES", "Engine", "bench_engine", "greedy"]
