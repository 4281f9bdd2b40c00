"""Suites: axes to sweep, written as TOML; ``sweeps/quick.toml`` begins with the format."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from gacprof.core.dtypes import compute_dtype
from gacprof.core.errors import GacprofError, MeasurementError
from gacprof.core.files import read_table
from gacprof.core.points import MAX_DIM, Axis, Flag
from gacprof.operators import canonical

SUITES = Path(__file__).parents[1] / "suites"
AUTO_DTYPES = {"cpu": "float32", "cuda": "float16", "virtual": "float16"}
MAX_POINTS = 1_000_000  # three hours, at a hundred points a second

Size = Annotated[int, Field(gt=0, le=MAX_DIM)]


class Range(BaseModel, extra="forbid"):
    """Sizes from ``first`` to ``last``, both included."""

    first: Annotated[Size, Field(alias="from")]
    last: Annotated[Size, Field(alias="to")]
    step: Size = 1


class SweepTable(BaseModel, extra="forbid"):
    """One ``[[sweep]]``."""

    operator: str
    axis: str
    values: Annotated[list[Size | Range], Field(min_length=1)]
    dims: dict[str, Size | list[Size]] = {}
    dtype: str | list[str] = "auto"
    flags: dict[str, Flag | list[Flag]] = {}
    device: Literal["cpu", "cuda"] | None = None

    @property
    def points(self) -> int:
        """The number of points, counted without making any: a short file can ask for billions."""
        settings = [self.dtype, *self.dims.values(), *self.flags.values()]
        sizes = sum(len(choices(value)) for value in self.values)
        return sizes * prod(len(choices(setting)) for setting in settings)

    def axes(self, kind: str) -> Iterator[Axis]:
        """Yield one axis for each combination of the other settings."""
        sizes = sorted(set(chain.from_iterable(map(choices, self.values))))
        settings = choices(self.dtype), combinations(self.dims), combinations(self.flags)
        for name, dims, flags in product(*settings):
            dtype = compute_dtype({"auto": AUTO_DTYPES[kind]}.get(name, name))
            yield complete_axis(Axis(self.operator, self.axis, tuple(sizes), dims, dtype, flags))


class SuiteTable(BaseModel, extra="forbid"):
    """A suite's file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]
    description: str = ""
    budget_s: Annotated[float | None, Field(gt=0)] = None
    sweep: Annotated[list[SweepTable], Field(min_length=1)]


@dataclass(frozen=True)
class Suite:
    """Axes to sweep, no two with the same key. ``budget_s`` ends a sweep, whatever is undecided."""

    name: str
    axes: tuple[Axis, ...]
    budget_s: float | None = None

    @property
    def points(self) -> int:
        return sum(len(axis.sizes) for axis in self.axes)


def load_suite(name_or_path: str | Path, kind: str = "cuda") -> Suite:
    """Read a suite.

    Parameters
    ----------
    name_or_path
        A TOML file, or the name of a shipped suite (:func:`shipped_suites`).
    kind
        The device's: ``cpu``, ``cuda`` or ``virtual``. Sweeps for another kind are left out.

    Raises
    ------
    MeasurementError
        Names the file and the key at fault.

    Examples
    --------
    >>> axis = gacprof.load_suite("quick").axes[0]
    >>> axis.operator, axis.dim, axis.fixed
    ('linear', 'N', {'M': 1, 'K': 1024})
    """
    path = Path(name_or_path)
    if str(path) in shipped_suites():
        path = SUITES / f"{path}.toml"
    if not path.is_file():
        names = ", ".join(shipped_suites())
        raise MeasurementError(f"there is no suite {path}: name a TOML file or {names}")
    device = kind.replace("virtual", "cuda")
    try:
        table = read_table(path, SuiteTable)
        sweeps = [sweep for sweep in table.sweep if sweep.device in (None, device)]
        points = sum(sweep.points for sweep in sweeps)
        if not 0 < points <= MAX_POINTS:
            raise MeasurementError(f"{points:,} points for {device}: 1 to {MAX_POINTS:,} can be")
        axes = merged_axes(chain.from_iterable(sweep.axes(kind) for sweep in sweeps))
    except GacprofError as error:
        text = str(error).removeprefix(f"{path}: ")
        raise MeasurementError(f"{path}: {text}") from None
    return Suite(table.name, axes, table.budget_s)


def shipped_suites() -> list[str]:
    """Return the names of the suites that come with gacprof."""
    return sorted(path.stem for path in SUITES.glob("*.toml"))


def merged_axes(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """Return the axes; those with one key become one axis with the sizes of all."""
    merged: dict[str, Axis] = {}
    for axis in axes:
        sizes = {*axis.sizes, *merged.get(axis.key, axis).sizes}
        merged[axis.key] = replace(axis, sizes=tuple(sorted(sizes)))
    return tuple(merged.values())


def complete_axis(axis: Axis) -> Axis:
    """Spell out all dims and flags. Raises :class:`MeasurementError` where that cannot be."""
    first = canonical(axis.point(axis.sizes[0]))
    canonical(axis.point(axis.sizes[-1]))  # the largest may be over an operator's limit
    fixed = {name: size for name, size in first.dims.items() if name != axis.dim}
    return replace(axis, fixed=fixed, flags=first.flags)


def combinations(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every choice of one value for each setting."""
    for values in product(*map(choices, settings.values())):
        yield dict(zip(settings, values, strict=True))


def choices(setting: Any) -> Sequence[Any]:
    """Return the values that a setting stands for: a list's, a range's, or itself alone."""
    if not isinstance(setting, Range):
        return setting if isinstance(setting, list) else [setting]
    if setting.last < setting.first:
        raise MeasurementError(f"no size lies from {setting.first} to {setting.last}")
    return range(setting.first, setting.last + 1, setting.step)
