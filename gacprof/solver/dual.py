"""The Lagrangian dual: what a unit of each resource is worth, and what each candidate loses.

For multipliers y ≥ 0 every choice x that fits has

    Σ value(x) ≤ f(y) = Σᵢ maxⱼ (valueᵢⱼ − y·weightᵢⱼ) + y·room,

and f is convex and piecewise linear. It is minimised by cutting planes: each evaluation gives
a best choice and with it a plane below f; the next y is the lowest point of the planes so far.
After a few planes only a small box can still hold the minimum, and most candidates can be best
nowhere in it: they are set aside, so that later evaluations cost next to nothing, and sums are
taken relative to the best choice so far, so that no digits cancel.

Nothing here must be exact: any y ≥ 0 gives a valid bound, a better one only a tighter bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from gacprof.solver.problem import Floats, Ints, Knapsack

RESTARTS = 3
ROUNDS = 12
PLANES = 8
"""Evaluations between two rounds of setting candidates aside."""


@dataclass(frozen=True)
class Dual:
    """Multipliers near the minimum of f, a best choice there, and the choices around it."""

    multipliers: Floats
    reference: Ints
    around: tuple[Ints, ...]


@dataclass(frozen=True)
class _Plane:
    """A choice that is best at ``at``, where f has height ``height``; ``gain + slope·y ≤ f``."""

    at: Floats
    height: float
    gain: float
    slope: Floats
    choice: Ints


class _Function:
    """f over some of the candidates, all values and weights relative to a reference choice."""

    def __init__(self, knapsack: Knapsack, ids: Ints | None, reference: Ints) -> None:
        """``ids``: the candidates, ascending; None for all. Classes without any are settled."""
        take = slice(None) if ids is None else ids
        self.ids, self.reference = ids, reference
        self.slack = knapsack.slack(reference)
        self.owner = knapsack.owner[take]
        self.values = knapsack.values[take] - knapsack.values[reference][self.owner]
        self.weights = [w[take] - w[reference][self.owner] for w in knapsack.weights]
        self.starts = _heads(self.owner)
        lengths = np.diff(np.append(self.starts, len(self.owner)))
        self.local = np.repeat(np.arange(len(self.starts), dtype=np.int32), lengths)

    def worth(self, y: Floats) -> Floats:
        """Value minus priced weight, per candidate, above the reference's."""
        worth = self.values.copy()
        for price, weight in zip(y, self.weights, strict=True):
            if price:
                worth -= price * weight
        return worth

    def plane(self, y: Floats) -> _Plane:
        if not len(self.starts):
            return _Plane(y, float(y @ self.slack), 0.0, self.slack, self.reference)
        worth = self.worth(y)
        best = np.maximum.reduceat(worth, self.starts)
        ties = np.flatnonzero(worth == best[self.local])
        picks = ties[_heads(self.local[ties])]
        slope = self.slack - np.array([float(w[picks].sum()) for w in self.weights])
        choice = self.reference.copy()
        choice[self.owner[picks]] = picks if self.ids is None else self.ids[picks]
        gain = float(self.values[picks].sum())
        return _Plane(y, gain + float(y @ slope), gain, slope, choice)

    def within(self, box: Floats) -> Ints:
        """Candidates that may be best somewhere in the box, of classes with more than one."""
        if not len(self.starts):
            return np.zeros(0, dtype=np.int64)
        corners = np.array(np.meshgrid(*box.T)).reshape(box.shape[1], -1).T
        top = self.worth(corners[0])
        for corner in corners[1:]:
            np.maximum(top, self.worth(corner), out=top)
        keep = top >= 0
        counts = np.add.reduceat(keep, self.starts, dtype=np.int64)
        keep &= (counts > 1)[self.local]
        kept = np.flatnonzero(keep)
        return kept if self.ids is None else self.ids[kept]


class _Envelope:
    """The greatest of some planes over a box: a lower bound on f, and touching it at each plane.

    ``box`` has a row of lower and a row of upper ends. Points are counted from the best one so
    far, ``centre``.
    """

    def __init__(self, planes: list[_Plane], box: Floats) -> None:
        self.planes = sorted(planes, key=lambda plane: plane.height)
        self.top, self.centre = self.planes[0].height, self.planes[0].at
        self.count = len(self.centre)
        self.box, self.sides = box, box - self.centre
        self.slopes = np.array([plane.slope for plane in self.planes])
        self.heights = np.array([p.gain + p.slope @ self.centre for p in self.planes])
        points = np.concatenate([np.zeros((1, self.count)), self._crossings()])
        height = self.height(points)
        at = int(height.argmin())
        self.lowest, self.depth = np.clip(self.centre + points[at], *box), float(height[at])

    def height(self, points: Floats) -> Floats:
        return (points @ self.slopes.T + self.heights).max(axis=1, initial=-np.inf)

    def _crossings(self, level: float | None = None) -> Floats:
        """Points within the box where three of the planes, its sides and (if given) the level
        meet: the lowest point is one of them, as is each corner of what lies below a level.

        Each is a row (a, b) of a·(y₁, y₂, height) = b. With one resource, y₂ = 0.
        """
        count, n = self.count, len(self.heights)
        free = n + 2 * count
        rows = np.zeros((free, 4))
        rows[:n, :count], rows[:n, 2], rows[:n, 3] = self.slopes, -1, -self.heights
        for axis in range(count):
            rows[n + 2 * axis : n + 2 * axis + 2, axis] = 1
            rows[n + 2 * axis : n + 2 * axis + 2, 3] = self.sides[:, axis]
        fixed = [] if count == 2 else [(0.0, 1.0, 0.0, 0.0)]
        fixed += [] if level is None else [(0.0, 0.0, 1.0, level)]
        rows = np.concatenate([rows, np.reshape(fixed, (-1, 4))])
        x, y, height, right = rows.T[:, _triples(free, len(fixed))]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # Cramer's rule
            points = np.stack([_determinant(right, y, height), _determinant(x, right, height)])
            points = (points / _determinant(x, y, height))[:count].T
        return np.clip(points[np.isfinite(points).all(axis=1)], *self.sides)

    def active(self) -> list[_Plane]:
        """The planes that hold up the envelope at its lowest point."""
        heights = np.array([p.gain + p.slope @ self.lowest for p in self.planes])
        return [self.planes[k] for k in np.argsort(-heights, kind="stable")[: self.count + 1]]

    def below_top(self) -> Floats:
        """A box around all points where the envelope is no higher than the best f so far."""
        level = self.top + 0.01 * (self.top - self.depth) + 1e-15 * abs(self.top)
        points = self._crossings(level)
        inside = points[self.height(points) <= level + 1e-9 * (level - self.depth)]
        inside = np.concatenate([inside, np.zeros((1, self.count)), [self.lowest - self.centre]])
        least, most = inside.min(axis=0), inside.max(axis=0)
        margin = 0.05 * (most - least) + 1e-13 * self.centre
        ends = [self.centre + least - margin, self.centre + most + margin]
        return np.clip(ends, *self.box)


def _determinant(u: Floats, v: Floats, w: Floats) -> Floats:
    return (
        u[0] * (v[1] * w[2] - v[2] * w[1])
        + u[1] * (v[2] * w[0] - v[0] * w[2])
        + u[2] * (v[0] * w[1] - v[1] * w[0])
    )


@lru_cache(maxsize=128)
def _triples(free: int, fixed: int) -> Ints:
    """Any of the ``free`` first rows with all of the ``fixed`` ones after them, one per column."""
    always = tuple(range(free, free + fixed))
    some = [(*picked, *always) for picked in combinations(range(free), 3 - fixed)]
    return np.array(some, dtype=np.int64).reshape(-1, 3).T


def _heads(owner: NDArray[np.int32]) -> Ints:
    """Where each run of one class begins."""
    first = np.ones(len(owner), dtype=bool)
    first[1:] = owner[1:] != owner[:-1]
    return np.flatnonzero(first)


def minimise(knapsack: Knapsack, check: Callable[[], None], ids: Ints | None = None) -> Dual:
    """Multipliers near the least f. ``check`` is called between evaluations and may raise.

    ``ids``: the only candidates there are, ascending, at least one in each class.
    """
    count = len(knapsack.weights)
    first = knapsack.starts
    if ids is not None:
        first = ids[np.searchsorted(knapsack.owner[ids], np.arange(knapsack.classes))]
    function = _Function(knapsack, ids, first)
    spread = np.maximum.reduceat(function.values, function.starts).sum()
    spread -= np.minimum.reduceat(function.values, function.starts).sum()
    high = 2 * max(float(spread), 1e-300)
    box = np.outer([0.0, high], np.ones(count))
    planes = [function.plane(y) for y in (np.zeros(count), *(high * np.eye(count)))]
    for _ in range(RESTARTS):
        planes = _narrow(knapsack, function, planes, box, check)
        envelope = _Envelope(planes, box)
        best = envelope.planes[0]
        function = _Function(knapsack, ids, best.choice)
        full = function.plane(best.at)
        if full.height <= best.at @ function.slack + 1e-12 * abs(spread):
            break
        planes = [function.plane(plane.at) for plane in (full, *envelope.active())]
    return Dual(full.at, full.choice, tuple(plane.choice for plane in planes))


def _narrow(
    knapsack: Knapsack,
    function: _Function,
    planes: list[_Plane],
    box: Floats,
    check: Callable[[], None],
) -> list[_Plane]:
    """Descend, set candidates aside, start again from the best points; until nothing moves.

    Without the candidates set aside, the function is right only within its box.
    """
    settled = False
    for _ in range(ROUNDS):
        was_settled, settled = settled, _descend(function, planes, box, check)
        if settled and was_settled:
            break
        envelope = _Envelope(planes, box)
        near = [*envelope.planes[: len(envelope.centre) + 3], *envelope.active()]
        box = envelope.below_top()
        function = _Function(knapsack, function.within(box), envelope.planes[0].choice)
        planes = [function.plane(np.clip(plane.at, *box)) for plane in near]
    return planes


def _descend(
    function: _Function, planes: list[_Plane], box: Floats, check: Callable[[], None]
) -> bool:
    """Add planes at the lowest point of those so far; true once f touches them there."""
    for _ in range(PLANES):
        check()
        envelope = _Envelope(planes, box)
        depth = envelope.depth
        plane = function.plane(envelope.lowest)
        done = plane.height - depth <= 1e-14 * (abs(plane.height) + abs(depth)) or any(
            (plane.slope == p.slope).all() and plane.height >= p.height for p in planes
        )
        planes.append(plane)
        if done or min(plane.height, envelope.top) <= depth:
            return True
    return False
