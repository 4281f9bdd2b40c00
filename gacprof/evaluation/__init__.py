"""A changed checkpoint evaluated: the same function? faster? how good?

Torch is imported when a verb is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gacprof.core.request import verb
from gacprof.evaluation.request import BenchRequest, EvaluateRequest, VerifyRequest

if TYPE_CHECKING:
    from gacprof.evaluation.evaluating import Quality
    from gacprof.evaluation.summary import BenchResult
    from gacprof.evaluation.verification import Verification


def _verify(request: VerifyRequest) -> Verification:
    """Run both models on the same inputs and compare their logits.

    Raises :class:`CheckpointError` for models that cannot be compared.
    """
    from gacprof.evaluation.verification import verify_models

    return verify_models(request)


def _bench(request: BenchRequest) -> BenchResult:
    """Prefill latency at every length of ``tokens``, decode latency after the shortest, as
    :class:`TimedModels` says.

    ``dtype`` defaults to the stored one (the widest of all models). The models are in memory
    together, the reference twice where there is room for it; on a CPU those given in memory are
    copied.

    Raises :class:`MeasurementError` for a device that is not there or too small,
    :class:`CheckpointError` for a model that cannot be loaded or has no positions for a length.
    """
    from gacprof.evaluation.benchmark import bench_models

    return bench_models(request)


def _evaluate(request: EvaluateRequest) -> Quality:
    """The perplexity of the file ``text`` under each model.

    ``dtype`` defaults to the stored one, the widest of all models. Raises
    :class:`CheckpointError` for a model or text that cannot be used, :class:`MeasurementError`
    for a device that is not there or too small.
    """
    from gacprof.evaluation.evaluating import evaluate_models

    return evaluate_models(request)


verify = verb("verify", VerifyRequest, _verify)
bench = verb("bench", BenchRequest, _bench)
evaluate = verb("evaluate", EvaluateRequest, _evaluate)

__all__ = ["BenchRequest", "EvaluateRequest", "VerifyRequest", "bench", "evaluate", "verify"]
