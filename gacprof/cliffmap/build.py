"""Samples → cliff map: gather the visits, take the noise floors from hidden duplicates, detect."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, cast

from pydantic import ValidationError

from gacprof.cliffmap.cliff import Paired
from gacprof.cliffmap.curves import Axis, make_curve
from gacprof.cliffmap.map import CliffMap
from gacprof.cliffmap.noise import Pair, aa_pairs, noise_floor, noise_of_curve
from gacprof.cliffmap.schema import SCHEMA, Curve, Device, LonePoint, MapFile, Noise, Provenance
from gacprof.cliffmap.visits import Visits
from gacprof.errors import MapError
from gacprof.points import Environment, Point, Sample

MechanismOf = Callable[[Sample], str | None]
InTurns = Mapping[tuple[Point, Point], Paired]
"""What pairs of points measured in turns gave: (before, after) → ratios."""


def mechanism_of_kernels(sample: Sample) -> str | None:
    """What served a visit, as the kernels' names tell it (:mod:`gacprof.kernels`): family,
    template, instruction, alignment, without tile and schedule. None where none was seen."""
    from gacprof.kernels import attach

    parts = []
    for group in attach(sample.kernels):
        padded = "padded " if any(kernel.role != "copy" for kernel in group.before) else ""
        parts.append(padded + group.main.mechanism + (" split-k" if group.main.split_k else ""))
    return " + ".join(dict.fromkeys(parts)) or None


def build_map(
    samples: Iterable[Sample],
    environment: Environment,
    *,
    name: str,
    suite: str = "",
    suite_hash: str = "",
    created: str | None = None,
    notes: Iterable[str] = (),
    mechanism_of: MechanismOf = mechanism_of_kernels,
    in_turns: InTurns | None = None,
) -> CliffMap:
    """The cliff map of these samples.

    The least disturbed visit stands for a point; duplicates are kept apart and give the noise
    floors. A point whose visits all failed or were throttled is in its curves' coverage with the
    reason. Points that are alone on their axis, or on none, are kept for look-ups. Cliffs whose
    sides were measured ``in_turns`` carry what that gave, and are none if it does not bear
    them out.

    Raises :class:`MapError` where nothing was measured or a timing is no positive number.
    """
    visits, timer, extra_notes = _visits(samples, mechanism_of)
    pairs = aa_pairs(visits)
    noise = noise_floor(pairs)
    curves, lone = _curves(visits, timer, noise, pairs, in_turns or {})
    if not curves and not lone:
        raise MapError(
            f"nothing to build the map '{name}' from: no sample was measured{_why(visits)}. "
            "Run the sweep again (gacprof sweep … --resume)"
        )
    file = MapFile(
        schema_=SCHEMA,
        name=name,
        device=Device(
            kind=cast(Literal["cuda", "cpu", "recorded"], environment.kind),
            name=environment.name,
            arch=environment.arch,
            facts=dict(environment.facts),
        ),
        provenance=Provenance(
            kind="measured",
            created=created or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            suite=suite,
            suite_hash=suite_hash,
            stack=dict(environment.stack),
            notes=[*notes, *extra_notes],
        ),
        noise=noise,
        curves=curves,
        lone=lone,
    )
    return CliffMap(file)


def _visits(
    samples: Iterable[Sample], mechanism_of: MechanismOf
) -> tuple[dict[Point, Visits], str, list[str]]:
    """Samples by point, of the one timer that most of them were taken with."""
    by_timer: dict[str, dict[Point, Visits]] = defaultdict(lambda: defaultdict(Visits))
    for sample in samples:
        if any(not 0 < t < float("inf") for t in sample.timings_us):
            raise MapError(
                f"a timing of {sample.point} (visit {sample.visit}) is not a positive number; "
                "the samples are damaged: sweep this point again"
            )
        by_timer[sample.timer][sample.point].add(sample, mechanism_of(sample))
    if not by_timer:
        return {}, "", []
    timer = max(by_timer, key=lambda t: (sum(bool(v.telling) for v in by_timer[t].values()), t))
    notes = [
        f"{len(by_timer[other])} points were timed with '{other}' and left out: "
        f"the map is of '{timer}'"
        for other in sorted(by_timer)
        if other != timer and any(v.telling for v in by_timer[other].values())
    ]
    return dict(by_timer[timer]), timer, notes


def _curves(
    visits: Mapping[Point, Visits], timer: str, noise: Noise, pairs: list[Pair], in_turns: InTurns
) -> tuple[list[Curve], list[LonePoint]]:
    groups: dict[tuple[str, str, str, tuple, tuple], dict[int, Point]] = defaultdict(dict)
    for point, v in visits.items():
        for axis in v.axes:
            fixed = tuple(item for item in point.dims if item[0] != axis)
            key = (point.operator, axis, point.dtype, point.flags, fixed)
            groups[key][point.dim[axis]] = point
    curves: list[Curve] = []
    on_curve: set[Point] = set()
    for (operator, axis, dtype, flags, fixed), points in sorted(groups.items(), key=str):
        measured = [visits[p].measured(d) for d, p in points.items() if visits[p].telling]
        if len(measured) < 2:
            continue
        failed = {
            d: "; ".join(dict.fromkeys(visits[p].troubles))
            for d, p in points.items()
            if not visits[p].telling
        }
        what = Axis(operator, axis, dict(fixed), dtype, dict(flags), timer)
        on_curve.update(points.values())
        own = noise_of_curve(pairs, operator, [m.median_us for m in measured])
        try:
            paired = _on_this(points, in_turns)
            curves.append(make_curve(what, measured, (own or noise).floor, failed, own, paired))
        except ValidationError as error:
            raise MapError(
                f"{operator} {axis} ({dict(fixed)}): {error.errors()[0]['msg']}"
            ) from None
    return curves, [
        _lone(p, v, timer) for p, v in visits.items() if v.telling and p not in on_curve
    ]


def _on_this(points: Mapping[int, Point], in_turns: InTurns) -> dict[tuple[int, int], Paired]:
    """Of all pairs those with both sides on one curve, by their dims."""
    dim_of = {point: d for d, point in points.items()}
    return {
        (dim_of[before], dim_of[after]): paired
        for (before, after), paired in in_turns.items()
        if before in dim_of and after in dim_of
    }


def _lone(point: Point, visits: Visits, timer: str) -> LonePoint:
    m = visits.measured(1)
    return LonePoint(
        operator=point.operator,
        dims=point.dim,
        dtype=point.dtype,
        flags=point.flag,
        timer=timer,
        median_us=m.median_us,
        low_us=m.low_us,
        high_us=m.high_us,
        count=m.count,
        mechanism=m.mechanism,
        kernels=list(m.kernels),
    )


def _why(visits: Mapping[Point, Visits]) -> str:
    """The commonest reason why points have no timings, for the message."""
    reasons = Counter(reason for v in visits.values() for reason in v.troubles)
    return f" (most often: {reasons.most_common(1)[0][0]})" if reasons else ""
