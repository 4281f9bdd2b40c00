"""The disputes' points, measured as any sweep's are: shuffled, doubled in disguise, kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gacprof.cliffmap.detect import ASSUMED_FLOOR
from gacprof.cliffmap.noise import aa_pairs, noise_floor
from gacprof.cliffmap.visits import Visits
from gacprof.errors import MeasurementError
from gacprof.explaining.causes.value import Where
from gacprof.explaining.disputes.run import DISPUTES, settle
from gacprof.explaining.disputes.value import Verdict
from gacprof.measure.device import Device
from gacprof.points import Point, Sample
from gacprof.sweeping import Suite, read_samples, run_sweep
from gacprof.sweeping.run import Progress
from gacprof.sweeping.suite import Sweep, Timing

PASSES = 3


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
    if points:
        run_sweep(suite_of(points), device, folder, resume=True, progress=progress)
        samples = read_samples(folder)
    floor = floor_of(samples)

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
    """A suite of single points. The axis is of no matter; the last dim is named."""
    sweeps = []
    for point in points:
        *others, (axis, size) = point.dims
        sweeps.append(
            Sweep(
                operator=point.operator,
                axis=axis,
                values=[size],
                dims=dict(others),
                dtype=point.dtype,
                flags=dict(point.flag),
            )
        )
    return Suite(name="disputes", timing=Timing(passes=PASSES), sweep=sweeps)


def floor_of(samples: Iterable[Sample]) -> float:
    """The 95 % quantile of what the hidden duplicates differ by; without any, what maps assume."""
    visits: dict[Point, Visits] = {}
    for sample in samples:
        visits.setdefault(sample.point, Visits()).add(sample, None)
    floor = noise_floor(aa_pairs(visits)).floor
    return ASSUMED_FLOOR if floor is None else floor
