"""Exhaustive search of a core: every choice of few candidates that loses at most g.

A choice loses at most g against the dual bound only if each of its candidates does, and those
are few: the *core*. Its classes are merged one after another into states (Δweights, Δvalue, ρ)
relative to the reference choice. A state is dropped when

- the rest of the core cannot bring it within g (see :mod:`gacprof.solver.fan`);
- a common measure of the weights still to come leaves part of its slack unused;
- another state weighs no more and is worth no less.

Weights and values are exact integers; ρ and the bounds are doubles, and a state is dropped
only when its bound is beyond g by more than their rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gacprof.solver.fan import open_fan
from gacprof.solver.integers import exact_sum, room_for, scaled
from gacprof.solver.losses import Losses, per_class, sizes
from gacprof.solver.problem import Floats, Ints, Knapsack

STEP_WORK = 1024
"""What a class costs to merge, in states: about the fixed price of its array operations."""

BIG_WORK = 6
"""What a state with Python integers costs, in states without."""

QUOTA_STEP = 256
"""The same for the quota, which is there to find out early that states explode."""

Whole = NDArray[Any]
"""int64, or Python integers where 64 bits are too few."""


@dataclass
class Core:
    """One search. ``loss`` and ``found`` are of the best choice met, ``limit`` shrinks with it."""

    knapsack: Knapsack
    losses: Losses
    count: int
    limit: float
    work: int = 0
    loss: float = math.inf
    found: tuple[int, int] | None = None
    _best: Any = None
    _history: list[tuple[Ints, Ints]] = field(default_factory=list)

    def __post_init__(self) -> None:
        knapsack, losses = self.knapsack, self.losses
        self.items = losses.items[: self.count]
        self.rho = np.maximum(losses.loss[: self.count], 0.0)
        self._order()
        self._to_integers()
        size = sizes(knapsack, losses.multipliers, losses.reference, self.items)
        self.margin = 2 * (losses.tied + per_class(knapsack, self.items, size))
        moves = np.array([m.astype(float) for m in self.moves])
        self.fan = open_fan(self.prices, moves, self.rho, self.bounds, self.limit)

    def _order(self) -> None:
        """Classes: those off the common measure of the others first, then the cheapest to use.

        The measure of the weights still to come then grows early, and with it what it rules out.
        """
        knapsack, losses = self.knapsack, self.losses
        owner = knapsack.owner[self.items]
        base = losses.reference[owner]
        moves = [np.abs(w[self.items] - w[base]) for w in knapsack.weights]
        size = sum(y * m for y, m in zip(losses.multipliers, moves, strict=True))
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.nan_to_num(self.rho / size, nan=np.inf)
        classes, of = np.unique(owner, return_inverse=True)
        cheapest = np.full(len(classes), np.inf)
        np.minimum.at(cheapest, of, rate)
        measure = np.ones(len(classes), dtype=np.int64)
        if moves[0].dtype == np.int64:
            by_class = np.argsort(of, kind="stable")
            starts = np.searchsorted(of[by_class], np.arange(len(classes)))
            measure = np.gcd.reduceat(moves[0][by_class], starts)
        order = np.lexsort((cheapest, _layers(measure)))
        rank = np.empty(len(classes), dtype=np.int64)
        rank[order] = np.arange(len(classes))
        place = np.argsort(rank[of], kind="stable")
        self.items, self.rho = self.items[place], self.rho[place]
        self.bounds = np.searchsorted(rank[of][place], np.arange(len(classes) + 1))
        self.measure = np.zeros(len(classes) + 1, dtype=np.int64)
        self.measure[:-1] = np.gcd.accumulate(measure[order][::-1])[::-1]
        if moves[0].dtype != np.int64:
            self.measure[:] = 1

    def _to_integers(self) -> None:
        """Moves, the slack they may use, and gains; ``exact`` if none had to be rounded."""
        knapsack, reference = self.knapsack, self.losses.reference
        base = reference[knapsack.owner[self.items]]
        gains = scaled(knapsack.values[self.items], knapsack.values[base], up=True)
        self.gains, self.unit, self.exact = gains.whole, gains.unit, gains.exact
        self.step = gains.step
        self.moves: list[Whole] = []
        self.slack: list[int] = []
        units = []
        for weight, room in zip(knapsack.weights, knapsack.room, strict=True):
            if weight.dtype == np.int64:
                move, unit = weight[self.items] - weight[base], 1.0
                slack = int(room) - int(weight[reference].sum())
            else:
                times = scaled(weight[self.items], weight[base], up=False)
                move, unit = times.whole, float(times.unit)
                slack = room_for(room, exact_sum(weight[reference]), times.unit)
                self.exact &= times.exact
            span = sum(map(abs, move.tolist())) + 1
            self.moves.append(move)
            self.slack.append(min(max(slack, -span), span))
            units.append(unit)
        self.prices = self.losses.multipliers * np.array(units)

    def run(self, quota: int, check: Callable[[], None]) -> bool:
        """Search; false if it was given up because it took more work than ``quota``."""
        weights: list[Whole] = [np.zeros(1, dtype=m.dtype) for m in self.moves]
        gain = np.zeros(1, dtype=self.gains.dtype)
        rho = np.zeros(1)
        self._note(-1, weights, gain, rho)
        if not len(self._completable(0, weights, rho)):
            return True
        big = any(whole.dtype == object for whole in (self.gains, *self.moves))
        price = BIG_WORK if big else 1
        for k in range(len(self.bounds) - 1):
            check()
            here = range(self.bounds[k], self.bounds[k + 1])
            width = len(rho)
            states = price * width * (len(here) + 1)
            self.work += states + STEP_WORK
            quota -= states + QUOTA_STEP
            if quota < 0:
                return False
            rho = np.concatenate([rho, *(rho + self.rho[j] for j in here)])
            weights = [
                np.concatenate([w, *(w + m[j] for j in here)])
                for w, m in zip(weights, self.moves, strict=True)
            ]
            keep = self._completable(k + 1, weights, rho)
            weights = [w[keep] for w in weights]
            gain = np.concatenate([gain, *(gain + self.gains[j] for j in here)])[keep]
            order = _undominated(weights, gain)
            keep, gain = keep[order], gain[order]
            weights = [w[order] for w in weights]
            rho = rho[keep]
            self._history.append((keep % width, keep // width))
            if not len(keep):
                return True
            self._note(k, weights, gain, rho)
        return True

    def _completable(self, k: int, weights: list[Whole], rho: Floats) -> Ints:
        """States before class k whose loss can still end within the limit."""
        least = rho
        rest = [room - w for room, w in zip(self.slack, weights, strict=True)]
        measure = int(self.measure[k])
        if measure != 1:
            unused = rest[0] % measure if measure else np.maximum(rest[0], 0)
            least = rho + self.prices[0] * unused
            rest[0] = rest[0] - unused
        bar = self.limit + self.margin
        alive = np.flatnonzero(least <= bar)
        slack = [r[alive].astype(np.float64) for r in rest]
        rays: slice | Ints = slice(None)
        if len(slack) > 1 and len(alive) > 512:  # a few rays do nearly all the work
            sample = [s[:: len(alive) // 128] for s in slack]
            rays = np.unique(self.fan.shortfall(k, sample, rays).argmax(axis=0))
        short = self.fan.shortfall(k, slack, rays).max(axis=0)
        return alive[least[alive] + short <= bar]

    def _note(self, k: int, weights: list[Whole], gain: Whole, rho: Floats) -> None:
        """Remember the best state that fits, should it better what is known."""
        fits = np.ones(len(gain), dtype=bool)
        for w, room in zip(weights, self.slack, strict=True):
            fits &= w <= room
        where = np.flatnonzero(fits)
        if not len(where):
            return
        i = int(where[np.argmax(gain[where])])
        if self.found is None or gain[i] > self._best:
            self._best, self.found = gain[i], (k, i)
            rest = [float(room - w[i]) for room, w in zip(self.slack, weights, strict=True)]
            self.loss = float(rho[i] + self.prices @ np.array(rest))
            self.limit = min(self.limit, self.loss - self.step + self.margin)

    def excess(self, choice: Ints) -> Fraction:
        """By how much, at most, rounded integers hide a better choice than this one."""
        if self.exact or self.found is None:
            return Fraction(0)
        values, reference = self.knapsack.values, self.losses.reference
        here = np.flatnonzero(choice != reference)
        gain = exact_sum(values[choice[here]]) - exact_sum(values[reference[here]])
        return max(Fraction(0), int(self._best) * self.unit - gain)

    def choice(self) -> Ints:
        """The best choice met, as items of the knapsack."""
        assert self.found is not None
        choice = self.losses.reference.copy()
        k, i = self.found
        while k >= 0:
            before, move = self._history[k]
            if move[i]:
                item = self.items[self.bounds[k] + move[i] - 1]
                choice[self.knapsack.owner[item]] = item
            i, k = int(before[i]), k - 1
        return choice


def _layers(measure: Ints) -> Ints:
    """Layer per class, ascending: the last holds the classes of the most common large measure."""
    layer = np.zeros(len(measure), dtype=np.int64)
    left = np.arange(len(measure))
    depth = 0
    while len(left):
        values, counts = np.unique(measure[left], return_counts=True)
        usual = values[np.argsort(-counts, kind="stable")[:32]]
        shared = [int(m) for m in usual if m and 2 * (measure[left] % m == 0).sum() >= len(left)]
        common = max([int(np.gcd.reduce(measure[left])), *shared])
        inside = measure[left] % common == 0 if common else np.ones(len(left), dtype=bool)
        layer[left[inside]] = depth
        left = left[~inside]
        depth -= 1
    return layer


def _undominated(weights: list[Whole], gain: Whole) -> Ints:
    """Places of the states to keep, lightest first."""
    order = np.argsort(weights[0], kind="stable")
    weight, gain = weights[0][order], gain[order]
    keep = np.ones(len(order), dtype=bool)
    if len(weights) == 1:
        if len(order):
            best = np.maximum.accumulate(gain)
            keep[1:] = gain[1:] > best[:-1]
            order, weight = order[keep], weight[keep]
            keep = np.append(weight[1:] != weight[:-1], True)
        return order[keep]
    other = weights[1][order]
    for lag in range(1, min(9, len(order))):  # near neighbours: the rest is seldom worth its time
        before, after = slice(None, -lag), slice(lag, None)
        keep[after] &= ~((other[before] <= other[after]) & (gain[before] >= gain[after]))
        same = weight[before] == weight[after]
        keep[before] &= ~(same & (other[after] <= other[before]) & (gain[after] > gain[before]))
    return order[keep]
