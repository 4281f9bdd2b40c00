"""A changed checkpoint evaluated: the same function? faster? how good?"""

from __future__ import annotations

from gacprof.evaluation.benchmark import bench
from gacprof.evaluation.comparison import Change
from gacprof.evaluation.evaluating import ModelQuality, Quality, evaluate
from gacprof.evaluation.models import device_of, distinct_names
from gacprof.evaluation.perplexity import Perplexity
from gacprof.evaluation.summary import BenchResult, ModelTiming, Replicate
from gacprof.evaluation.verification import Verification, verify

__all__ = [
    "BenchResult",
    "Change",
    "ModelQuality",
    "ModelTiming",
    "Perplexity",
    "Quality",
    "Replicate",
    "Verification",
    "bench",
    "device_of",
    "distinct_names",
    "evaluate",
    "verify",
]
