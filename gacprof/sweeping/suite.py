"""Suites: what to sweep, as TOML, checked before anything is measured.

A suite is a list of ``[[sweep]]`` tables, each one axis of one operator::

    name = "quick"

    [timing]                      # all optional
    processes = 3                 # fresh processes that blocks are spread over
    blocks = 12                   # of each curve before anything is decided
    most_blocks = 400             # of a curve that stays undecided
    replicates = 0.25             # the share of dims that have a hidden A/A replicate
    tolerance = 0.02              # the penalty up to which a dim is safe
    budget_s = 55                 # ends the sweep, whatever is undecided then
    reuse_mib = 64                # between two uses of a cold weight's memory

    [[sweep]]
    operator = "linear"
    axis = "K"
    values = [107, { from = 96, to = 128, step = 8 }]
    dims = { M = [1, 1024], N = 1024 }     # lists multiply out
    dtype = "auto"                # float16 on a GPU, float32 on a CPU
    flags = { bias = false }
    device = "cuda"               # optional: only there
    strategy = "adaptive"         # optional: refine where something changes (refine.py)
    weight = 4                    # optional: how often a model runs these; busier curves get more
"""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gacprof import operators
from gacprof.core.dtypes import dtype_named
from gacprof.core.errors import SuiteError, why_unreadable
from gacprof.core.files import read_text
from gacprof.core.points import MAX_DIM, Flag, Point, curve_key
from gacprof.stats.judge import LOOKS

AUTO_DTYPE = {"cuda": "float16", "cpu": "float32"}
USUAL_HALF_WIDTH = 0.018
"""Of penalties after six blocks on a quiet machine (reports/cpu-example)."""
MAX_POINTS = 1_000_000
MAX_TEXT = 4_000_000
"""Characters of a suite's file: a list of a million dims at most."""


class _SuiteModel(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, strict=True, allow_inf_nan=False
    )


class Range(_SuiteModel):
    """Dims ``from`` … ``to``, both included, in steps."""

    first: Annotated[int, Field(alias="from", gt=0)]
    last: Annotated[int, Field(alias="to", gt=0)]
    step: Annotated[int, Field(gt=0)] = 1

    def __iter__(self) -> Iterator[int]:  # type: ignore[override]
        return iter(self.dims)

    @property
    def dims(self) -> range:
        return range(self.first, self.last + 1, self.step)


class Schedule(_SuiteModel):
    """How blocks are dealt out, and when there are enough.

    A curve has ``blocks`` at least; then it goes on, up to ``most_blocks``, while a dim is neither
    safe nor misaligned and the interval of penalties is wider than ``finest``. ``budget_s`` ends
    the whole sweep before that. ``seed`` draws the orders.
    """

    processes: Annotated[int, Field(ge=1, le=100)] = 3
    blocks: Annotated[int, Field(ge=4)] = 12
    most_blocks: Annotated[int, Field(ge=4)] = 400
    replicates: Annotated[float, Field(ge=0, le=1)] = 0.25
    least_replicates: Annotated[int, Field(ge=0)] = 4
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.02
    finest: Annotated[float, Field(gt=0, lt=1)] = 0.004
    reuse_mib: Annotated[int, Field(ge=0)] = 64
    seed: int = 0
    budget_s: Annotated[float | None, Field(gt=0)] = None

    def blocks_until(self, half_width: float, after: int) -> int:
        """Blocks until a curve is decided and each process has added its share, where penalties are
        known to ± ``half_width`` after so many.

        Where all dims are alike it is decided when that is about the tolerance, where some lie
        near it when it is ``finest``: the geometric mean is at most off by the same factor either
        way.
        """
        wanted = after * half_width**2 / (self.finest * self.tolerance / 2)
        looks = (self.blocks << n for n in range(LOOKS))
        decided = next((n for n in looks if n >= wanted), self.most_blocks)
        added = (self.processes - 1) * self.blocks // self.processes
        return min(self.most_blocks, decided + added)

    def replicates_of(self, dims: int) -> int:
        """How many of so many dims have a hidden A/A replicate."""
        return min(dims, max(self.least_replicates, round(self.replicates * dims)))

    @property
    def usual_blocks(self) -> int:
        """Of a curve that was not looked at yet."""
        return self.blocks_until(USUAL_HALF_WIDTH, 6)

    @model_validator(mode="after")
    def _bounds_agree(self) -> Schedule:
        if self.most_blocks < self.blocks:
            raise ValueError(f"most_blocks ({self.most_blocks}) is below blocks ({self.blocks})")
        return self


@dataclass(frozen=True)
class CurvePlan:
    """One swept axis with all else fixed: what is measured together in blocks.

    ``points`` by dim, ascending. ``weight`` is how much its time counts beside other curves.
    Of the ``refined`` dims only some are measured (:mod:`gacprof.sweeping.refine`).
    """

    axis: str
    points: Mapping[int, Point]
    weight: float = 1.0
    refined: frozenset[int] = frozenset()

    @property
    def dims(self) -> list[int]:
        return list(self.points)

    @property
    def key(self) -> str:
        """Its identity: ``linear N K=1024 M=256 bfloat16 bias=False``."""
        return curve_key(next(iter(self.points.values())), self.axis)


@contextmanager
def _as_value_error() -> Iterator[None]:
    """pydantic adds the key to these alone."""
    try:
        yield
    except SuiteError as error:
        raise ValueError(str(error)) from None


class Sweep(_SuiteModel):
    """One axis of one operator, at every combination of the other settings."""

    operator: str
    axis: str
    values: list[Annotated[int, Field(gt=0)] | Range]
    dims: dict[str, int | list[int]] = Field(default_factory=dict)
    dtype: str | list[str] = "auto"
    flags: dict[str, Flag | list[Flag]] = Field(default_factory=dict)
    device: Literal["cpu", "cuda"] | None = None
    strategy: Literal["exhaustive", "adaptive"] = "exhaustive"
    weight: Annotated[float, Field(gt=0)] = 1.0

    @field_validator("dtype")
    @classmethod
    def _dtype_by_its_full_name(cls, given: str | list[str]) -> str | list[str]:
        with _as_value_error():
            if isinstance(given, str):
                return dtype_named(given)
            return [dtype_named(name) for name in given]

    @model_validator(mode="after")
    def _names_are_known(self) -> Sweep:
        with _as_value_error():
            kind = operators.get(self.operator)
        if self.axis not in kind.dims:
            raise ValueError(
                f"axis '{self.axis}' is no dim of '{self.operator}' (it has {', '.join(kind.dims)})"
            )
        if self.axis in self.dims:
            raise ValueError(f"axis '{self.axis}' stands in 'dims' too; give it in 'values' only")
        _check_values(self.axis, self.values)
        settings = [self.dtype, *self.dims.values(), *self.flags.values()]
        combined = prod(len(value) for value in settings if isinstance(value, list))
        if combined * len(self.axis_values) > MAX_POINTS:
            raise ValueError(
                f"{combined:,} combinations of settings at {len(self.axis_values):,} values are "
                f"more than {MAX_POINTS:,} points: split the suite"
            )
        return self

    @property
    def axis_values(self) -> list[int]:
        return sorted({d for v in self.values for d in (v if isinstance(v, Range) else (v,))})

    def curves(self, device_kind: str) -> Iterator[dict[int, Point]]:
        """The points by their place on the axis, for each combination of the other settings."""
        dtypes = self.dtype if isinstance(self.dtype, list) else [self.dtype]
        for dtype in dtypes:
            real = AUTO_DTYPE.get(device_kind, "float32") if dtype == "auto" else dtype
            for dims in _combinations(self.dims):
                for flags in _combinations(self.flags):
                    yield {
                        d: operators.point(self.operator, dims | {self.axis: d}, real, flags)
                        for d in self.axis_values
                    }


class Suite(_SuiteModel):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]
    description: str = ""
    timing: Schedule = Field(default_factory=Schedule)
    sweep: Annotated[list[Sweep], Field(min_length=1)]

    def plain(self) -> dict[str, Any]:
        """The suite as plain data, every key spelt out."""
        return self.model_dump(mode="json", by_alias=True)

    def exhaustive(self) -> Suite:
        """The same suite with every point of every sweep measured."""
        sweeps = [s.model_copy(update={"strategy": "exhaustive"}) for s in self.sweep]
        return self.model_copy(update={"sweep": sweeps})

    @property
    def hash(self) -> str:
        text = json.dumps(self.plain(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def points(self, device_kind: str) -> dict[Point, tuple[str, ...]]:
        """Each distinct point with the axes that it is swept on. Raises :class:`SuiteError`."""
        found: dict[Point, tuple[str, ...]] = {}
        for sweep, points in self._curves(device_kind):
            for point in points.values():
                axes = found.get(point, ())
                found[point] = axes if sweep.axis in axes else (*axes, sweep.axis)
        return found

    def _curves(self, device_kind: str) -> Iterator[tuple[Sweep, dict[int, Point]]]:
        """The curves of each sweep. Raises :class:`SuiteError` that names the sweep at fault."""
        found: set[Point] = set()
        for number, sweep in enumerate(self.sweep):
            if sweep.device not in (None, device_kind):
                continue
            try:
                for points in sweep.curves(device_kind):
                    found.update(points.values())
                    if len(found) > MAX_POINTS:
                        raise SuiteError(f"more than {MAX_POINTS} points; split the suite")
                    yield sweep, points
            except SuiteError as error:
                raise SuiteError(f"suite '{self.name}': sweep[{number}]: {error}") from None
        if not found:
            raise SuiteError(f"suite '{self.name}' holds nothing for a {device_kind} device")

    def curves(self, device_kind: str) -> list[CurvePlan]:
        """What blocks are made of: sweeps over one axis with all else equal are one curve, with
        the dims of both. A single point is left to another curve that holds it, if one does.

        Raises :class:`SuiteError`.
        """
        merged: dict[str, CurvePlan] = {}
        for sweep, points in self._curves(device_kind):
            refined = frozenset(points if sweep.strategy == "adaptive" else ())
            plan = CurvePlan(sweep.axis, points, sweep.weight, refined)
            known = merged.get(plan.key)
            merged[plan.key] = plan if known is None else _together(known, plan)
        several = [plan for plan in merged.values() if len(plan.points) > 1]
        held = {point for plan in several for point in plan.points.values()}
        alone = [plan for plan in merged.values() if len(plan.points) == 1]
        return several + [plan for plan in alone if not held & set(plan.points.values())]


def _together(a: CurvePlan, b: CurvePlan) -> CurvePlan:
    points = dict(sorted({**a.points, **b.points}.items()))
    whole = (a.points.keys() - a.refined) | (b.points.keys() - b.refined)
    return CurvePlan(a.axis, points, max(a.weight, b.weight), (a.refined | b.refined) - whole)


def load_suite(name: str | Path) -> Suite:
    """A suite by path, or by the name of one that ships with the package (``quick``).

    Raises :class:`SuiteError` that names the file and the key at fault.
    """
    source, text = _find(str(name))
    if len(text) > MAX_TEXT:
        raise SuiteError(f"{source} has more than {MAX_TEXT:,} characters: split the suite")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SuiteError(f"{source} is not valid TOML: {error}") from None
    except (RecursionError, ValueError) as error:  # nested too deep, a number of 5,000 digits
        raise SuiteError(f"{source} cannot be read as TOML: {error}") from None
    return parse_suite(data, source)


def parse_suite(data: Mapping[str, Any], source: str) -> Suite:
    """A suite from plain data. Raises :class:`SuiteError` that names the source and the key."""
    try:
        return Suite.model_validate(data)
    except ValidationError as error:
        raise SuiteError(f"{source}: {_first_problem(error, data)}") from None


def shipped_suites() -> list[str]:
    folder = resources.files("gacprof") / "suites"
    return sorted(f.name[: -len(".toml")] for f in folder.iterdir() if f.name.endswith(".toml"))


def _find(name: str) -> tuple[str, str]:
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        try:
            return str(path), read_text(path)
        except (OSError, UnicodeDecodeError) as error:
            raise SuiteError(f"cannot read the suite {path}: {why_unreadable(error)}") from None
    if name not in shipped_suites():
        raise SuiteError(
            f"no suite '{name}': give a .toml file or one of {', '.join(shipped_suites())}"
        )
    text = (resources.files("gacprof") / "suites" / f"{name}.toml").read_text(encoding="utf-8")
    return f"suite '{name}'", text


def _check_values(axis: str, values: Sequence[int | Range]) -> None:
    """Some, and not too many: looked at before a range is spelt out, for that takes memory.
    Raises ``ValueError``."""
    ranges = [value for value in values if isinstance(value, Range)]
    count = len(values) - len(ranges)
    for each in ranges:
        if each.last > MAX_DIM:
            raise ValueError(
                f"axis '{axis}': a range to {each.last}, but the largest dim is {MAX_DIM}"
            )
        count += len(each.dims)
    if count > MAX_POINTS:
        raise ValueError(
            f"axis '{axis}' has {count} values, more than {MAX_POINTS}: use a larger step"
        )
    if not count:
        empty = [f"from = {r.first} is above to = {r.last}" for r in ranges]
        raise ValueError(f"axis '{axis}' has no values{': ' if empty else ''}{', '.join(empty)}")


def _combinations(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    names = list(settings)
    choices = [value if isinstance(value, list) else [value] for value in settings.values()]
    for values in itertools.product(*choices):
        yield dict(zip(names, values, strict=True))


def _first_problem(error: ValidationError, data: Mapping[str, Any]) -> str:
    # An unknown key comes before the one that is missing because of it; that a range is no number
    # comes after what is wrong with the range.
    problems = sorted(
        error.errors(),
        key=lambda e: (e["type"] != "extra_forbidden", isinstance(e["input"], Mapping)
                       and e["type"] == "int_type"),
    )  # fmt: skip
    first = problems[0]
    where, given = _place(first["loc"], data)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = f"no such key here (there are {', '.join(_keys_at(first['loc']))})"
    elif first["type"] == "greater_than" and isinstance(given, int | float):
        message = f"{given} must be greater than {first['ctx']['gt']}"
    return f"{where}: {message}" if where else message


def _keys_at(loc: tuple[int | str, ...]) -> list[str]:
    """The keys that a suite knows beside the one at ``loc``."""
    kind: type[_SuiteModel] = Suite
    if "timing" in loc[:-1]:
        kind = Schedule
    elif "values" in loc[:-1]:
        kind = Range
    elif "sweep" in loc[:-1]:
        kind = Sweep
    return [field.alias or name for name, field in kind.model_fields.items()]


def _place(loc: tuple[int | str, ...], data: Any) -> tuple[str, Any]:
    """(``sweep[0].values[1]``, what stands there). What the data has no key for is pydantic's
    name of one of several types, except at the end: there a key is missing or unknown."""
    where = ""
    for number, part in enumerate(loc):
        if isinstance(data, list) and isinstance(part, int) and part < len(data):
            where, data = f"{where}[{part}]", data[part]
        elif isinstance(data, Mapping) and (part in data or number == len(loc) - 1):
            where, data = f"{where}.{part}" if where else str(part), data.get(str(part))
    return where, data
