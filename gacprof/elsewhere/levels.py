"""The time of a matrix product between sizes that others measured, as an interval.

Times are interpolated in the logarithms of M, N, K and of the time itself, and never across a known
step: where both m and m + 1 were measured, a tile ends at m. A size outside the grid is taken by at
most one grid step. The interval is from two errors, both measured on the same tables: what leaving
a size out and predicting it from its neighbours errs by, and how far frameworks differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, hypot, log, sqrt

import numpy as np

from gacprof.cliffmap.estimate import NORMAL_90, Estimate, Interval
from gacprof.core.dtypes import full_name
from gacprof.core.errors import MapError
from gacprof.elsewhere.data import Surface

QUANTILE = 90
"""Errors are those that 90 % of the left-out sizes stay below."""
DIFFER = 0.59
"""How far engines differ where they cannot be compared, as one alone has the data type: the largest
90th percentile of any GPU in bf16, fp8 and nvfp4 (benchmarks/elsewhere.py). Those of fp8_block run
kernels of their own and differ by more."""
ROWS = (16, 256)
"""Errors are apart for products of at most 16 rows, at most 256, and more: memory, launches and
arithmetic bound them."""
NAMES = {"bfloat16": "bfloat16", "float16": "bfloat16", "float8_e4m3": "fp8",
         "float8_e4m3fn": "fp8", "int8": "sq"}  # fmt: skip
"""Our data types by the tables' names. 16-bit types take the same kernels, at the same rate."""
OUR_NAMES = {"bfloat16": "bfloat16", "fp8": "float8_e4m3", "sq": "int8"}
"""The rules' data types by the tables' names; of others rules say nothing."""


@dataclass(frozen=True)
class GridPlace:
    """Where a size lies on an axis: between ``low`` and ``high``, or beyond the grid's end."""

    low: int
    high: int
    weight: float
    beyond: bool = False


@dataclass(frozen=True)
class Level:
    """A time with what it is from. ``left_out`` and ``differ`` are the relative errors (of the
    logarithm) from leaving sizes out, and between frameworks."""

    us: float
    left_out: float
    differ: float
    sources: tuple[str, ...]

    @property
    def estimate(self) -> Estimate:
        own = self.us * exp(-self.left_out), self.us * exp(self.left_out)
        error = self.us * hypot(self.left_out, self.differ) / NORMAL_90
        return Estimate(self.us, "", False, error**2, own=own, shared=self.differ)

    @property
    def time(self) -> Interval:
        found = self.estimate.interval
        assert found is not None
        return found


class Levels:
    """The times of one GPU's matrix products in one data type.

    ``engine`` is a framework of the tables (``vllm``); without one, the median of all counts, and
    how far engines are from it is an error. Of one engine that error is ``repeated``, by class of
    rows: how far several of them are from each other in calls of one library.
    Raises :class:`MapError` for a data type or an engine that is not there, naming those that are.
    """

    def __init__(
        self,
        surfaces: Sequence[Surface],
        dtype: str,
        engine: str | None = None,
        repeated: Sequence[float] | None = None,
    ) -> None:
        named = table_dtype(dtype)
        alike = [s for s in surfaces if s.dtype == named]
        self.all = [without_host(s, alike) for s in alike]
        of_engine = [s for s in surfaces if engine in (None, s.framework)]
        self.used = [s for s in self.all if engine in (None, s.framework)]
        if not of_engine:
            there = _listed(s.framework for s in surfaces)
            raise MapError(f"no engine '{engine}' was measured: there are {there} (--engine)")
        if not self.used:
            where = f" in {engine}" if engine else ""
            there = _listed(s.dtype for s in of_engine)
            raise MapError(f"no times of {dtype}{where} were measured: there are {there} (--dtype)")
        self.dtype, self.engine = named, engine
        self._repeated = repeated if engine else None
        grids = [set(map(int, s.m)) for s in surfaces]
        self.steps = sorted({m for grid in grids for m in grid if m > 16 and m + 1 in grid}
                            | {16 for grid in grids if 17 in grid})  # fmt: skip
        self._logs = {s.framework: np.log(s.latency_us) for s in self.used}
        self._by_host = {
            s.framework: s.m[
                np.isnan(s.latency_us).sum((1, 2)) > np.isnan(b.latency_us).sum((1, 2))
            ]
            for s, b in zip(self.all, alike, strict=True)
        }
        self._known: dict[tuple[int, int, int], Level | str] = {}

    def at(self, m: int, n: int, k: int) -> Level | str:
        """The level of y[m, n] = x[m, k] · Wᵀ, or why there is none."""
        key = (m, n, k)
        if key not in self._known:
            self._known[key] = self._at(m, n, k)
        return self._known[key]

    def _at(self, m: int, n: int, k: int) -> Level | str:
        found: dict[str, float] = {}
        errors, why = [], ""
        for surface in self.used:
            places = self._places(surface, {"M": m, "N": n, "K": k})
            if isinstance(places, str):
                why = places
                continue
            value = _interpolated(self._logs[surface.framework], places)
            if value is None:
                by_host = m in self._by_host.get(surface.framework, ())
                why = BY_HOST if by_host else "is not among what was measured"
                why = f"M={m}, N={n}, K={k} {why}"
                continue
            found[f"{surface.framework} {surface.version}"] = value
            errors.append(self._left_out(surface, m, places))
        if not found:
            return why
        if max(errors) == float("inf"):
            return "too few sizes were measured to say how sure a time between them is"
        middle, left_out = float(np.median(list(found.values()))), max(errors)
        differ = self.differ[_rows(m)]
        apart = max(abs(each - middle) for each in found.values())
        if apart > hypot(left_out, differ):  # engines are further from each other here than usual
            differ = sqrt(apart**2 - left_out**2)
        return Level(exp(middle), left_out, differ, tuple(sorted(found)))

    def _places(self, surface: Surface, sizes: Mapping[str, int]) -> list[GridPlace] | str:
        places = []
        for axis, grid in zip("MNK", (surface.m, surface.n, surface.k), strict=True):
            size = sizes[axis]
            place = _place(grid, size)
            if place is None:
                return f"{axis}={size} is outside what was measured ({grid[0]} to {grid[-1]})"
            low, high = int(grid[place.low]), int(grid[place.high])
            if axis == "M" and 0 < place.weight < 1 and any(low <= s < high for s in self.steps):
                return f"M={size} lies beside a step that was measured, between {low} and {high}"
            places.append(place)
        return places

    def _left_out(self, surface: Surface, m: int, places: Sequence[GridPlace]) -> float:
        """The errors of the axes that were interpolated, together."""
        errors = self.errors[surface.framework][_rows(m)]
        return hypot(*(
            errors[axis][place.beyond]
            for axis, place in zip("MNK", places, strict=True)
            if place.weight not in (0.0, 1.0)
        ))  # fmt: skip

    def error(self, m: int) -> tuple[float, float] | None:
        """At so many rows: what sizes of N and K between measured ones err by, and how far
        frameworks differ; None where too few were measured to say."""
        found = [self.errors[s.framework][_rows(m)] for s in self.used]
        worst = max(hypot(one["N"][0], one["K"][0]) for one in found)
        return None if worst == float("inf") else (worst, self.differ[_rows(m)])

    @cached_property
    def errors(self) -> dict[str, list[dict[str, tuple[float, float]]]]:
        """By framework and class of rows, for each axis: the errors between and beyond sizes."""
        return {s.framework: [self._errors(s, i) for i in range(len(ROWS) + 1)] for s in self.used}

    def _errors(self, surface: Surface, rows: int) -> dict[str, tuple[float, float]]:
        found = {}
        for i, axis in enumerate("MNK"):
            between, beyond = left_out(surface, i, rows)
            found[axis] = _quantile(between), _quantile(beyond)
        return found

    @cached_property
    def differ(self) -> list[float]:
        """By class of rows, how far frameworks are from their median."""
        return list(self._repeated or apart(self.all))


def apart(surfaces: Sequence[Surface]) -> list[float]:
    """By class of rows, how far frameworks are from their median at one size; :data:`DIFFER` where
    one alone was measured."""
    errors = [differences(surfaces, rows) for rows in range(len(ROWS) + 1)]
    return [_quantile(each) if each.size else DIFFER for each in errors]


BY_HOST = "was measured where the host bounds the time, whatever the size"
HOST_TIMES = 5.0
"""A time so often that of other engines, over a factor of :data:`HOST_BYTES` of weights the same
within :data:`HOST_FLAT`, is the host's: vLLM's fp8_block on H100 takes 57 to 65 µs at few rows
where others take 5 (aiconfigurator-core 0.12.0)."""
HOST_BYTES, HOST_FLAT = 16, 1.25


def _floor(surface: Surface, m: int) -> float:
    """What a tenth of the sizes take at most at so many rows; NaN where none was measured."""
    times = surface.latency_us[surface.m == m]
    times = times[np.isfinite(times)]
    return float(np.percentile(times, 10)) if times.size else float("nan")


def without_host(surface: Surface, alike: Sequence[Surface]) -> Surface:
    """The surface without the times that the host bounds, beside those of other engines."""
    others = [s for s in alike if s.framework != surface.framework]
    kept = surface.latency_us.copy()
    sizes = np.multiply.outer(surface.n, surface.k)
    for i, m in enumerate(surface.m):
        floor = _floor(surface, int(m))
        floors = [f for f in (_floor(s, int(m)) for s in others) if np.isfinite(f)]
        if not floors or not floor >= HOST_TIMES * float(np.median(floors)):
            continue
        flat = sizes[surface.latency_us[i] <= HOST_FLAT * floor]
        if flat.max() >= HOST_BYTES * flat.min():
            kept[i][sizes <= flat.max()] = np.nan
    return replace(surface, latency_us=kept)


def table_dtype(dtype: str) -> str:
    """The tables' name of a data type by any name."""
    full = full_name(dtype)
    return NAMES.get(full, full)


def left_out(surface: Surface, axis: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """What predicting measured sizes from others errs by, |ln predicted − ln measured|: between
    the two neighbours, and beyond two smaller ones. ``axis`` is 0 (M), 1 (N) or 2 (K).

    Of M only the ends of tiles are left out: m where m + 1 was measured too.
    """
    grids = [surface.m, surface.n, surface.k]
    logs, m = np.log(surface.latency_us), surface.m
    ends = ~np.isin(m - 1, m) | (m <= 16)
    if axis == 0:
        keep = ends
        inside = np.array([_rows(int(size)) == rows for size in m[ends]])
    else:
        keep = np.array([_rows(int(size)) == rows for size in m])
    logs, grids[0] = logs[keep], m[keep]
    lines, x = np.moveaxis(logs, axis, 0), np.log(grids[axis].astype(float))
    if len(x) < 3 or not lines.size:
        return np.array([]), np.array([])
    shape = (-1,) + (1,) * (lines.ndim - 1)
    inner = ((x[1:-1] - x[:-2]) / (x[2:] - x[:-2])).reshape(shape)
    between = np.abs((1 - inner) * lines[:-2] + inner * lines[2:] - lines[1:-1])
    outer = ((x[2:] - x[:-2]) / (x[1:-1] - x[:-2])).reshape(shape)
    beyond = np.abs((1 - outer) * lines[:-2] + outer * lines[1:-1] - lines[2:])
    if axis == 0:
        between, beyond = between[inside[1:-1]], beyond[inside[2:]]
    return between[np.isfinite(between)], beyond[np.isfinite(beyond)]


def differences(surfaces: Sequence[Surface], rows: int) -> np.ndarray:
    """|ln time − ln median over frameworks| at the sizes that at least two frameworks have."""
    axes = [sorted({int(v) for s in surfaces for v in getattr(s, axis)}) for axis in "mnk"]
    axes[0] = [m for m in axes[0] if _rows(m) == rows]
    shape = [len(axis) for axis in axes]
    stacked = np.full([len(surfaces), *shape], np.nan)
    for i, surface in enumerate(surfaces):
        common = [
            np.intersect1d(axis, grid, return_indices=True)[1:]
            for axis, grid in zip(axes, (surface.m, surface.n, surface.k), strict=True)
        ]
        here, there = (np.ix_(*(pair[j] for pair in common)) for j in (0, 1))
        stacked[i][here] = np.log(surface.latency_us[there])
    stacked = stacked.reshape(len(surfaces), -1)
    shared = stacked[:, np.isfinite(stacked).sum(axis=0) > 1]
    if not shared.size:
        return np.array([])
    apart = np.abs(shared - np.nanmedian(shared, axis=0))
    return apart[np.isfinite(apart)]


def _place(grid: np.ndarray, size: int) -> GridPlace | None:
    """None where the size is further outside than the grid's last step."""
    i = int(np.searchsorted(grid, size))
    if i < len(grid) and grid[i] == size:
        return GridPlace(i, i, 0.0)
    if len(grid) < 2 or size < 1:
        return None
    beyond = i in (0, len(grid))
    first = min(max(i - 1, 0), len(grid) - 2)
    low, high = float(grid[first]), float(grid[first + 1])
    weight = log(size / low) / log(high / low)
    return GridPlace(first, first + 1, weight, beyond) if -1 <= weight <= 2 else None


def _interpolated(logs: np.ndarray, places: Sequence[GridPlace]) -> float | None:
    """The logarithm at these places; None where a corner was not measured."""
    block = logs
    for place in places:
        low = block[place.low]
        block = low if place.low == place.high else (
            (1 - place.weight) * low + place.weight * block[place.high]
        )  # fmt: skip
    return float(block) if np.isfinite(block) else None


def _rows(m: int) -> int:
    return sum(m > most for most in ROWS)


def _quantile(errors: np.ndarray) -> float:
    """Infinite where nothing can be left out: the bounds are open then."""
    return float(np.percentile(errors, QUANTILE)) if errors.size else float("inf")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))
