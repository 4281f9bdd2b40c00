"""The Lagrangian dual: what a unit of each resource is worth.

For multipliers y ≥ 0 every choice x that fits has

    Σ value(x) ≤ f(y) = Σᵢ maxⱼ (valueᵢⱼ − y·weightᵢⱼ) + y·room,

and f is convex and piecewise linear. It is minimised by cutting planes: each evaluation gives
a best choice and with it a plane below f; the next y is the lowest point of the planes so far
(for one resource this is the secant method between the choice that fits and the one that does
not). After a few planes only a small polygon can still hold the minimum, and most candidates
can be best nowhere in it: they are set aside, so that later evaluations cost next to nothing,
and sums are taken relative to the best choice so far, so that no digits cancel.

Nothing here must be exact: any y ≥ 0 gives a valid bound, a better one only a tighter bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np

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


@dataclass(frozen=True)
class _Box:
    low: Floats
    high: Floats

    def corners(self) -> Floats:
        sides = np.meshgrid(*zip(self.low, self.high, strict=True))
        return np.array(sides).reshape(len(self.low), -1).T


class _Face:
    """The candidates still in play, relative to a reference choice, class by class."""

    def __init__(self, knapsack: Knapsack, ids: Ints | None, reference: Ints) -> None:
        self.ids = ids
        owner = knapsack.owner if ids is None else knapsack.owner[ids]
        take = slice(None) if ids is None else ids
        self.values = knapsack.values[take] - knapsack.values[reference][owner]
        self.weights = [w[take] - w[reference][owner] for w in knapsack.weights]
        first = np.ones(len(owner), dtype=bool)
        first[1:] = owner[1:] != owner[:-1]
        self.starts = np.flatnonzero(first)
        self.local = np.repeat(
            np.arange(len(self.starts), dtype=np.int32), np.diff(np.append(self.starts, len(owner)))
        )
        self.owner = owner
        self.reference = reference
        self.slack = knapsack.slack(reference)

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
        hits = np.flatnonzero(worth == best[self.local])
        of = self.local[hits]
        first = np.ones(len(hits), dtype=bool)
        first[1:] = of[1:] != of[:-1]
        picks = hits[first]
        slope = self.slack - np.array([float(w[picks].sum()) for w in self.weights])
        choice = self.reference.copy()
        choice[self.owner[picks]] = picks if self.ids is None else self.ids[picks]
        gain = float(self.values[picks].sum())
        return _Plane(y, gain + float(y @ slope), gain, slope, choice)

    def within(self, box: _Box) -> Ints:
        """Candidates that may be best somewhere in the box; classes with one left are settled."""
        if not len(self.starts):
            return np.zeros(0, dtype=np.int64)
        corners = (
            np.array(np.meshgrid(*zip(box.low, box.high, strict=True))).reshape(len(box.low), -1).T
        )
        top = self.worth(corners[0])
        for corner in corners[1:]:
            np.maximum(top, self.worth(corner), out=top)
        keep = top >= 0
        counts = np.add.reduceat(keep, self.starts, dtype=np.int64)
        keep &= (counts > 1)[self.local]
        kept = np.flatnonzero(keep)
        return kept if self.ids is None else self.ids[kept]


def minimise(knapsack: Knapsack, check: Callable[[], None], ids: Ints | None = None) -> Dual:
    """Multipliers near the least f. ``check`` is called between evaluations and may raise.

    ``ids``: the only candidates there are, ascending, at least one in each class.
    """
    count = len(knapsack.weights)
    first = knapsack.starts if ids is None else _first(knapsack, ids)
    face = _Face(knapsack, ids, first)
    spread = np.maximum.reduceat(face.values, face.starts).sum()
    spread -= np.minimum.reduceat(face.values, face.starts).sum()
    box = _Box(np.zeros(count), np.full(count, 2 * max(float(spread), 1e-300)))
    planes = [face.plane(box.low), *(face.plane(box.high * unit) for unit in np.eye(count))]
    for _ in range(RESTARTS):
        planes = _narrow(knapsack, face, planes, box, check)
        best = _best(planes)[0]
        face = _Face(knapsack, ids, best.choice)
        full = face.plane(best.at)
        if full.height <= best.at @ face.slack + 1e-12 * abs(spread):
            break
        planes = [face.plane(plane.at) for plane in (full, *_active(planes, box))]
    return Dual(full.at, full.choice, tuple(plane.choice for plane in planes))


def _first(knapsack: Knapsack, ids: Ints) -> Ints:
    return ids[np.searchsorted(knapsack.owner[ids], np.arange(knapsack.classes))]


def _narrow(
    knapsack: Knapsack,
    face: _Face,
    planes: list[_Plane],
    box: _Box,
    check: Callable[[], None],
) -> list[_Plane]:
    """Descend, set candidates aside, start again from the best points; until nothing moves.

    A face without the candidates set aside is right only within its box.
    """
    settled = False
    for _ in range(ROUNDS):
        was_settled, settled = settled, _descend(face, planes, box, check)
        if settled and was_settled:
            break
        best = _best(planes)
        points = [plane.at for plane in best[: len(box.low) + 3]]
        points += [plane.at for plane in _active(planes, box)]
        box = _polygon(planes, box)
        face = _Face(knapsack, face.within(box), best[0].choice)
        planes = [face.plane(np.clip(point, box.low, box.high)) for point in points]
    return planes


def _best(planes: list[_Plane]) -> list[_Plane]:
    return sorted(planes, key=lambda plane: plane.height)


def _descend(face: _Face, planes: list[_Plane], box: _Box, check: Callable[[], None]) -> bool:
    """Add planes at the lowest point of those so far; true once f touches them there."""
    for _ in range(PLANES):
        check()
        y, depth = _lowest(planes, box)
        plane = face.plane(y)
        top = min(plane.height, *(p.height for p in planes))
        done = plane.height - depth <= 1e-14 * (abs(plane.height) + abs(depth)) or any(
            (plane.slope == p.slope).all() and plane.height >= p.height for p in planes
        )
        planes.append(plane)
        if done or top <= depth:
            return True
    return False


def _lines(planes: list[_Plane]) -> tuple[Floats, Floats, Floats]:
    """Heights of all planes at the best point so far, their slopes, and that point."""
    centre = _best(planes)[0].at
    slopes = np.array([plane.slope for plane in planes])
    heights = np.array([p.gain + p.slope @ centre for p in planes])
    return heights, slopes, centre


def _lowest(planes: list[_Plane], box: _Box) -> tuple[Floats, float]:
    """The lowest point of the upper envelope of the planes within the box."""
    heights, slopes, centre = _lines(planes)
    points = _crossings(heights, slopes, box.low - centre, box.high - centre)
    envelope = (points @ slopes.T + heights).max(axis=1)
    at = int(envelope.argmin())
    return np.clip(centre + points[at], box.low, box.high), float(envelope[at])


def _active(planes: list[_Plane], box: _Box) -> list[_Plane]:
    """The planes that hold up the envelope at its lowest point."""
    y, _ = _lowest(planes, box)
    heights = np.array([p.gain + p.slope @ y for p in planes])
    return [planes[k] for k in np.argsort(-heights, kind="stable")[: len(box.low) + 1]]


def _crossings(heights: Floats, slopes: Floats, low: Floats, high: Floats) -> Floats:
    """Where planes meet each other and the box: the envelope's lowest point is among these."""
    count = slopes.shape[1]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if count == 1:
            a, b = _choose(len(heights), 2)
            met = ((heights[b] - heights[a]) / (slopes[a] - slopes[b])[:, 0])[:, None]
            points = [met, np.array([low, high])]
        else:
            points = [_triples(heights, slopes), *_edges(heights, slopes, low, high)]
            points.append(_Box(low, high).corners())
    found = np.concatenate([np.zeros((1, count)), *points])
    found = found[np.isfinite(found).all(axis=1)]
    return np.clip(found, low, high)


def _choose(count: int, size: int) -> Ints:
    """All ``size`` of ``count``, one per column."""
    return np.array(list(combinations(range(count), size)), dtype=np.int64).reshape(-1, size).T


def _triples(heights: Floats, slopes: Floats) -> Floats:
    a, b, c = _choose(len(heights), 3)
    p, q = slopes[a] - slopes[b], slopes[a] - slopes[c]
    r, s = heights[b] - heights[a], heights[c] - heights[a]
    det = p[:, 0] * q[:, 1] - p[:, 1] * q[:, 0]
    x = (r * q[:, 1] - p[:, 1] * s) / det
    y = (p[:, 0] * s - r * q[:, 0]) / det
    return np.stack([x, y], axis=1)


def _edges(heights: Floats, slopes: Floats, low: Floats, high: Floats) -> list[Floats]:
    a, b = _choose(len(heights), 2)
    edges = []
    for fixed in (0, 1):
        free = 1 - fixed
        for side in (low[fixed], high[fixed]):
            rise = heights[b] - heights[a] + (slopes[b] - slopes[a])[:, fixed] * side
            edge = np.empty((len(a), 2))
            edge[:, fixed] = side
            edge[:, free] = rise / (slopes[a] - slopes[b])[:, free]
            edges.append(edge)
    return edges


def _polygon(planes: list[_Plane], box: _Box) -> _Box:
    """A box around all points where the envelope is no higher than the best f so far."""
    heights, slopes, centre = _lines(planes)
    top = min(plane.height for plane in planes)
    lowest, depth = _lowest(planes, box)
    level = top + 0.01 * (top - depth) + 1e-15 * abs(top)
    low, high = box.low - centre, box.high - centre
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if slopes.shape[1] == 1:
            points = (level - heights)[:, None] / slopes
        else:
            lines = np.concatenate([slopes, np.eye(2), np.eye(2)])
            at = np.concatenate([level - heights, low, high])
            a, b = _choose(len(at), 2)
            det = lines[a, 0] * lines[b, 1] - lines[a, 1] * lines[b, 0]
            x = (at[a] * lines[b, 1] - lines[a, 1] * at[b]) / det
            y = (lines[a, 0] * at[b] - at[a] * lines[b, 0]) / det
            points = np.stack([x, y], axis=1)
    points = points[np.isfinite(points).all(axis=1)]
    points = np.clip(points, low, high)
    envelope = (points @ slopes.T + heights).max(axis=1, initial=-np.inf)
    inside = points[envelope <= level + 1e-9 * (level - depth)]
    inside = np.concatenate([inside, np.zeros((1, len(centre))), [lowest - centre]])
    least, most = inside.min(axis=0), inside.max(axis=0)
    margin = 0.05 * (most - least) + 1e-13 * centre
    return _Box(
        np.maximum(centre + least - margin, box.low), np.minimum(centre + most + margin, box.high)
    )
