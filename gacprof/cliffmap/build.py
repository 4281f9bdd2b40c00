"""Blocks → cliff map: fit each curve, take the noise from hidden replicates, detect, judge."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import hypot, inf
from typing import NamedTuple

import numpy as np
from pydantic import ValidationError

from gacprof.cliffmap.curves import Axis, Measured, make_curve
from gacprof.cliffmap.judge import TOLERANCE
from gacprof.cliffmap.map import CliffMap
from gacprof.cliffmap.noise import (
    Column,
    CurveBlocks,
    checks,
    device_variance,
    levels_of,
    noise_of,
    units_of,
)
from gacprof.cliffmap.schema import (
    KIND,
    SCHEMA,
    Curve,
    Device,
    LonePoint,
    MapFile,
    Noise,
    Provenance,
)
from gacprof.core.errors import MapError
from gacprof.core.fit import block_row, contended, fit_blocks, log_matrix
from gacprof.core.points import LEVEL, Block, Call, Environment, Point, PointNote, Sample

MechanismOf = Callable[[Sample], str | None]


def mechanism_of_kernels(sample: Sample) -> str | None:
    """What served a point, by its kernels' names (:mod:`gacprof.kernels`): family,
    template, instruction, alignment, without tile and schedule. None where none was seen."""
    from gacprof.kernels import attach

    parts = []
    for group in attach(sample.kernels):
        padded = "padded " if any(kernel.role != "copy" for kernel in group.before) else ""
        parts.append(padded + group.main.mechanism + (" split-k" if group.main.split_k else ""))
    return " + ".join(dict.fromkeys(parts)) or None


def build_map(
    blocks: Iterable[Block],
    environment: Environment,
    *,
    name: str,
    point_notes: Mapping[Point, PointNote] | None = None,
    tolerance: float = TOLERANCE,
    suite: str = "",
    suite_hash: str = "",
    created: str | None = None,
    mechanism_of: MechanismOf = mechanism_of_kernels,
    unmeasured: Sequence[str] = (),
) -> CliffMap:
    """The cliff map of these blocks. ``unmeasured`` names curves that have none and should.

    Each curve has its own fit. Replicates count for their point's latency, and their differences
    from it give the noise floor; where they differ more than the errors explain, all errors are
    made larger. A point that failed is in its curves' coverage with the reason. A point alone on
    its axis is kept for look-ups.

    Raises :class:`MapError` where nothing was measured or a time is no positive number.
    """
    if not re.fullmatch(KIND, environment.kind):
        raise MapError(f"'{environment.kind}' is no kind of device, such as cuda, cpu, recorded")
    taken, timer, notes = _of_one_timer(list(blocks))
    about = point_notes or {}
    curves = _by_curve(taken)
    if not curves:
        reasons = Counter(note.failed for note in about.values() if note.failed)
        why = f" (most often: {reasons.most_common(1)[0][0]})" if reasons else ""
        raise MapError(
            f"nothing to build the map '{name}' from: no sample was measured{why}. "
            "Run the sweep again (gacprof sweep … --resume)"
        )
    fits = list(curves.values())
    moved = levels_of([b for b in taken if b.axis == LEVEL], fits)
    levels = dict(zip(curves, moved, strict=True))
    noise = noise_of(fits)
    failed = _failed_by_curve(about, curves)
    across = device_variance(fits) ** 0.5
    made: list[Curve] = []
    lone: dict[Point, LonePoint] = {}
    for key, curve in sorted(curves.items(), key=lambda item: str(item[0])):
        unseen = across if len(curve.devices) < 2 else 0.0
        measured = _measured(
            curve, key.axis, levels[key], noise.inflation, unseen, about, mechanism_of
        )
        if len(measured) < 2:
            for alone in (_lone(m, key, timer) for m in measured):
                lone.setdefault(
                    Point.of(alone.operator, alone.dims, alone.dtype, alone.flags), alone
                )
            continue
        what = Axis(key.operator, key.axis, dict(key.fixed), key.dtype, dict(key.flags), timer)
        try:
            made.append(make_curve(what, measured, failed.get(key, {}), tolerance))
        except ValidationError as error:
            fault = error.errors()[0]["msg"]
            raise MapError(f"{key.operator} {key.axis} ({what.fixed}): {fault}") from None
    on_curves = {curve.point(d) for curve in made for d in curve.points.d}
    file = MapFile(
        schema_=SCHEMA,
        name=name,
        device=Device(
            kind=environment.kind, name=environment.name, arch=environment.arch,
            facts=dict(environment.facts),
        ),
        provenance=Provenance(
            kind="measured",
            created=created or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            suite=suite, suite_hash=suite_hash, stack=dict(environment.stack), notes=notes,
        ),
        noise=noise,
        checks=checks(fits, moved),
        curves=made,
        lone=[alone for point, alone in lone.items() if point not in on_curves],
        unmeasured=list(unmeasured),
    )  # fmt: skip
    return CliffMap(file)


def noise_of_blocks(blocks: Iterable[Block]) -> Noise:
    """The A/A floor of these blocks, without a map. Raises :class:`MapError`."""
    taken, _, _ = _of_one_timer(list(blocks))
    return noise_of(list(_by_curve(taken).values()))


class _Key(NamedTuple):
    operator: str
    axis: str
    dtype: str
    flags: tuple
    fixed: tuple

    @classmethod
    def of(cls, point: Point, axis: str) -> _Key:
        fixed = tuple(item for item in point.dims if item[0] != axis)
        return cls(point.operator, axis, point.dtype, point.flags, fixed)


def _of_one_timer(blocks: list[Block]) -> tuple[list[Block], str, list[str]]:
    """The blocks of the timer that most of them were timed with, throttled ones left out."""
    held = [block for block in blocks if not block.throttled] or blocks
    counts = Counter(block.timer for block in held)
    if not counts:
        return [], "", []
    timer = max(counts, key=lambda name: (counts[name], name))
    notes = [
        f"{counts[other]} blocks were timed with '{other}' and left out: the map is of '{timer}'"
        for other in sorted(counts)
        if other != timer
    ]
    if len(held) < len(blocks):
        notes.append(f"{len(blocks) - len(held)} blocks ran throttled and were left out")
    return [block for block in held if block.timer == timer], timer, notes


def _by_curve(blocks: Iterable[Block]) -> dict[_Key, CurveBlocks]:
    found: dict[_Key, list[Block]] = defaultdict(list)
    for block in blocks:
        if block.calls and block.axis != LEVEL:
            found[_Key.of(block.calls[0].point, block.axis)].append(block)
    return {key: curve_blocks(of_curve) for key, of_curve in found.items()}


def curve_blocks(blocks: Sequence[Block]) -> CurveBlocks:
    """One curve's blocks as a matrix, and their fit.

    Raises :class:`MapError` for a time that is no positive number.
    """
    place: dict[Column, int] = {}
    rows = [
        block_row(
            (place.setdefault((call.point, call.replicate), len(place)), call.us, call.disturbed)
            for call in _checked(block)
        )
        for block in blocks
    ]
    matrix = log_matrix(rows, len(place))
    flags = [disturbed for row in rows for _, disturbed in row.values()]
    fit = fit_blocks(matrix, units_of(blocks))
    busy = contended(rows, len(place))
    return CurveBlocks(blocks, list(place), matrix, sum(flags) / len(flags), busy, fit)


def _checked(block: Block) -> Iterator[Call]:
    for call in block.calls:
        if not 0 < call.us < inf:
            raise MapError(
                f"a time of {call.point} (block {block.number}) is not a positive number; "
                "the samples are damaged: sweep this point again"
            )
        yield call


def _measured(
    curve: CurveBlocks,
    axis: str,
    levels: np.ndarray,
    inflation: float,
    across: float,
    notes: Mapping[Point, PointNote],
    mechanism_of: MechanismOf,
) -> list[Measured]:
    """Each point's latency: of its slot and its replicate, weighed by their errors, moved by
    ``levels`` (log, by slot). ``across`` is the error that other devices of the kind would add."""
    by_point: dict[Point, list[int]] = defaultdict(list)
    for column, (point, _) in enumerate(curve.slots):
        by_point[point].append(column)
    found = []
    for point, columns in by_point.items():
        effect, error = _pooled((curve.fit.effect + levels)[columns], curve.fit.error[columns])
        kernels = notes[point].kernels if point in notes else ()
        found.append(
            Measured(
                point.dim[axis],
                float(np.exp(effect)),
                inf if curve.contended else hypot(inflation * error, across),
                int(curve.fit.counts[columns].sum()),
                mechanism_of(Sample(point, (), (), "", kernels=kernels)),
                kernels,
            )
        )
    return found


def _pooled(effect: np.ndarray, error: np.ndarray) -> tuple[float, float]:
    """The mean weighed by 1/error², and its error; the plain mean where no error is known."""
    usable = np.isfinite(error) & (error > 0)
    if not usable.any():
        return float(np.mean(effect)), float(np.max(error))
    weight = 1 / error[usable] ** 2
    return float((weight * effect[usable]).sum() / weight.sum()), float(weight.sum() ** -0.5)


def _failed_by_curve(
    notes: Mapping[Point, PointNote], curves: Mapping[_Key, CurveBlocks]
) -> dict[_Key, dict[int, str]]:
    """Points without any time, by the curves that they would stand on."""
    measured = {key: {point for point, _ in curve.slots} for key, curve in curves.items()}
    found: dict[_Key, dict[int, str]] = defaultdict(dict)
    for point, note in notes.items():
        for axis in point.dim:
            key = _Key.of(point, axis)
            if note.failed and key in measured and point not in measured[key]:
                found[key][point.dim[axis]] = note.failed
    return found


def _lone(m: Measured, key: _Key, timer: str) -> LonePoint:
    return LonePoint(
        operator=key.operator, dims=dict(key.fixed) | {key.axis: m.d}, dtype=key.dtype,
        flags=dict(key.flags), timer=timer, median_us=float(f"{m.us:.6g}"), count=m.count,
        mechanism=m.mechanism, kernels=list(m.kernels),
    )  # fmt: skip
