"""What a step of a model takes on a GPU that others measured, as it is and at good sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as upwards
from math import gcd
from typing import Any

from gacprof.cliffmap.estimate import NOTHING, Estimate, Interval
from gacprof.cliffmap.source import Tokens, workload_of
from gacprof.core.errors import MapError
from gacprof.core.files import Record
from gacprof.elsewhere.levels import DIFFER, OUR_NAMES, Level, Levels
from gacprof.elsewhere.needs import CONTEXT, EXPERTS, NOT_SHARED, QUERIES, Found, Need
from gacprof.elsewhere.times import MEASURE, ProductTimes, good_size, least_us
from gacprof.rules.target import Target

NOTES = (
    "times are others' single measurements of aligned sizes by CUDA graph, interpolated; bounds "
    "are from leaving sizes out and from how far frameworks differ",
    f"attention is that of one sequence: a prefill of so many tokens, a decode step after "
    f"{CONTEXT:,}; routed experts share tokens out as the tables' median routing does",
    "no normalisation, sampling, communication or gaps between launches",
    "no bound is below FLOPs at the data sheet's peak or weights at its bandwidth: those of the "
    "experts of one token, or of even routing once tokens times top-k reach their number",
    "the head is taken at one row, that of the last token",
)


@dataclass(frozen=True)
class Cost(Record):
    """What a part takes in all its repetitions at one token count. ``good`` is the time at the
    next sizes of the best tier, ``now`` that at its own sizes, ``saved`` the difference; None where
    not known, with what is ``missing``."""

    tokens: int
    good: Interval | None
    now: Interval | None
    saved: Interval | None
    missing: str = ""


@dataclass(frozen=True)
class Part(Record):
    """A part of the step, the shape at which it is of the best tier, and its costs by token
    count."""

    derived = ("misaligned",)

    need: Need
    good: dict[str, int]
    costs: tuple[Cost, ...]

    @property
    def judged(self) -> bool:
        """Whether rules say which sizes are good: of products in the data types that they know."""
        return self.need.kind == "product" and self.need.dtype in OUR_NAMES

    @property
    def misaligned(self) -> bool:
        """Whether its sizes are not of the best tier, whatever that costs."""
        return self.judged and dict(self.need.shape) != self.good


@dataclass(frozen=True)
class Total(Record):
    """Sums over the parts at one token count. ``timed`` is that of the parts with a time, at good
    sizes (None where no part has one), its lower bound what the step takes ``at_least``, in µs.
    ``open`` parts have sizes of an unknown cost: ``now`` is None then, and ``saved`` is what the
    others save, None where none of them does. ``unknown`` parts have no time: ``good`` and ``now``
    are None then, and what they save is not known, except of products whose sizes are good."""

    derived = ("at_least",)

    tokens: int
    good: Interval | None
    timed: Interval | None
    now: Interval | None
    saved: Interval | None
    open: int
    unknown: int

    @property
    def at_least(self) -> float | None:
        return self.timed.low if self.timed else None


@dataclass(frozen=True)
class StepTimes(Record):
    """The whole answer; ``sources`` are frameworks with versions, ``left_out`` parts without a
    time, with the reason."""

    gpu: str
    engine: str
    dtypes: tuple[str, ...]
    tp: int
    totals: tuple[Total, ...]
    parts: tuple[Part, ...]
    left_out: tuple[str, ...]
    sources: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def refused(self) -> list[str]:
        """The parts that so many ranks cannot share: engines do not start with these."""
        return [one.partition(":")[0] for one in self.left_out if one.endswith(NOT_SHARED)]

    @property
    def not_judged(self) -> list[str]:
        """The products that no rule judges: routed experts (two products) first, those of a data
        type without rules, and those whose shape is not known."""
        gone = [one.partition(":")[0] for one in self.left_out]
        found = [p.need.name for p in self.parts if not p.judged]
        shaped = {p.need.name for p in self.parts}
        found += [name for name in gone if name not in shaped]
        found.sort(key=lambda name: name != EXPERTS)  # most of the weights: never the one left out
        return [name for name in dict.fromkeys(found) if not name.endswith("attention")]

    def counts(self) -> dict[str, Any]:
        """The step's products and parts: those that rules judge, the names of those that they do
        not, those that ranks cannot share, those with sizes that are not of the best tier, those
        with a cost that is open at some token count, and those without a time."""
        known = [part for part in self.parts if all(cost.good for cost in part.costs)]
        judged, beyond = sum(part.judged for part in self.parts), self.not_judged
        return {
            "products": judged + len(beyond) + (EXPERTS in beyond),
            "not_judged": beyond,
            "refused": self.refused,
            "judged": judged,
            "misaligned": sum(part.misaligned for part in self.parts),
            "open": sum(any(cost.now is None for cost in part.costs) for part in known),
            "unknown": len(self.left_out),
        }

    def frame_rows(self) -> Iterator[dict[str, Any]]:
        """Each part at each token count; times in µs, None where not known."""
        for part in self.parts:
            for cost in part.costs:
                yield {
                    "part": part.need.name, "count": part.need.count, "dtype": part.need.dtype,
                    "shape": _said(part.need.shape), "good": _said(part.good),
                    "misaligned": part.misaligned if part.judged else None, "tokens": cost.tokens,
                    "good_us": cost.good and cost.good.value, "us": cost.now and cost.now.value,
                    "saved_us": cost.saved and cost.saved.value, "missing": cost.missing,
                }  # fmt: skip


@dataclass(frozen=True)
class _Priced:
    """A part at one token count: its time at good sizes, and as it is."""

    good: Estimate
    now: Estimate

    @property
    def known(self) -> bool:
        return self.good.latency_us is not None

    def cost(self, tokens: int) -> Cost:
        saved = self.now.saved(self.good) if self.now != self.good else _NONE
        if not self.known or self.now.latency_us is None:
            missing = self.now.missing or self.good.missing
            return Cost(tokens, self.good.interval, None, None, missing)
        return Cost(tokens, self.good.interval, self.now.interval, saved)


_NONE = Interval(0.0, 0.0, 0.0)


def _said(shape: Mapping[str, int]) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in shape.items())


def step_times(
    times: ProductTimes, found: Found, tokens: Tokens | None = None, tp: int = 1
) -> StepTimes:
    """What these parts take at each token count, in µs with bounds, by default of one decode step
    and a prefill of 1024. Raises :class:`MapError` for a data type of their products that was not
    measured, naming those that were."""
    needs, left_out = found
    counts, sources = list(workload_of(tokens)), set[str]()
    shapes = _good_shapes(times.target, needs)
    priced = [
        [_priced(times, need, good, m, sources) for m in counts]
        for need, good in zip(needs, shapes, strict=True)
    ]
    parts = [
        Part(need, good, tuple(p.cost(m) for p, m in zip(row, counts, strict=True)))
        for need, good, row in zip(needs, shapes, priced, strict=True)
    ]
    gone = [f"{p.need.name}: {c.missing}" for p in parts for c in p.costs if c.good is None]
    totals = [
        _total([row[i] for row in priced], parts, m, len(left_out)) for i, m in enumerate(counts)
    ]
    return StepTimes(
        times.gpu, times.engine or "", tuple(sorted({need.dtype for need in needs})), tp,
        tuple(totals), tuple(parts), tuple(dict.fromkeys([*left_out, *gone])),
        tuple(sorted(sources)), (times.provenance, *NOTES, *_apart(times, needs), times.published),
    )  # fmt: skip


def sizes_by_rules(about: Target, found: Found, tp: int = 1) -> StepTimes:
    """The parts of a step with the sizes at which rules call them good, where nobody measured what
    they take: without any time. Raises :class:`MapError` where no rule of the GPU judges any."""
    needs, left_out = found
    dtypes = {need.dtype for need in needs if need.kind == "product"}
    known = {OUR_NAMES[dtype] for dtype in dtypes if dtype in OUR_NAMES}
    if not known or not known <= set(about.chip.tiers):
        raise MapError(f"{about.sheet.name} ({about.arch}) has no rules for these products")
    parts = [Part(n, good, ()) for n, good in zip(needs, _good_shapes(about, needs), strict=True)]
    gone = [f"{need.name}: no time" for need in needs]
    return StepTimes(
        about.sheet.key, "", tuple(sorted({need.dtype for need in needs})), tp, (), tuple(parts),
        tuple(dict.fromkeys([*left_out, *gone])), (), (),
    )  # fmt: skip


def _apart(times: ProductTimes, needs: Sequence[Need]) -> list[str]:
    """Which data types engines serve by kernels of their own, so that their median says little."""
    dtypes = sorted({need.dtype for need in needs if need.kind == "product"})
    differ = {dtype: max(times.levels(dtype).differ) for dtype in dtypes}
    wide = [dtype for dtype, error in differ.items() if error > DIFFER and not times.engine]
    return [f"engines differ by more than {DIFFER:.0%} in {d}: name one (--engine)" for d in wide]


def _good_shapes(about: Target, needs: Sequence[Need]) -> list[dict[str, int]]:
    """The next sizes of the best tier. Axes that one field of the config sizes grow together, to
    the least that is good in all of them."""
    shapes = [_good_shape(about, need) for need in needs]
    for name in {name for need in needs for name in need.fields.values()}:
        axes = [
            (need, shape, axis)
            for need, shape in zip(needs, shapes, strict=True)
            for axis, by in need.fields.items()
            if by == name
        ]
        unit = gcd(*(need.shape[axis] for need, _, axis in axes))
        size = next(
            size
            for size in upwards(unit)
            if all(
                good_size(about, need.dtype, grown) == grown
                for need, _, axis in axes
                for grown in [need.shape[axis] // unit * size]
            )
        )
        for need, shape, axis in axes:
            shape[axis] = need.shape[axis] // unit * size
    return shapes


def _good_shape(about: Target, need: Need) -> dict[str, int]:
    if need.kind != "product":
        return dict(need.shape)
    return {axis: good_size(about, need.dtype, size) for axis, size in need.shape.items()}


def _priced(
    times: ProductTimes, need: Need, good: dict[str, int], tokens: int, sources: set[str]
) -> _Priced:
    if need.kind != "product":
        found = _of_query(times, need, tokens, sources)
        one = found.at_least(least_us(times.target.sheet, need, tokens)).times(need.count)
        return _Priced(one, one)
    rows = 1 if need.one_row else tokens
    at_good = times.time(need.dtype, rows, good["N"], good["K"])
    now = times.time(need.dtype, rows, need.shape["N"], need.shape["K"])
    if at_good.latency_us is not None:
        sources |= {f"{s.framework} {s.version}" for s in times.levels(need.dtype).used}
    return _Priced(at_good.times(need.count), now.times(need.count))


def _of_query(times: ProductTimes, need: Need, tokens: int, sources: set[str]) -> Estimate:
    """Attention or experts, or why they have no time."""
    place = QUERIES[need.kind](need.shape, tokens)
    if isinstance(place, str):
        return Estimate(None, place)
    width = need.shape.get("width", 0)
    if width % 32:
        return Estimate(None, f"what a width of {width} costs is not known; {MEASURE}")
    shape = ", ".join(f"{name} {size}" for name, size in need.shape.items())
    try:
        surfaces = times.measured.surfaces(times.gpu, place.query)
        if not surfaces:
            return Estimate(None, f"{shape} is not among what was measured")
        levels = Levels(surfaces, need.dtype, times.engine, times.repeated)
    except MapError as error:
        return Estimate(None, f"{shape}: {error}")
    level = levels.at(place.m, place.n, 1)
    if not isinstance(level, Level):
        return Estimate(None, f"{shape}: {level}")
    sources |= set(level.sources)
    return level.estimate


def _total(priced: Sequence[_Priced], parts: Sequence[Part], tokens: int, refused: int) -> Total:
    """``refused`` parts of the step have no shape to be priced at."""
    sure = all(
        one.now.latency_us is not None or (part.judged and not part.misaligned)
        for one, part in zip(priced, parts, strict=True)
    )
    known = [one for one in priced if one.known]
    is_open = sum(one.now.latency_us is None for one in known)
    unknown = len(priced) - len(known) + refused
    every = sum((one.good for one in known), NOTHING).interval if known else None
    changed = [one for one in known if one.now != one.good and one.now.latency_us is not None]
    before, after = (sum((getattr(one, e) for one in changed), NOTHING) for e in ("now", "good"))
    now = None if is_open or unknown else sum((one.now for one in known), NOTHING).interval
    saved = before.saved(after) if changed else _NONE if sure and not refused else None
    good = None if unknown else every
    return Total(tokens, good, every, now, saved, is_open, unknown)
