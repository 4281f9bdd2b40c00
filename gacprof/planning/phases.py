"""What a plan comes to at each token count by itself, in products and in whole steps."""

from __future__ import annotations

from collections.abc import Iterator

from gacprof.checkpoint.inventory import Gemm, NewSizes
from gacprof.core.texts import workload_name
from gacprof.diagnosing.predict import Predictor
from gacprof.planning.problem import Problem
from gacprof.planning.schema import PhaseTimes, StepChange


def phase_times(problem: Problem, changes: NewSizes) -> list[PhaseTimes]:
    """Of every token count of the workload and of the limits, where the source knows times."""
    if not problem.predictor.source.timed:
        return []
    found = []
    for tokens, at in problem.phases.items():
        own, dense = (problem.references.products(at, of) for of in ("own", "dense"))
        planned = at.planned(changes)
        phase = PhaseTimes(
            workload=workload_name(tokens),
            tokens=tokens,
            before_us=at.gemms(own).latency_us,
            after_us=at.gemms(planned).latency_us,
            dense_us=at.gemms(dense).latency_us,
            steps=list(_steps(problem, at, own, dense, planned)),
        )
        found.append(phase)
    return found


def _steps(
    problem: Problem, at: Predictor, own: list[Gemm], dense: list[Gemm], planned: list[Gemm]
) -> Iterator[StepChange]:
    """Against the checkpoint as it is, unless it does not exist, and the uncompressed model."""
    whole, known = problem.whole, problem.references
    if whole is None:
        return
    uncompressed = known.dense or whole.inventory
    against = {problem.inventory.fingerprint: own} if known.given == "own" else {}
    if uncompressed.fingerprint not in against:
        against[uncompressed.fingerprint] = dense
    for fingerprint, products in against.items():
        change = whole.change(at, products, planned)
        if change is not None:
            yield StepChange(
                against=fingerprint, low=change.low, value=change.value, high=change.high
            )
