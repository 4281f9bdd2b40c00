"""A changed checkpoint evaluated: is it still the same function, and is it faster?"""

from __future__ import annotations

from gacprof.evaluation.benchmark import bench
from gacprof.evaluation.engines import bench_engine
from gacprof.evaluation.models import device_of, distinct_names
from gacprof.evaluation.summary import BenchResult, ModelTiming, Replicate
from gacprof.evaluation.verification import Perplexity, Verification, verify

__all__ = [
    "BenchResult",
    "ModelTiming",
    "Perplexity",
    "Replicate",
    "Verification",
    "bench",
    "bench_engine",
    "device_of",
    "distinct_names",
    "verify",
]
