"""The cliff map: curves of verdicts over sizes, and its answers to diagnosing and planning. No size
between two measured ones is filled in, since a cliff may lie there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, hypot, inf, lcm, log, prod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from gacprof.cliffmap.judge import (
    INTERVAL_LEVEL,
    is_supported,
    judge_sizes,
    quantile,
    significant,
    verdict_of,
)
from gacprof.core.errors import MapError
from gacprof.core.files import plain, read_record, write_text
from gacprof.core.points import Axis, Environment, Flag
from gacprof.core.results import Table
from gacprof.core.sizes import TOLERANCE, Gemm, Interval, Side, SizeVerdict, Use, advice
from gacprof.hardware.datasheet import gpu_facts
from gacprof.kernels.penalties import PADDED_TO

if TYPE_CHECKING:
    from gacprof.core.verdicts import Verdicts

MAP_FILE = "cliffmap.json"
MIN_BOUND = 1.01  # smaller bounds are rounding
MAPS = Path(__file__).parents[1] / "maps"

REQUIRED_DIMS = {"linear": frozenset("MNK")}
MODEL_FLAGS: Mapping[str, tuple[Flag, ...]] = {  # a model's own way of calling; others: off
    "cache": ("cold",),
    "layout": ("tn", "bhsd"),  # y = x · Wᵀ; heads stand before the tokens
    "backend": ("auto",),
    "mask": ("none",),
    "causal": (True,),
}
FORCED_FLAGS = ("backend", "mask", "offset")  # a curve of other values is no model's call
PREFILL_TOKENS = 64  # a call of fewer is one of decoding


@dataclass(frozen=True)
class Cliff:
    """A jump of latency between two neighbouring multiples of the curve's multiple."""

    before: int
    after: int
    jump: Interval  # latency(after) over latency(before), minus 1
    cause: str = ""  # for people: the change of kernel


@dataclass(frozen=True)
class Curve:
    """An axis with the verdict on each of its sizes, ascending."""

    axis: Axis
    sizes: tuple[SizeVerdict, ...]
    cliffs: tuple[Cliff, ...] = ()
    multiple: int | None = None  # to round sizes up to; None: too few were measured to tell

    @cached_property
    def by_size(self) -> Mapping[int, SizeVerdict]:
        """The verdict on each size."""
        return {verdict.size: verdict for verdict in self.sizes}

    @property
    def round_to(self) -> int | None:
        """The multiple to round up to, at which every size of the curve runs; None: not known."""
        ran = [verdict.size for verdict in self.sizes if verdict.cause != "failed"]
        if self.multiple is None or len(ran) == len(self.sizes):
            return self.multiple
        return lcm(self.multiple, gcd(*ran))

    def answer(self, verdict: SizeVerdict) -> SizeVerdict:
        """Return a verdict that says how it was called, where a model may call otherwise."""
        fixed, flags = self.axis.fixed, self.axis.flags
        text = "torch.mm of row-major matrices" if flags.get("layout") == "nn" else ""
        if self.axis.operator == "attention":
            causal = "causal" if flags.get("causal") else "not causal"
            text = f"{fixed.get('q_len', 'any')} queries, {causal}"
        kernel = verdict.reason or verdict.kernel
        return replace(verdict, reason="; ".join(filter(None, (kernel, text))))

    def with_verdict(self, verdict: str) -> list[int]:
        """Return the sizes that have this verdict."""
        return [v.size for v in self.sizes if v.verdict == verdict]

    @cached_property
    def unusual(self) -> dict[str, Flag]:
        """The flags that differ from :data:`MODEL_FLAGS`."""
        flags = self.axis.flags.items()
        return {n: v for n, v in flags if v not in MODEL_FLAGS.get(n, (False,))}

    @property
    def is_forced(self) -> bool:
        """Whether no model calls like this by itself: with masks, a backend by its name."""
        return not self.unusual.keys().isdisjoint(FORCED_FLAGS)

    @property
    def label(self) -> str:
        """The axis without the flags of a model's own call: ``linear K M=1 N=1024 bfloat16``."""
        return replace(self.axis, flags=self.unusual).key

    @property
    def unlike_prefill(self) -> tuple[bool, bool, int, int, int]:
        """What sorts curves by how much they are like a model's own prefill call, that one first:
        other sides are aligned, the tokens and all else are many."""
        fixed = self.axis.fixed
        is_held_back = any(fixed.get(side, PADDED_TO) % PADDED_TO for side in "NK")
        is_decode = fixed.get("M", fixed.get("q_len", PREFILL_TOKENS)) < PREFILL_TOKENS
        strangeness = len(self.unusual.keys() - {"cache"})  # which a prefill hardly notices
        return is_held_back, is_decode, strangeness, -prod(fixed.values()), -len(self.sizes)


@dataclass(frozen=True)
class MapWarning:
    """What a reader should know of a map: ``drift`` and ``contention`` of the machine, ``failed``
    points, an ``unfinished`` sweep, the ``source`` of published numbers."""

    kind: Literal["drift", "contention", "failed", "unfinished", "source"]
    message: str


@dataclass(frozen=True)
class CliffMap(Table):
    """A map of the sizes that one device serves well: a :class:`~gacprof.core.sizes.SizeSource`. A
    virtual GPU's map holds kernels and no latency."""

    schema: ClassVar[str] = "gacprof.cliffmap/4"
    name: str
    provenance: str
    environment: Environment
    curves: tuple[Curve, ...]
    tolerance: float = TOLERANCE
    noise_floor: float | None = None  # a point and its replicate differ by less in 19 of 20 cases
    warnings: tuple[MapWarning, ...] = ()

    def check(self, where: object) -> None:
        """Raise :class:`MapError`, which names ``where`` the map is, if it contradicts itself."""
        if not self.curves:
            raise MapError(f"{where} has no curve: sweep again")
        if not 0 < self.tolerance < inf:
            raise MapError(f"{where}: a tolerance of {self.tolerance}: give a positive fraction")
        for curve in self.curves:
            axis = curve.axis
            dims = REQUIRED_DIMS.get(axis.operator, frozenset())
            supported = {v.size for v in curve.sizes if is_supported(v, self.tolerance)}
            if self.environment.kind == "virtual" and any(v.latency_us for v in curve.sizes):
                raise MapError(
                    f"{where} holds times of a virtual GPU, which has none: build it anew"
                )
            on_axis = supported & set(axis.sizes)
            if len(on_axis) < len(curve.sizes) or not dims <= {axis.dim, *axis.fixed}:
                raise MapError(
                    f"{where}: {axis} lacks a dim, or has a size that is not on the axis, a time "
                    "that is none, or a verdict that contradicts its penalty: build the map anew"
                )

    def rows(self) -> list[Mapping[str, object]]:
        """Each size of each curve."""
        rows: list[Mapping[str, object]] = []
        for curve in self.curves:
            axis = {"operator": curve.axis.operator, "dim": curve.axis.dim, "curve": curve.axis.key}
            rows += [{**axis, **vars(verdict)} for verdict in curve.sizes]
        return rows

    def save(self, path: str | Path) -> None:
        """Write the map to a JSON file."""
        record = {"schema": self.schema, **plain(self)}
        write_text(Path(path), json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")

    @property
    def virtual_gpu(self) -> str | None:
        """The GPU of the data sheet that a virtual one stood for; None of a real one's map."""
        is_virtual = self.environment.kind == "virtual"
        return gpu_facts(self.environment.name).key if is_virtual else None

    @property
    def tokens(self) -> list[int]:
        """The token counts of its linear curves over N and K."""
        return sorted({c.axis.fixed["M"] for c in self._linear if "M" in c.axis.fixed})

    @property
    def dtypes(self) -> list[str]:
        return sorted({c.axis.dtype for c in self._linear})

    @cached_property
    def _linear(self) -> list[Curve]:
        return [curve for curve in self.curves if curve.axis.operator == "linear"]

    def sizes(self, uses: Sequence[Use], low: int, high: int) -> list[int]:
        """Return the sizes of a dim within [low, high] whose latency is known in all of these
        uses."""
        table = self._table(uses)
        return [size for size in table if low <= size <= high and table[size].latency_us]

    def judge(self, uses: Sequence[Use], sizes: Sequence[int]) -> Verdicts:
        """Return the verdicts on ascending sizes of a dim; in several products, on their summed
        latency."""
        from gacprof.core.verdicts import as_verdicts

        table = self._table(uses)
        unknown = SizeVerdict(0, "unknown", reason=self._missing(uses), cause="not_measured")
        verdicts = [table.get(size) or replace(unknown, size=size) for size in sizes]
        return as_verdicts(verdicts, self.tolerance)

    def latency_us(self, gemm: Gemm, tokens: int, dtype: str) -> Interval | None:
        """Return the latency of one product; None where it was not measured."""
        product = tokens, gemm.N, gemm.K, dtype
        return self._points.get((*product, gemm.bias)) or self._points.get((*product, False))

    def head_dim(self, head_dim: int, heads: int, kv_heads: int, dtype: str) -> SizeVerdict:
        """Return the verdict on an attention's head_dim, on the curve that calls as a model
        does."""
        shape = {"heads": heads, "kv_heads": kv_heads}
        for curve in self.curves_of("attention", "head_dim", dtype, shape):
            if head_dim in curve.by_size:
                return curve.answer(curve.by_size[head_dim])
        reason = f"no curve of attention with {heads} heads holds head_dim {head_dim}"
        return SizeVerdict(head_dim, "unknown", reason=reason, cause="not_measured")

    def curves_of(
        self,
        operator: str,
        dim: str,
        dtype: str | None = None,
        fixed: Mapping[str, int] = {},
    ) -> list[Curve]:
        """Return the curves of an operator over a dim, those that call as a model does first; none
        with a forced backend, with masks, or with memory off 16 bytes."""
        curves = []
        for curve in sorted(self.curves, key=lambda curve: len(curve.unusual)):
            axis = curve.axis
            is_named = (axis.operator, axis.dim) == (operator, dim) and dtype in (None, axis.dtype)
            if is_named and not curve.is_forced and fixed.items() <= axis.fixed.items():
                curves.append(curve)
        return curves

    @cached_property
    def _curves_by_use(self) -> dict[tuple[str, int, int, str, bool], Curve]:
        """By swept dim, M, the other dim, dtype and bias."""
        curves = {}
        for dim, other in (("N", "K"), ("K", "N")):
            # A later curve replaces an earlier one: the last one calls as a model does.
            for curve in reversed(self.curves_of("linear", dim)):
                axis = curve.axis
                bias = bool(axis.flags.get("bias", False))
                curves[dim, axis.fixed["M"], axis.fixed[other], axis.dtype, bias] = curve
        return curves

    @cached_property
    def _points(self) -> dict[tuple[int, int, int, str, bool], Interval]:
        """The latency of every product that was timed, by M, N, K, dtype and bias."""
        points = {}
        for curve in sorted(self._linear, key=lambda curve: -len(curve.unusual)):
            for verdict in curve.sizes:
                point = curve.axis.point(verdict.size)
                m, n, k = (point.dims[name] for name in "MNK")
                if verdict.latency_us is not None:
                    bias = bool(point.flags.get("bias", False))
                    points[m, n, k, point.dtype, bias] = verdict.latency_us
        return points

    @cached_property
    def _tables(self) -> dict[object, dict[int, SizeVerdict]]:
        return {}

    def _table(self, uses: Sequence[Use]) -> dict[int, SizeVerdict]:
        """Return the verdicts on all sizes of these uses, ascending."""
        weights: dict[tuple[Axis, Side], float] = {}
        curves: dict[Axis, Curve] = {}
        for use in uses:
            place = self._place(use)
            if place is None:
                return {}
            curve, side = place
            curves[curve.axis] = curve
            weights[curve.axis, side] = weights.get((curve.axis, side), 0.0) + use.weight
        key = frozenset(weights.items())  # the layers of a model have equal uses: judged once
        if key not in self._tables:
            columns = [column_of(curves[a], side, weight) for (a, side), weight in weights.items()]
            self._tables[key] = self._summed(columns, max(side.tp for _, side in weights))
        return self._tables[key]

    def _place(self, use: Use) -> tuple[Curve, Side] | None:
        """Return the curve that a use runs along, and the dim's side of it."""
        if use.N.times and use.K.times:
            return None
        dim, side, other = ("N", use.N, use.K) if use.N.times else ("K", use.K, use.N)
        curves, key = self._curves_by_use, (dim, use.tokens, other.at(0) or 0, use.dtype)
        curve = curves.get((*key, use.gemm.bias)) or curves.get((*key, False))
        return None if curve is None else (curve, side)

    def _summed(
        self, columns: Sequence[Mapping[int, SizeVerdict]], tp: int
    ) -> dict[int, SizeVerdict]:
        """Return the verdicts on summed latencies."""
        if len(columns) == 1:
            return dict(columns[0])
        summed: dict[int, SizeVerdict] = {}
        totals: dict[int, float] = {}
        by_host: dict[int, float] = {}
        errors = []
        for size in sorted(set(columns[0]).intersection(*columns[1:])):
            verdicts = [column[size] for column in columns]
            times = [v.latency_us for v in verdicts if v.latency_us is not None]
            if len(times) < len(verdicts):
                summed[size] = min(verdicts, key=lambda v: v.latency_us is not None)
                continue
            totals[size] = sum(time.value for time in times)
            # In logarithms noise is symmetric, and it is independent between curves.
            # An interval that reaches further down has a bound by the host, which all curves share.
            width = hypot(*(time.high - time.value for time in times)) / totals[size]
            errors.append(width / quantile(INTERVAL_LEVEL))
            least = sum(time.low * time.high / time.value for time in times)
            by_host[size] = totals[size] / least
        logs = [log(total) for total in totals.values()]
        bound = 1.0
        for verdict in reversed(judge_sizes(list(totals), logs, errors, self.tolerance, tp=tp)):
            latency, factor = verdict.latency_us, by_host[verdict.size]
            if factor >= MIN_BOUND and latency is not None:
                latency = replace(latency, low=significant(latency.low / factor))
            bound = max(bound, factor)
            verdict = with_bound(verdict, bound, self.tolerance)
            summed[verdict.size] = replace(verdict, latency_us=latency)
        return dict(sorted(summed.items()))

    def _missing(self, uses: Iterable[Use]) -> str:
        """Name the product that a map lacks, and how to know it."""
        for use in uses:
            if self._place(use) is None:
                axis = f"N M={use.tokens} K={use.K.at(0)}"
                if use.K.times:
                    axis = f"K M={use.tokens} N={use.N.at(0)}"
                lack = f"no curve of linear over {axis} {use.dtype}"
                return f"{lack}: {advice(self)}"
        return f"the size was not measured in all products: {advice(self)}"


def prefill_curves(curves: Iterable[Curve]) -> list[Curve]:
    """The curve of each operator, dtype and dim that is most like a model's own prefill call."""
    best: dict[tuple[str, str, str], Curve] = {}
    for curve in sorted(curves, key=lambda curve: curve.unlike_prefill):
        if not curve.is_forced:
            best.setdefault((curve.axis.operator, curve.axis.dtype, curve.axis.dim), curve)
    return [*best.values()]


def with_bound(verdict: SizeVerdict, bound: float, tolerance: float) -> SizeVerdict:
    """Return a verdict as if larger sizes may take ``bound`` times less than they were seen to
    take."""
    if bound < MIN_BOUND or verdict.penalty is None:
        return verdict
    penalty = replace(verdict.penalty, high=significant((1 + verdict.penalty.high) * bound - 1))
    answer = verdict_of(penalty, tolerance)
    if answer == verdict.verdict:
        return replace(verdict, penalty=penalty)
    reason = "the host may hide what is better"
    return replace(verdict, verdict=answer, penalty=penalty, reason=reason, cause="noise")


def column_of(curve: Curve, side: Side, weight: float) -> dict[int, SizeVerdict]:
    """Return a curve's verdicts by the size of the dim, with latencies times ``weight``."""
    column = {}
    for verdict in curve.sizes:
        size, rest = divmod(verdict.size * side.tp - side.others, side.times)
        if rest == 0 and size > 0:
            latency = verdict.latency_us and verdict.latency_us.scaled(weight)
            column[size] = replace(curve.answer(verdict), size=size, latency_us=latency)
    return column


def shipped_maps() -> list[str]:
    """Return the names of the maps that come with gacprof.

    Examples
    --------
    >>> gacprof.shipped_maps()
    ['a100-published', 'cpu-example', 'h100-published', 'h200-measured', 'h200-paper']
    """
    return sorted(path.stem for path in MAPS.glob("*.json"))


def is_map(name_or_path: str | Path) -> bool:
    """Return whether a name is that of a map's file, a run folder or a shipped map, and not a
    GPU's."""
    name, path = str(name_or_path), Path(name_or_path)
    is_run = (path / MAP_FILE).is_file()
    return is_run or "/" in name or path.suffix == ".json" or name in shipped_maps()


def load_map(name_or_path: str | Path) -> CliffMap:
    """Read a cliff map: its curves, safe sizes and cliffs.

    Parameters
    ----------
    name_or_path
        A map's file, a run folder, or the name of a shipped map, such as h100-published.

    Raises
    ------
    MapError
        Where there is no such map, or it holds times of a virtual GPU.

    Examples
    --------
    >>> curve = gacprof.load_map("a100-published").curves[0]
    >>> curve.axis.operator, curve.axis.dim, curve.multiple
    ('attention', 'head_dim', 16)
    >>> curve.by_size[107].verdict
    'misaligned'
    """
    path = Path(name_or_path)
    if path.is_dir():
        path /= MAP_FILE
    elif str(name_or_path) in shipped_maps():
        path = MAPS / f"{name_or_path}.json"
    if not path.is_file():
        shipped = ", ".join(shipped_maps())
        raise MapError(
            f"there is no map {path}: build it by 'gacprof map build RUN', or name one of "
            f"{shipped} (a GPU's name goes to table, diagnose, plan and explain)"
        )
    cliff_map = read_record(path, CliffMap, "gacprof map build RUN")
    cliff_map.check(path)
    return cliff_map
