"""Is it still the same function, and is it faster: the two proofs of a changed checkpoint."""

from __future__ import annotations

from gacprof.proof.bench_result import BenchResult, Replicate, Timing
from gacprof.proof.benchmark import bench
from gacprof.proof.perplexity import Perplexity
from gacprof.proof.subject import distinct_names
from gacprof.proof.verification import Verification, verify

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
