"""Adaptive refinement: few points of an axis, yet every edge that all of them would show.

Which kernel serves a dim, and so its latency, is largely piecewise constant *within* each
residue class of 16 elements (32 bytes of a 16-bit type: the widest alignment that cuBLAS,
FlashAttention and Triton ask for), but not across classes. So per class

1. a coarse pass, staggered so that the classes together sample the axis finely;
2. bisection between neighbours of a class that differ in kernel or in latency. Classes tend
   to change at the same place: the narrowest bracket goes first, and where it ends up is
   tried next in the other classes;
3. random audit points, because heuristics are not monotone. One that surprises differs from
   its neighbours in the class and so is bisected like any other; audits go on until a round
   brings no surprise.

Rounds are a pure function of what earlier rounds measured. An interrupted sweep therefore
resumes by playing them again from its samples.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf, log

RESIDUES = 16
COARSE = 4
"""Dims of each class in the coarse pass: both ends, and staggered ones between."""
MEASURE_ALL_BELOW = 600
"""Shorter axes are measured whole: a quarter of sixteen classes of some thirty dims is eight
each, too few to locate several edges (one in eight is missed on the published GEMV axes)."""
SHARP = 2
"""A place known this narrowly, in dims, is tried by all classes at once."""
AUDIT_SHARE = 0.01
AUDIT_ROUNDS = 3
LARGEST_SHARE = 4
"""At most a quarter of the axis is measured: where it wanders so much that bisecting all of
it would take more, the largest jumps are located first."""


@dataclass(frozen=True)
class Seen:
    """What one dim gave: microseconds and kernels; ``median`` is None where it failed."""

    median: float | None
    low: float = 0.0
    high: float = 0.0
    kernels: tuple[str, ...] = ()


Refinement = Generator[list[int], Mapping[int, Seen], None]
"""Yields the dims to measure next; send it everything measured so far. Ends when done."""


def refine(dims: Sequence[int], floor: float, seed: int = 0) -> Refinement:
    """Rounds of dims to measure out of ``dims``; ``floor`` is the smallest jump of interest."""
    if len(dims) < MEASURE_ALL_BELOW:
        yield sorted(dims)
        return
    classes = residue_classes(dims)
    draw = random.Random(seed)
    limit = len(dims) // LARGEST_SHARE
    known: Mapping[int, Seen] = yield sorted({d for c in _coarse(classes) for d in c})
    audits_a_round = reserved = max(4, round(AUDIT_SHARE * len(dims)))
    for _ in range(AUDIT_ROUNDS):
        while wanted := _wanted(classes, known, floor)[: max(0, limit - reserved - len(known))]:
            known = yield sorted(wanted)
        left = sorted(d for d in dims if d not in known)
        audits = min(audits_a_round, limit - len(known))
        if audits <= 0:
            return
        known = yield sorted(draw.sample(left, audits))
        reserved = 0


def residue_classes(dims: Iterable[int]) -> list[list[int]]:
    """The dims by their remainder of 16, each class ascending; empty classes left out."""
    found: dict[int, list[int]] = {}
    for d in sorted(dims):
        found.setdefault(d % RESIDUES, []).append(d)
    return [found[remainder] for remainder in sorted(found)]


def differ(a: Seen, b: Seen, floor: float) -> bool:
    """Whether something changes between two dims: kernel, success, or latency beyond noise."""
    if a.median is None or b.median is None:
        return (a.median is None) != (b.median is None)
    if a.kernels and b.kernels and a.kernels != b.kernels:
        return True
    small, large = (a, b) if a.median <= b.median else (b, a)
    assert small.median is not None and large.median is not None
    return large.median > small.median * (1 + floor) and large.low > small.high


def _coarse(classes: list[list[int]]) -> Iterable[set[int]]:
    """Both ends of each class and, between them, dims shifted from class to class."""
    for number, members in enumerate(classes):
        shift = number / len(classes)
        inner = [(i + shift) / (COARSE - 2) * (len(members) - 1) for i in range(COARSE - 2)]
        yield {members[0], members[-1], *(members[round(place)] for place in inner)}


def _wanted(classes: list[list[int]], known: Mapping[int, Seen], floor: float) -> list[int]:
    """The dims to measure next: those that narrow an edge, else those where other classes have an
    edge, else those on ramps that another class has measured step by step."""
    located, brackets = _changes(classes, known, floor)
    profiles = [_Profile.of(members, known, floor) for members in classes]
    edges: list[_Bracket] = []
    ramps: list[_Bracket] = []
    for bracket in brackets:
        is_ramp = any(profile.explains(bracket, known) for profile in profiles)
        (ramps if is_ramp else edges).append(bracket)
    return (
        _narrowing(located, _urgent(edges))
        or _echoes(classes, known, _places(located))
        or _narrowing(located, _urgent(ramps))
    )


def _urgent(brackets: list[_Bracket]) -> list[_Bracket]:
    """Only the jumps of at least half the largest one, the largest first."""
    largest = max((b.jump for b in brackets), default=0.0)
    return sorted((b for b in brackets if b.jump >= largest / 2), key=lambda b: (-b.jump, b.ends))


def _narrowing(located: list[tuple[int, int]], brackets: list[_Bracket]) -> list[int]:
    """The dims that would narrow these brackets, in their order.

    A place where other classes have an edge already is tried before a bracket is halved.
    """
    wanted: list[int] = []
    tried: list[tuple[int, int]] = []  # places that another class tries in this round
    for bracket in brackets:
        first, last = bracket.ends
        place = _place(edge for edge in located if _overlap(edge, first, last))
        if place is not None and (seeds := _straddling(bracket.inner, place)):
            # A place not yet pinned down is tried by one class, whose result narrows it.
            if place[1] - place[0] > SHARP and any(_overlap(place, *other) for other in tried):
                continue
            tried.append(place)
            wanted += sorted(seeds)
        elif not any(
            (other.width, other.ends) < (bracket.width, bracket.ends)
            and _overlap(other.ends, first, last)
            for other in brackets
        ):
            wanted.append(bracket.inner[len(bracket.inner) // 2])
    return wanted


def _echoes(
    classes: list[list[int]], known: Mapping[int, Seen], places: list[tuple[int, int]]
) -> list[int]:
    """Where one class has an edge, the nearest dim of each class that shows none there: two dims
    may look alike because an edge up and one down between them cancel."""
    wanted: list[tuple[int, int]] = []
    for members in classes:
        measured = [i for i, d in enumerate(members) if d in known]
        for low, high in pairwise(measured):
            within = [p for p in places if members[low] <= p[0] and p[1] <= members[high]]
            for place in within:
                inner = [d for d in members[low + 1 : high] if place[1] <= d < place[1] + RESIDUES]
                wanted += [(-len(within), d) for d in inner[:1]]
    return [d for _, d in sorted(wanted)]


@dataclass(frozen=True)
class _Bracket:
    """Two measured neighbours of a class that differ, and the class's dims between them."""

    ends: tuple[int, int]
    inner: list[int]
    jump: float

    @property
    def width(self) -> int:
        return self.ends[1] - self.ends[0]


@dataclass(frozen=True)
class _Profile:
    """One class's measured dims, and for each how many neighbours below it differ."""

    dims: list[int]
    changes: list[int]
    floor: float

    @classmethod
    def of(cls, members: Sequence[int], known: Mapping[int, Seen], floor: float) -> _Profile:
        dims = [d for d in members if d in known]
        steps = (differ(known[a], known[b], floor) for a, b in pairwise(dims))
        return cls(dims, [0, *accumulate(steps)], floor)

    def explains(self, bracket: _Bracket, known: Mapping[int, Seen]) -> bool:
        """Whether this class grew as much over the bracket's dims without an edge: then the
        bracket is a ramp, which need not be measured step by step in every class."""
        low = max(0, bisect_right(self.dims, bracket.ends[0]) - 1)
        high = min(len(self.dims) - 1, bisect_left(self.dims, bracket.ends[1]))
        if high - low < 2 or self.changes[high] != self.changes[low]:
            return False
        here, there = known[self.dims[low]], known[self.dims[high]]
        first, last = (known[d] for d in bracket.ends)
        if first.kernels != last.kernels or not (first.median and last.median):
            return False
        if not (here.median and there.median):
            return False
        apart = log(last.median / first.median) - log(there.median / here.median)
        return abs(apart) <= log(1 + self.floor)


def _changes(
    classes: list[list[int]], known: Mapping[int, Seen], floor: float
) -> tuple[list[tuple[int, int]], list[_Bracket]]:
    """(edges with no dim left between, brackets with some)."""
    located: list[tuple[int, int]] = []
    brackets: list[_Bracket] = []
    growth = _growth(classes, known)
    for members in classes:
        places = [i for i, d in enumerate(members) if d in known]
        for low, high in pairwise(places):
            ends = members[low], members[high]
            if not differ(known[ends[0]], known[ends[1]], floor):
                continue
            if high - low == 1:
                located.append(ends)
            else:
                jump = _jump(known[ends[0]], known[ends[1]], growth * log(ends[1] / ends[0]))
                brackets.append(_Bracket(ends, members[low + 1 : high], jump))
    return located, brackets


def _growth(classes: list[list[int]], known: Mapping[int, Seen]) -> float:
    """The power of the dim with which latency grows along most of the axis: 0 on a plateau."""
    found: list[tuple[float, float]] = []
    for members in classes:
        for a, b in pairwise(d for d in members if d in known):
            first, last = known[a].median, known[b].median
            if first and last:
                found.append((log(last / first) / log(b / a), log(b / a)))
    found.sort()
    passed = list(accumulate(length for _, length in found))
    return found[bisect_left(passed, passed[-1] / 2)][0] if found else 0.0


def _jump(a: Seen, b: Seen, grown: float) -> float:
    """|log ratio| beyond the growth; infinite between a dim that works and one that does not."""
    return abs(log(b.median / a.median) - grown) if a.median and b.median else inf


def _overlap(edge: tuple[int, int], first: int, last: int) -> bool:
    return edge[0] < last and edge[1] > first


def _places(edges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Where edges lie, each narrowed by those that overlap it."""
    left = sorted(edges)
    found: list[tuple[int, int]] = []
    while left and (place := _place(left)) is not None:
        found.append(place)
        left = [edge for edge in left if not _overlap(edge, *place)]
    return found


def _place(edges: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
    """Where the first of these edges lies, narrowed by those that overlap it."""
    place: tuple[int, int] | None = None
    for before, after in sorted(edges):
        if place is None:
            place = before, after
        elif before < place[1]:
            place = max(before, place[0]), min(after, place[1])
        else:
            break
    return place


def _straddling(inner: Sequence[int], place: tuple[int, int]) -> set[int]:
    """The unmeasured members next to the middle of a place, one on either side."""
    middle = sum(place) / 2
    below = [d for d in inner if middle - RESIDUES <= d < middle]
    above = [d for d in inner if middle <= d <= middle + RESIDUES]
    return {*below[-1:], *above[:1]}
