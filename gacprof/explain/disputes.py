"""What the literature disagrees about, and the experiments that settle it.

``settle(measure, where)`` runs them through any function that measures points, ``settle_on``
as a sweep on a device; without a device, ``settle()`` settles what can be settled without one
and says what the rest needs. The two papers are A, "Why Smaller Is Slower? Dimensional
Misalignment in Compressed LLMs" (arXiv 2604.09595), and B, its earlier draft "When Smaller Is
Slower: Dimensional Collapse in Compressed LLMs".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gacprof.cliffmap.build import noise_of_blocks
from gacprof.cliffmap.detect import ASSUMED_FLOOR
from gacprof.core import Progress
from gacprof.core.errors import GacprofError, MeasurementError
from gacprof.core.points import Point, Sample
from gacprof.devices.device import Device
from gacprof.explain.case import Where
from gacprof.explain.experiments import DISPUTES
from gacprof.explain.verdicts import OPEN, UNDECIDED, Dispute, Results, Verdict
from gacprof.sweeping import Suite, read_blocks, read_samples, run_sweep
from gacprof.sweeping.suite import Sweep

__all__ = ["DISPUTES", "Dispute", "Verdict", "settle", "settle_on"]

Measure = Callable[[Sequence[Point]], Sequence[Sample]]


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
    number, title, needs = dispute.number, dispute.title, dispute.needs
    if measure is None or dispute.decide is None:
        return _without_measuring(dispute)
    try:
        results = Results(list(measure(dispute.points)), where, floor)
    except GacprofError as error:
        return Verdict(number, title, OPEN, f"not measured: {error}", needs=needs)
    status, finding, evidence = dispute.decide(results)
    if status == UNDECIDED and results.failures():
        if dispute.static is not None:
            return _without_measuring(dispute)
        evidence = (*evidence, *results.failures()[:3])
    left = needs if status == UNDECIDED else ""
    return Verdict(number, title, status, finding, evidence, "measured", left)


def _without_measuring(dispute: Dispute) -> Verdict:
    number, title, needs = dispute.number, dispute.title, dispute.needs
    if dispute.static is None:
        return Verdict(number, title, OPEN, f"not settled: it takes {needs}", needs=needs)
    status, finding, evidence = dispute.static()
    if status == OPEN:
        return Verdict(number, title, status, finding, evidence, needs=needs)
    return Verdict(number, title, status, finding, evidence, "static")


@dataclass(frozen=True)
class Settled:
    """The verdicts, the noise floor that they rest on, and the folder of the samples."""

    verdicts: list[Verdict]
    floor: float
    folder: Path


def settle_on(
    device: Device, folder: Path, numbers: Iterable[int] = (), progress: Progress | None = None
) -> Settled:
    """Run the experiments of all disputes, or of those of ``numbers``, on a device.

    They are measured as any sweep is: in blocks with A/A replicates. Samples go to ``folder``;
    what it holds already is not measured again. Raises :class:`MeasurementError` for a number
    that no dispute has and for an unusable folder.
    """
    wanted = check(numbers)
    points = points_of(wanted)
    samples, measured_floor = [], None
    if points:
        run_sweep(suite_of(points), device, folder, resume=True, progress=progress)
        samples = read_samples(folder)
        measured_floor = noise_of_blocks(read_blocks(folder)).floor
    floor = ASSUMED_FLOOR if measured_floor is None else measured_floor

    def measured(asked: Sequence[Point]) -> list[Sample]:
        return [sample for sample in samples if sample.point in set(asked)]

    verdicts = settle(measured, Where.of(device.environment), floor, wanted)
    return Settled(verdicts, floor, folder)


def check(numbers: Iterable[int]) -> list[int]:
    """The numbers, each of a dispute; all of them for none."""
    known = [dispute.number for dispute in DISPUTES]
    asked = list(numbers)
    for number in asked:
        if number not in known:
            raise MeasurementError(f"there is no dispute {number}: they go from 1 to {known[-1]}")
    return asked or known


def points_of(numbers: Iterable[int]) -> list[Point]:
    wanted = set(numbers)
    points = (p for dispute in DISPUTES if dispute.number in wanted for p in dispute.points)
    return list(dict.fromkeys(points))


def suite_of(points: Sequence[Point]) -> Suite:
    """A suite of these points, those that differ in one dim on one curve: points of a block are
    compared best. The longest curves come first; a point is on one of them only."""
    left, sweeps = list(points), []
    while left:
        curves: dict[tuple[str, Point], list[Point]] = defaultdict(list)
        for point in left:
            for axis in point.dim:
                curves[axis, point.with_dim(axis, 1)].append(point)
        (axis, _), members = max(curves.items(), key=lambda item: len(item[1]))
        first = members[0]
        sweeps.append(
            Sweep(
                operator=first.operator,
                axis=axis,
                values=[*sorted(point.dim[axis] for point in members)],
                dims={name: size for name, size in first.dims if name != axis},
                dtype=first.dtype,
                flags=dict(first.flag),
            )
        )
        left = [point for point in left if point not in members]
    return Suite(name="disputes", sweep=sweeps)
