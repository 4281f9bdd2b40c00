"""Samples → cliff map: pool the visits, take the noise floor from hidden duplicates, detect."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from pydantic import ValidationError

from gacprof.cliffmap.curves import Axis, Measured, make_curve
from gacprof.cliffmap.map import CliffMap
from gacprof.cliffmap.schema import SCHEMA, Curve, Device, LonePoint, MapFile, Noise, Provenance
from gacprof.errors import MapError
from gacprof.measure.stats import median, median_interval, quantile
from gacprof.points import Environment, Point, Sample

FLOOR_QUANTILE = 0.95
"""The share of A/A differences that the noise floor is not to fall short of."""

MechanismOf = Callable[[Sample], str | None]


def mechanism_of_kernels(sample: Sample) -> str | None:
    """What served a visit, as the kernels' names tell it (:mod:`gacprof.kernels`): family,
    template, instruction, alignment, without tile and schedule. None where none was seen."""
    from gacprof.kernels import attach

    parts = []
    for group in attach(sample.kernels):
        padded = "padded " if any(kernel.role != "copy" for kernel in group.before) else ""
        parts.append(padded + group.main.mechanism + (" split-k" if group.main.split_k else ""))
    return " + ".join(dict.fromkeys(parts)) or None


@dataclass
class _Visits:
    """All that was sampled of one point with one timer."""

    own: list[float] = field(default_factory=list)
    disguised: list[float] = field(default_factory=list)
    served: Counter[tuple[str | None, tuple[str, ...]]] = field(default_factory=Counter)
    troubles: list[str] = field(default_factory=list)
    axes: set[str] = field(default_factory=set)

    def add(self, sample: Sample, mechanism: str | None) -> None:
        self.axes.update(sample.axes)
        if sample.status != "ok" or not sample.timings_us:
            self.troubles.append(sample.reason or sample.status)
        elif sample.duplicate:
            self.disguised.extend(sample.timings_us)
        else:
            self.own.extend(sample.timings_us)
            if mechanism or sample.kernels:
                self.served[mechanism, sample.kernels] += 1

    def measured(self, d: int) -> Measured:
        low, middle, high = median_interval(self.own)
        mechanism, kernels = self._commonest()
        return Measured(d, middle, low, high, len(self.own), mechanism, kernels)

    def _commonest(self) -> tuple[str | None, tuple[str, ...]]:
        if not self.served:
            return None, ()
        return min(self.served, key=lambda seen: (-self.served[seen], str(seen)))


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
) -> CliffMap:
    """The cliff map of these samples.

    Visits of a point are pooled; duplicates are kept apart and give the noise floor. A
    point whose visits all failed or were throttled is in its curves' coverage with the
    reason. Points that are alone on their axis, or on none, are kept for look-ups.

    Raises :class:`MapError` where nothing was measured or a timing is no positive number.
    """
    visits, timer, extra_notes = _visits(samples, mechanism_of)
    noise = noise_floor(visits)
    curves, lone = _curves(visits, timer, noise.floor)
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


def noise_floor(visits: Mapping[Point, _Visits]) -> Noise:
    """The 95 % quantile of |ratio − 1| between a point's own visits and its duplicates."""
    ratios = [
        abs(median(v.disguised) / median(v.own) - 1)
        for v in visits.values()
        if v.own and v.disguised
    ]
    if not ratios:
        return Noise(floor=None, reason="the samples hold no duplicate visits")
    floor = float(f"{quantile(ratios, FLOOR_QUANTILE):.4g}")
    return Noise(floor=floor, quantile=FLOOR_QUANTILE, pairs=len(ratios))


def _visits(
    samples: Iterable[Sample], mechanism_of: MechanismOf
) -> tuple[dict[Point, _Visits], str, list[str]]:
    """Samples by point, of the one timer that most of them were taken with."""
    by_timer: dict[str, dict[Point, _Visits]] = defaultdict(lambda: defaultdict(_Visits))
    for sample in samples:
        if any(not 0 < t < float("inf") for t in sample.timings_us):
            raise MapError(
                f"a timing of {sample.point} (visit {sample.visit}) is not a positive number; "
                "the samples are damaged: sweep this point again"
            )
        by_timer[sample.timer][sample.point].add(sample, mechanism_of(sample))
    if not by_timer:
        return {}, "", []
    timer = max(by_timer, key=lambda t: (sum(bool(v.own) for v in by_timer[t].values()), t))
    notes = [
        f"{len(by_timer[other])} points were timed with '{other}' and left out: "
        f"the map is of '{timer}'"
        for other in sorted(by_timer)
        if other != timer and any(v.own for v in by_timer[other].values())
    ]
    return dict(by_timer[timer]), timer, notes


def _curves(
    visits: Mapping[Point, _Visits], timer: str, floor: float | None
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
        measured = [visits[p].measured(d) for d, p in points.items() if visits[p].own]
        if len(measured) < 2:
            continue
        failed = {
            d: "; ".join(dict.fromkeys(visits[p].troubles)) or "only measured as a duplicate"
            for d, p in points.items()
            if not visits[p].own
        }
        what = Axis(operator, axis, dict(fixed), dtype, dict(flags), timer)
        on_curve.update(points.values())
        try:
            curves.append(make_curve(what, measured, floor, failed))
        except ValidationError as error:
            raise MapError(
                f"{operator} {axis} ({dict(fixed)}): {error.errors()[0]['msg']}"
            ) from None
    return curves, [_lone(p, v, timer) for p, v in visits.items() if v.own and p not in on_curve]


def _lone(point: Point, visits: _Visits, timer: str) -> LonePoint:
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


def _why(visits: Mapping[Point, _Visits]) -> str:
    """The commonest reason why points have no timings, for the message."""
    reasons = Counter(reason for v in visits.values() for reason in v.troubles)
    return f" (most often: {reasons.most_common(1)[0][0]})" if reasons else ""
