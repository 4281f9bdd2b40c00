"""Blocks → cliff map: fit each curve, take the noise from hidden replicates, detect, judge."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from pydantic import ValidationError

from gacprof.cliffmap.curves import Axis, Measured, make_curve, measured_of
from gacprof.cliffmap.map import CliffMap
from gacprof.cliffmap.schema import KIND, SCHEMA, Curve, Device, IsolatedPoint, MapFile, Provenance
from gacprof.core.errors import MapError
from gacprof.core.points import LEVEL, Block, Environment, Point, PointNote, Sample, curve_key
from gacprof.stats.blocks import CurveBlocks
from gacprof.stats.fit import FEWEST_BLOCKS, Floats
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
    held, about = list(blocks), point_notes or {}
    timer, notes = _timer_of(held)
    curves, left_out = _by_curve(held, timer)
    if not curves:
        raise MapError(_nothing_measured(name, about))
    fits = list(curves.values())
    noise, moved = noise_of(fits), _levels(held, timer, fits)
    fitted = _fitted(curves, _failed_by_curve(about, curves), timer, moved, noise.inflation)
    served = partial(_served, notes=about, mechanism_of=mechanism_of)
    made, isolated = _judged([served(one) for one in fitted], tolerance)
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
            suite=suite, suite_hash=suite_hash, stack=dict(environment.stack),
            notes=[*notes, *_throttle_notes(held, fits)],
        ),
        noise=noise,
        checks=checks(fits, moved),
        curves=made,
        isolated=isolated,
        unmeasured=list(dict.fromkeys([*unmeasured, *left_out])),
    )  # fmt: skip
    return CliffMap(file)


def _nothing_measured(name: str, notes: Mapping[Point, PointNote]) -> str:
    reasons = Counter(note.failed for note in notes.values() if note.failed)
    why = f" (most often: {reasons.most_common(1)[0][0]})" if reasons else ""
    return (
        f"nothing to build the map '{name}' from: no sample was measured{why}. "
        "Run the sweep again (gacprof sweep … --resume)"
    )


def _levels(blocks: Sequence[Block], timer: str, fits: Sequence[CurveBlocks]) -> list[Floats]:
    """What each curve's slots have to be moved by to be on one level with the others'."""
    levels = [b for b in blocks if b.axis == LEVEL and b.timer == timer]
    return levels_of([b for b in levels if not b.throttled] or levels, fits)


@dataclass(frozen=True)
class _Fitted:
    """What the fit of a curve says of its dims; ``failed`` are those without any time."""

    axis: Axis
    measured: list[Measured]
    failed: Mapping[int, str]
    throttled: str


def _fitted(
    curves: Mapping[str, CurveBlocks],
    failed: Mapping[str, Mapping[int, str]],
    timer: str,
    moved: Sequence[Floats],
    inflation: float,
) -> list[_Fitted]:
    """Every curve, in the order of a map."""
    between = device_variance(list(curves.values())) ** 0.5
    found = [
        _Fitted(
            Axis.of(curve.slots[0].point, curve.axis, timer),
            measured_of(curve, shift, inflation, between if len(curve.devices) < 2 else 0.0),
            failed.get(key, {}),
            curve.throttled,
        )
        for (key, curve), shift in zip(curves.items(), moved, strict=True)
    ]
    return sorted(found, key=lambda one: _order(one.axis))


def _judged(fitted: Iterable[_Fitted], tolerance: float) -> tuple[list[Curve], list[IsolatedPoint]]:
    """The curves, and points alone on their axis that stand on no other curve."""
    made: list[Curve] = []
    isolated: dict[Point, IsolatedPoint] = {}
    for one in fitted:
        axis = one.axis
        if len(one.measured) < 2:
            isolated |= {axis.point(m.d): _isolated(m, axis) for m in reversed(one.measured)}
            continue
        try:
            made.append(make_curve(axis, one.measured, one.failed, tolerance, one.throttled))
        except ValidationError as error:
            fault = error.errors()[0]["msg"]
            raise MapError(f"{axis.operator} {axis.axis} ({axis.fixed}): {fault}") from None
    on_curves = {curve.point(d) for curve in made for d in curve.points.d}
    return made, [alone for point, alone in isolated.items() if point not in on_curves]


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


def _served(curve: _Fitted, notes: Mapping[Point, PointNote], mechanism_of: MechanismOf) -> _Fitted:
    """With what served its dims."""
    named = []
    for m in curve.measured:
        point = curve.axis.point(m.d)
        kernels = notes[point].kernels if point in notes else ()
        served = mechanism_of(Sample(point, (), (), "", kernels=kernels))
        named.append(replace(m, mechanism=served, kernels=kernels))
    return replace(curve, measured=named)


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
