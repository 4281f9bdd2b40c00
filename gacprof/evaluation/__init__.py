"""Is it still the same function, and is it faster: the two proofs of a changed checkpoint."""

from __future__ import annotations

from gacprof.evaluation.bench_result import BenchResult, Replicate, Timing
from gacprof.evaluation.benchmark import bench
from gacprof.evaluation.perplexity import Perplexity
from gacprof.evaluation.subject import distinct_names
from gacprof.evaluation.verification import Verification, verify

__all__ = [
    "BenchResult",
    "Perplexity",
    "Replicate",
    "Timing",
    "Verification",
    "bench",
    "distinct_names",
    "verify",
]
