"""Which dims take one common size, and what that size may be: the user's constraints and an
engine's demands, for each group of dims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from gacprof.checkpoint.inventory import Dim
from gacprof.core.errors import PlanError
from gacprof.diagnosing.predict import is_number
from gacprof.planning.presets import Requirements
from gacprof.planning.request import Constraints, Pin

UNIFORM = ("none", "module", "role", "kind")
"""Ways to share sizes that have a name; anything else is a pattern over dim names."""


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
