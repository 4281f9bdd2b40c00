"""Blocks → cliff map: fit each curve, take the noise from hidden replicates, detect, judge."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from pydantic import ValidationError

from gacprof.cliffmap.curves import Axis, Measured, make_curve, measured_of
from gacprof.cliffmap.map import CliffMap
from gacprof.cliffmap.schema import KIND, SCHEMA, Curve, Device, IsolatedPoint, MapFile, Provenance
from gacprof.core.errors import MapError
from gacprof.core.points import LEVEL, Block, Environment, Point, PointNote, Sample, curve_key
from gacprof.stats.blocks import CurveBlocks
from gacprof.stats.fit import FEWEST_BLOCKS
from gacprof.stats.judge import TOLERANCE
from gacprof.stats.noise import checks, device_variance, levels_of, noise_of

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
    held = list(blocks)
    timer, notes = _timer_of(held)
    curves, left_out = _by_curve(held, timer)
    about = point_notes or {}
    if not curves:
        reasons = Counter(note.failed for note in about.values() if note.failed)
        why = f" (most often: {reasons.most_common(1)[0][0]})" if reasons else ""
        raise MapError(
            f"nothing to build the map '{name}' from: no sample was measured{why}. "
            "Run the sweep again (gacprof sweep … --resume)"
        )
    fits = list(curves.values())
    levels = [b for b in held if b.axis == LEVEL and b.timer == timer]
    moved = levels_of([b for b in levels if not b.throttled] or levels, fits)
    noise, across = noise_of(fits), device_variance(fits) ** 0.5
    failed = _failed_by_curve(about, curves)
    made: list[Curve] = []
    isolated: dict[Point, IsolatedPoint] = {}
    what = {key: Axis.of(c.slots[0].point, c.axis, timer) for key, c in curves.items()}
    for key, shift in sorted(
        zip(curves, moved, strict=True), key=lambda each: _order(what[each[0]])
    ):
        curve, axis = curves[key], what[key]
        unseen = across if len(curve.devices) < 2 else 0.0
        found = measured_of(curve, shift, noise.inflation, unseen)
        measured = [_named(m, axis.point(m.d), about, mechanism_of) for m in found]
        if len(measured) < 2:
            isolated |= {axis.point(m.d): _isolated(m, axis) for m in reversed(measured)}
            continue
        try:
            made.append(make_curve(axis, measured, failed.get(key, {}), tolerance, curve.throttled))
        except ValidationError as error:
            fault = error.errors()[0]["msg"]
            raise MapError(f"{axis.operator} {axis.axis} ({axis.fixed}): {fault}") from None
    notes += _throttle_notes(held, fits)
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
        isolated=[alone for point, alone in isolated.items() if point not in on_curves],
        unmeasured=list(dict.fromkeys([*unmeasured, *left_out])),
    )  # fmt: skip
    return CliffMap(file)


def _order(axis: Axis) -> str:
    flags, fixed = tuple(axis.flags.items()), tuple(axis.fixed.items())
    return str((axis.operator, axis.axis, axis.dtype, flags, fixed))


def _timer_of(blocks: Sequence[Block]) -> tuple[str, list[str]]:
    """The timer of most blocks that did not run throttled, and a note of the others."""
    counts = Counter(b.timer for b in blocks if not b.throttled) or Counter(b.timer for b in blocks)
    timer = max(counts, key=lambda name: (counts[name], name), default="")
    return timer, [
        f"{counts[other]} blocks were timed with '{other}' and left out: the map is of '{timer}'"
        for other in sorted(counts)
        if other != timer
    ]


def _by_curve(blocks: Iterable[Block], timer: str) -> tuple[dict[str, CurveBlocks], list[str]]:
    """The curves by what they are of, and the names of those that were timed otherwise only.

    A curve is of the blocks that did not run throttled; of those that did where it has too few
    others to know any error, such as a prefill at the power limit. Raises :class:`MapError` for a
    time that is no positive number.
    """
    found: dict[str, list[Block]] = defaultdict(list)
    for block in blocks:
        for call in block.calls:
            if not 0 < call.us < inf:
                raise MapError(
                    f"a time of {call.point} (block {block.number}) is not a positive number; "
                    "the samples are damaged: sweep this point again"
                )
        if block.calls and block.axis != LEVEL:
            found[curve_key(block.calls[0].point, block.axis)].append(block)
    curves: dict[str, CurveBlocks] = {}
    left_out: list[str] = []
    for key, all_of_it in found.items():
        timed = [block for block in all_of_it if block.timer == timer]
        if not timed:
            left_out.append(key)
            continue
        slowed = [block for block in timed if block.throttled]
        if slowed and len(timed) - len(slowed) < FEWEST_BLOCKS:
            why = Counter(block.throttled for block in slowed).most_common(1)[0][0]
            curves[key] = CurveBlocks(slowed[0].axis, slowed, why)
        else:
            free = [block for block in timed if not block.throttled]
            curves[key] = CurveBlocks(free[0].axis, free)
    return curves, left_out


def _throttle_notes(blocks: Sequence[Block], curves: Sequence[CurveBlocks]) -> list[str]:
    slowed = sum(len(curve.blocks) for curve in curves if curve.throttled)
    left = sum(bool(block.throttled) for block in blocks if block.axis != LEVEL) - slowed
    return [f"{left} blocks ran throttled and were left out"] * (left > 0) + [
        f"{sum(bool(curve.throttled) for curve in curves)} curves are of a throttled device: "
        f"hardly any of their blocks ran at its own clock"
    ] * (slowed > 0)


def _named(
    m: Measured, point: Point, notes: Mapping[Point, PointNote], mechanism_of: MechanismOf
) -> Measured:
    """With what served the dim."""
    kernels = notes[point].kernels if point in notes else ()
    served = mechanism_of(Sample(point, (), (), "", kernels=kernels))
    return replace(m, mechanism=served, kernels=kernels)


def _failed_by_curve(
    notes: Mapping[Point, PointNote], curves: Mapping[str, CurveBlocks]
) -> dict[str, dict[int, str]]:
    """Points without any time, by the curves that they would stand on."""
    measured = {key: {slot.point for slot in curve.slots} for key, curve in curves.items()}
    found: dict[str, dict[int, str]] = defaultdict(dict)
    for point, note in notes.items():
        for axis in point.dim if note.failed else ():
            key = curve_key(point, axis)
            if key in measured and point not in measured[key]:
                found[key][point.dim[axis]] = note.failed
    return found


def _isolated(m: Measured, of: Axis) -> IsolatedPoint:
    return IsolatedPoint(
        operator=of.operator, dims={**of.fixed, of.axis: m.d}, dtype=of.dtype,
        flags=dict(of.flags), timer=of.timer, latency_us=float(f"{m.us:.6g}"), count=m.count,
        mechanism=m.mechanism, kernels=list(m.kernels),
    )  # fmt: skip
