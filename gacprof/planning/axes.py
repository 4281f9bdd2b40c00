"""Dims that take one common size: an axis of the choice, and what the user and an engine leave to
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from gacprof.checkpoint.inventory import Dim
from gacprof.core.errors import PlanError
from gacprof.diagnosing.predict import is_number
from gacprof.planning.request import Constraints, Pin
from gacprof.planning.requirements import Requirements

Dims = tuple[Dim, ...]
Size = int | None
"""None: the factor pair is multiplied out to one dense weight, and its rank is gone."""
UNIFORM = ("none", "module", "role", "kind")
"""Ways to share sizes that have a name; anything else is a pattern over dim names."""


@dataclass(frozen=True)
class Bounds:
    """What one size may be: ``pin`` exactly, or from ``least`` to ``most`` a multiple of
    ``multiple``, which ``demanded`` says who asks for."""

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


@dataclass(frozen=True)
class SizeAxis:
    """Dims that take one size. ``sizes`` are on offer, ascending, and None last; ``held`` says why
    there is no choice (nothing safe is known). All of an axis follows from ``like``, which equal
    experts share; None for an axis of its own."""

    members: Dims
    bounds: Bounds
    sizes: tuple[Size, ...] = ()
    held: str = ""
    like: object = None

    @property
    def name(self) -> str:
        first = self.members[0].name
        return first if len(self.members) == 1 else f"{first} and {len(self.members) - 1} more"

    @property
    def now(self) -> int:
        """The largest of their sizes."""
        return max(dim.size for dim in self.members)

    @property
    def alike(self) -> bool:
        return all(dim.size == self.now for dim in self.members)

    @property
    def free(self) -> bool:
        """Whether it decides anything."""
        return len(self.sizes) > 1 or None in self.sizes

    @property
    def may_stay(self) -> bool:
        """Whether the size that they have is allowed."""
        return self.alike and self.bounds.allow(self.now)

    @property
    def shared(self) -> tuple[int, ...]:
        """Sizes that were measured of one of several dims, and may be looked up for another."""
        return tuple(s for s in self.sizes if s is not None) if len(self.members) > 1 else ()


def grouped(
    dims: Sequence[Dim], constraints: Constraints, required: Requirements | None = None
) -> list[tuple[Dims, Bounds]]:
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
    kinds = sorted({dim.kind for dim in dims if fnmatchcase(dim.name, way)})
    if not kinds:
        raise _no_match("uniform", way, dims)
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
    least, most = [1], list[int]()
    for dim in members:
        for size in _matching(dim, constraints.pinned):
            pins.setdefault(dim.size if size == "keep" else int(size), dim.name)
        least += map(int, _matching(dim, constraints.least))
        most += map(int, _matching(dim, constraints.most))
    name = members[0].name
    if len(pins) > 1:
        (one, first), (two, second), *_ = pins.items()
        which = first if first == second else f"{first} and {second}, which share one size,"
        raise PlanError(f"{which} cannot be pinned to {one} and to {two}")
    asked = (required or Requirements()).of(members)
    demanded = f"{required.preset.text}: {asked.reasons}" if required and required.preset else ""
    free = Bounds(None, max(least), min(most, default=None), asked.multiple, demanded)
    if free.most is not None and free.most // asked.multiple * asked.multiple < free.least:
        raise PlanError(f"{name} cannot be {free}")
    pin = next(iter(pins), None)
    if pin is not None and not free.allow(pin):
        raise PlanError(f"{name} is pinned to {pin} and must be {free}")
    return replace(free, pin=pin)


def _matching(dim: Dim, patterns: Mapping[str, Pin] | Mapping[str, int] | None) -> list[Pin]:
    return [size for name, size in (patterns or {}).items() if fnmatchcase(dim.name, name)]
