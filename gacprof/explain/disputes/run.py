"""All nine, run in one go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gacprof.core.errors import GacprofError
from gacprof.core.points import Point, Sample
from gacprof.explain.causes.value import Where
from gacprof.explain.disputes import attention, linear, sectors
from gacprof.explain.disputes.value import OPEN, UNDECIDED, Dispute, Results, Verdict

Measure = Callable[[Sequence[Point]], Sequence[Sample]]

DISPUTES: tuple[Dispute, ...] = tuple(
    sorted(
        (*attention.DISPUTES, *linear.DISPUTES, *sectors.DISPUTES),
        key=lambda dispute: dispute.number,
    )
)


def settle(
    measure: Measure | None = None,
    where: Where | None = None,
    floor: float = 0.02,
    numbers: Iterable[int] = (),
) -> list[Verdict]:
    """A verdict on each dispute (or on those of ``numbers``).

    ``measure`` takes points and gives samples, kernels recorded if it can; None where there is
    no GPU. ``floor`` is the relative difference that its noise can make. One dispute's failure
    does not stop the others: it is its verdict's finding.
    """
    wanted = set(numbers)
    return [
        _settle(dispute, measure, where or Where(), floor)
        for dispute in DISPUTES
        if not wanted or dispute.number in wanted
    ]


def _settle(dispute: Dispute, measure: Measure | None, where: Where, floor: float) -> Verdict:
    if measure is None or dispute.decide is None:
        return _without_measuring(dispute)
    try:
        results = Results(list(measure(dispute.points)), where, floor)
    except GacprofError as error:
        return Verdict(
            dispute.number, dispute.title, OPEN, f"not measured: {error}", needs=dispute.needs
        )
    status, finding, evidence = dispute.decide(results)
    if status == UNDECIDED and results.failures():
        if dispute.static is not None:
            return _without_measuring(dispute)
        evidence = (*evidence, *results.failures()[:3])
    needs = dispute.needs if status == UNDECIDED else ""
    return Verdict(dispute.number, dispute.title, status, finding, evidence, "measured", needs)


def _without_measuring(dispute: Dispute) -> Verdict:
    if dispute.static is not None:
        status, finding, evidence = dispute.static()
        basis = "static" if status != OPEN else ""
        needs = dispute.needs if status == OPEN else ""
        return Verdict(dispute.number, dispute.title, status, finding, evidence, basis, needs)
    finding = f"not settled: it takes {dispute.needs}"
    return Verdict(dispute.number, dispute.title, OPEN, finding, needs=dispute.needs)
