"""What a plan is asked for: objective, budgets, limits, and what the user holds fixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal

from gacprof.checkpoint.inventory import Dim
from gacprof.core.errors import PlanError
from gacprof.diagnosing.predict import Tokens, is_number
from gacprof.planning.presets import Requirements

WINDOW = 0.25
"""How far around a dim's size other sizes are offered, as a fraction."""

UNIFORM = ("none", "module", "role", "kind")
"""Ways to share sizes that have a name; anything else is a pattern over dim names."""

Pin = int | Literal["keep"]


@dataclass(frozen=True)
class Constraints:
    """What the user holds fixed. Patterns are shell-style, over dim names.

    ``uniform`` shares one size over the dims of one weight (``module``: PaLU's groups), of a
    role in all layers (``role``), of a kind (``kind``), or over all that match a pattern
    (``*:width``: one width for a plain config); it may be several of these, the first that
    matches a dim counts. ``pinned`` maps patterns to sizes, or to ``"keep"`` for the size that
    a dim has; a pin is obeyed whether or not the map calls the size safe. ``least`` and
    ``most`` bound sizes, of all patterns that match a dim; they reach beyond the window.
    ``untouched`` lets dims stay as they are, misaligned or not, where that is worth more;
    ``fuse`` offers the dense weight in place of a factor pair, as far as ``most`` allows its rank,
    or with ``dense`` whatever ``most`` says. ``preset`` names an engine and how it is to
    serve the model (``vllm,tp=4,marlin``, :mod:`gacprof.planning.presets`): only sizes that it
    takes are offered.
    """

    uniform: str | Sequence[str] = "none"
    pinned: Mapping[str, Pin] | None = None
    least: Mapping[str, int] | None = None
    most: Mapping[str, int] | None = None
    untouched: bool = False
    fuse: bool = True
    preset: str | None = None
    dense: bool = False


@dataclass(frozen=True)
class PlanRequest:
    """What a plan is asked for; all limits that are given hold.

    ``budget`` is a fraction of the dense size of the planned weights, ``budget_parameters``
    a count for the whole checkpoint, ``memory`` the bytes of all its weights as stored. With
    none, memory is not limited, and nothing is lost unless a limit on time asks for it.
    ``quality_floor`` is the least mean share of energy kept, ``latency_limit_us`` the most time
    that the workload may take in the planned weights' products, all of them resized together.
    ``tokens`` and ``dtype`` are the workload; ``scores`` are importances by dim name, for the
    objective ``gac``. ``time_limit`` (seconds) ends a search early with its best plan.

    Raises :class:`PlanError` for a value that is out of range or no number.
    """

    objective: str = "energy"
    budget: float | None = None
    budget_parameters: int | None = None
    memory: int | None = None
    tokens: Tokens | None = None
    dtype: str | None = None
    window: float = WINDOW
    constraints: Constraints = field(default_factory=Constraints)
    scores: Mapping[str, float] | None = None
    quality_floor: float | None = None
    latency_limit_us: float | None = None
    time_limit: float | None = None

    def __post_init__(self) -> None:
        for name, (in_range, wanted) in _RANGES.items():
            number = getattr(self, name)
            if number is None and name != "window":
                continue
            if not is_number(number):
                raise PlanError(f"{name} is {number!r}: it must be a number")
            if not in_range(number):
                raise PlanError(f"the {name} is {number}: it must be {wanted}")
        if self.budget is not None and self.budget_parameters is not None:
            raise PlanError("give either a budget fraction or a number of parameters, not both")

    @property
    def has_budget(self) -> bool:
        return any(b is not None for b in (self.budget, self.budget_parameters, self.memory))

    @property
    def least_kept(self) -> float | None:
        """The quality floor: where latency alone is asked for and nothing limits it, all of it."""
        fastest = self.objective == "latency" and not self.has_budget
        return 1.0 if fastest and self.quality_floor is None else self.quality_floor

    @property
    def notes(self) -> list[str]:
        """What the user may not have meant."""
        notes = []
        if self.least_kept != self.quality_floor:
            notes.append("no quality floor was given: nothing is cut (--quality-floor allows cuts)")
        if self.budget is not None and self.budget > 1:
            meant = f": was {self.budget / 100:g} meant?" if 2 <= self.budget <= 100 else ""
            notes.append(
                f"the budget {self.budget:g} is above 1, the size of the dense weights{meant}"
            )
        return notes


_POSITIVE: tuple[Callable[[float], bool], str] = (lambda x: 0 < x < float("inf"), "positive")
_RANGES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "budget": (_POSITIVE[0], "a positive fraction of the dense size"),
    "budget_parameters": _POSITIVE,
    "memory": _POSITIVE,
    "window": (lambda x: 0 <= x < float("inf"), "a share of a dim, such as 0.25"),
    "quality_floor": (lambda x: 0 <= x <= 1, "a share from 0 to 1"),
    "latency_limit_us": _POSITIVE,
    "time_limit": (lambda x: x > 0, "positive"),
}
"""Field → which numbers it may be, and that in words."""


@dataclass(frozen=True)
class Bounds:
    """What one size may be, for a class of dims: ``pin`` exactly, or from ``least`` to ``most`` a
    multiple of ``multiple``, which ``demanded`` says who asks for."""

    pin: int | None = None
    least: int = 1
    most: int | None = None
    multiple: int = 1
    demanded: str = ""

    def allow(self, size: int) -> bool:
        if self.pin is not None:
            return size == self.pin
        return self.within(size) and size % self.multiple == 0

    def within(self, size: int) -> bool:
        """Whether the size is neither below ``least`` nor above ``most``."""
        return self.least <= size and (self.most is None or size <= self.most)

    def __str__(self) -> str:
        if self.pin is not None:
            return f"pinned to {self.pin}"
        low = f"at least {self.least}" if self.least > 1 else ""
        high = f"at most {self.most}" if self.most is not None else ""
        step = f"a multiple of {self.multiple} ({self.demanded})" if self.multiple > 1 else ""
        return " and ".join(part for part in (low, high, step) if part)


def grouped(
    dims: Sequence[Dim], constraints: Constraints, required: Requirements | None = None
) -> list[tuple[tuple[Dim, ...], Bounds]]:
    """Dims that take one common size, together, and what is left to them; in the order given.
    ``required`` is what an engine asks of them.

    Raises :class:`PlanError` for constraints that contradict each other, match no dim or are
    none.
    """
    _check_patterns(dims, constraints)
    given = constraints.uniform
    ways = [given] if isinstance(given, str) else list(given)
    for way in ways:
        _check_way(way, dims)
    groups: dict[object, list[Dim]] = {}
    for dim in dims:
        groups.setdefault(_group(dim, ways), []).append(dim)
    return [(tuple(group), bounds_of(group, constraints, required)) for group in groups.values()]


def _check_way(way: str, dims: Sequence[Dim]) -> None:
    if way in UNIFORM:
        return
    if not any(mark in way for mark in "*?[:"):
        raise PlanError(
            f"uniform is {way!r}: it must be one of {', '.join(UNIFORM)}, or a pattern over dim "
            "names such as '*:width'"
        )
    matched = [dim for dim in dims if fnmatchcase(dim.name, way)]
    if not matched:
        raise _no_match("uniform", way, dims)
    kinds = sorted({dim.kind for dim in matched})
    if len(kinds) > 1:
        raise PlanError(
            f"the pattern '{way}' would share one size between {' and '.join(kinds)}s: name one "
            f"kind, such as '*:{kinds[0]}*'"
        )


def _group(dim: Dim, ways: Sequence[str]) -> object:
    for way in ways:
        if way == "module":
            return "module", dim.kind, dim.name.partition(":")[0]
        if way == "role":
            return "role", dim.kind, dim.role
        if way == "kind":
            return "kind", dim.kind
        if way != "none" and fnmatchcase(dim.name, way):
            return "pattern", way
    return "alone", dim.name


def _check_patterns(dims: Sequence[Dim], constraints: Constraints) -> None:
    """Raises :class:`PlanError` for a pattern of no adjustable dim, or a size that is none."""
    for what in ("pinned", "least", "most"):
        for pattern, size in (getattr(constraints, what) or {}).items():
            whole = is_number(size, int) and size > 0
            if not whole and (what, size) != ("pinned", "keep"):
                raise PlanError(
                    f"the constraint '{what}' gives '{pattern}' the size {size!r}: sizes are "
                    "positive whole numbers"
                )
            if not any(fnmatchcase(dim.name, pattern) for dim in dims):
                raise _no_match(what, pattern, dims)


def _no_match(what: str, pattern: str, dims: Sequence[Dim]) -> PlanError:
    like = f"; dims are named like '{dims[0].name}'" if dims else ""
    return PlanError(f"the constraint '{what}' names '{pattern}', which is no dim here{like}")


def bounds_of(
    members: Sequence[Dim], constraints: Constraints, required: Requirements | None = None
) -> Bounds:
    """What is left to dims that share one size.

    Raises :class:`PlanError` for constraints that contradict each other, naming the dims.
    """
    pins: dict[int, str] = {}
    least, most = 1, None
    for dim in members:
        for size in _matching(dim, constraints.pinned):
            pins.setdefault(dim.size if size == "keep" else int(size), dim.name)
        least = max([least, *map(int, _matching(dim, constraints.least))])
        upper = list(map(int, _matching(dim, constraints.most)))
        most = min([*upper, *([] if most is None else [most])], default=None)
    name = members[0].name
    if len(pins) > 1:
        (one, first), (two, second), *_ = pins.items()
        which = first if first == second else f"{first} and {second}, which share one size,"
        raise PlanError(f"{which} cannot be pinned to {one} and to {two}")
    asked = (required or Requirements()).of(members)
    demanded = f"{required.preset.text}: {asked.reasons}" if required and required.preset else ""
    free = Bounds(None, least, most, asked.multiple, demanded)
    if most is not None and most // asked.multiple * asked.multiple < least:
        raise PlanError(f"{name} cannot be {free}")
    pin = next(iter(pins), None)
    if pin is not None and not free.allow(pin):
        raise PlanError(f"{name} is pinned to {pin} and must be {free}")
    return replace(free, pin=pin)


def _matching(dim: Dim, patterns: Mapping[str, Pin] | Mapping[str, int] | None) -> list[Pin]:
    return [size for name, size in (patterns or {}).items() if fnmatchcase(dim.name, name)]
