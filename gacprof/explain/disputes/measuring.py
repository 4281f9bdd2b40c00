"""The disputes' points, measured as any sweep's are: in blocks with A/A replicates, and kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gacprof.cliffmap.build import noise_of_blocks
from gacprof.cliffmap.detect import ASSUMED_FLOOR
from gacprof.core import Progress
from gacprof.core.errors import MeasurementError
from gacprof.core.points import Block, Point, Sample
from gacprof.devices.device import Device
from gacprof.explain.causes.value import Where
from gacprof.explain.disputes.run import DISPUTES, settle
from gacprof.explain.disputes.value import Verdict
from gacprof.sweeping import Suite, read_blocks, read_samples, run_sweep
from gacprof.sweeping.suite import Sweep


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

    Samples go to ``folder``; what it holds already is not measured again. Raises
    :class:`MeasurementError` for a number that no dispute has and for an unusable folder.
    """
    wanted = check(numbers)
    points = points_of(wanted)
    samples: list[Sample] = []
    blocks: list[Block] = []
    if points:
        run_sweep(suite_of(points), device, folder, resume=True, progress=progress)
        samples, blocks = read_samples(folder), read_blocks(folder)
    measured_floor = noise_of_blocks(blocks).floor
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
