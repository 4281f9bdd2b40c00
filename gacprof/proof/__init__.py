"""Is it still the same function, and is it faster: the two proofs of a changed checkpoint."""

from __future__ import annotations

from gacprof.proof.benchmark import BenchResult, Timing, bench
from gacprof.proof.perplexity import Perplexity
from gacprof.proof.subject import distinct_names
from gacprof.proof.verification import Verification, verify

__all__ = [
    "BenchResult",
    "Perplexity",
    "Timing",
    "Verification",
    "bench",
    "distinct_names",
    "verify",
]
