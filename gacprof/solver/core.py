"""Exhaustive search of a core: every choice of few candidates that loses at most g.

A choice loses at most g against the dual bound only if each of its candidates does, and those
are few: the *core*. Its classes are merged one after another into states (Δweights, Δvalue, ρ)
relative to the reference choice. A state is dropped when

- the rest of the core cannot bring it within g: for any other multipliers y + δ ≥ 0 the loss
  of all its completions is at least ρ − δ·slack − D(δ), D being the dual of the classes still
  to come; a *fan* of such δ is kept with their D;
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

import numpy as np
from numpy.typing import NDArray

from gacprof.solver.losses import Losses, exact_values, per_class, sizes
from gacprof.solver.problem import Floats, Ints, Knapsack

STEP_WORK = 256
"""What a class costs to merge, in states: about the fixed price of its array operations."""

EXACT_ITEMS = 4096
"""Up to so many candidates, values that need more than 62 bits are kept as Python integers."""


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
    _history: list[tuple[Ints, Ints]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._take()
        self._order()
        self._scale()
        self._fan()

    def _take(self) -> None:
        """The first ``count`` candidates and what they change against the reference."""
        knapsack, losses = self.knapsack, self.losses
        self.items = losses.items[: self.count]
        self.rho = np.maximum(losses.loss[: self.count], 0.0)
        base = losses.reference[knapsack.owner[self.items]]
        self.moves = [w[self.items] - w[base] for w in knapsack.weights]
        size = sizes(knapsack, losses.multipliers, losses.reference, self.items)
        self.margin = 2 * (losses.tied + per_class(knapsack, self.items, size))
        self.slack = losses.slack

    def _order(self) -> None:
        """Classes: those off the common measure of the others first, then the cheapest to use.

        The measure of the weights still to come then grows early, and with it what it rules out.
        """
        classes, of = np.unique(self.knapsack.owner[self.items], return_inverse=True)
        size = sum(y * np.abs(m) for y, m in zip(self.losses.multipliers, self.moves, strict=True))
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.nan_to_num(self.rho / size, nan=np.inf)
        cheapest = np.full(len(classes), np.inf)
        np.minimum.at(cheapest, of, rate)
        by_class = np.argsort(of, kind="stable")
        starts = np.searchsorted(of[by_class], np.arange(len(classes)))
        measure = np.gcd.reduceat(np.abs(self.moves[0])[by_class], starts)
        order = np.lexsort((cheapest, _layers(measure)))
        rank = np.empty(len(classes), dtype=np.int64)
        rank[order] = np.arange(len(classes))
        place = np.argsort(rank[of], kind="stable")
        self.items, self.rho = self.items[place], self.rho[place]
        self.moves = [m[place] for m in self.moves]
        self.bounds = np.searchsorted(rank[of][place], np.arange(len(classes) + 1))
        self.measure = np.zeros(len(classes) + 1, dtype=np.int64)
        self.measure[:-1] = np.gcd.accumulate(measure[order][::-1])[::-1]

    def _scale(self) -> None:
        """Δvalues as integers: exact where they fit 62 bits or are few, else rounded up."""
        knapsack = self.knapsack
        base = self.losses.reference[knapsack.owner[self.items]]
        exact, exponent = exact_values(knapsack.values[self.items], knapsack.values[base])
        bits = sum(abs(one) for one in exact.tolist()).bit_length()
        self.rounded = 0
        if bits <= 62:
            exact = exact.astype(np.int64)
        elif len(exact) > EXACT_ITEMS:
            self.rounded = bits - 62
            exact = np.array([-((-one) >> self.rounded) for one in exact], dtype=np.int64)
        self.gains = exact
        self.exponent = exponent + self.rounded
        common = math.gcd(*exact.tolist()) if not self.rounded else 0
        self.step = math.ldexp(common * (1 - 2.0**-50), exponent) if common < 2**900 else 0.0

    def _fan(self) -> None:
        """Other multipliers, and for each suffix of the classes its dual there."""
        y = self.losses.multipliers
        moves = np.array(self.moves, dtype=float)
        self.fan = _fan(y, moves, self.rho, self.limit)
        starts = self.bounds[:-1]
        error = (len(starts) + 64) * 2.0**-52
        self.suffix = np.zeros((self.fan.shape[1], len(starts) + 1))
        chunk = max(1, 500_000 // max(1, len(self.rho)))
        for at in range(0, self.fan.shape[1] if len(starts) else 0, chunk):
            rays = self.fan[:, at : at + chunk]
            terms = np.zeros((rays.shape[1], len(self.rho))) + self.rho
            absolute = terms.copy()
            for ray, move in zip(rays, moves, strict=True):
                term = np.multiply.outer(ray, move)
                terms += term
                absolute += np.abs(term)
            best = np.maximum(-np.minimum.reduceat(terms, starts, axis=1), 0)
            best += error * np.maximum.reduceat(absolute, starts, axis=1)
            self.suffix[at : at + chunk, :-1] = np.cumsum(best[:, ::-1], axis=1)[:, ::-1]

    def run(self, quota: int, check: Callable[[], None]) -> bool:
        """Search; false if it was given up because it took more work than ``quota``."""
        weights = [np.zeros(1, dtype=np.int64) for _ in self.moves]
        gain = np.zeros(1, dtype=self.gains.dtype)
        rho = np.zeros(1)
        self._note(-1, weights, gain, rho)
        if not len(self._completable(-1, weights, rho)):
            return True
        for k in range(len(self.bounds) - 1):
            check()
            here = range(self.bounds[k], self.bounds[k + 1])
            width = len(rho)
            self.work += width * (len(here) + 1) + STEP_WORK
            if self.work > quota:
                return False
            rho = np.concatenate([rho, *(rho + self.rho[j] for j in here)])
            weights = [
                np.concatenate([w, *(w + m[j] for j in here)])
                for w, m in zip(weights, self.moves, strict=True)
            ]
            keep = self._completable(k, weights, rho)
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

    def _completable(self, k: int, weights: list[Ints], rho: Floats) -> Ints:
        """States whose loss can still end within the limit."""
        least = rho
        slack = [room - w for room, w in zip(self.slack, weights, strict=True)]
        measure = int(self.measure[k + 1])
        if measure != 1:
            unused = slack[0] % measure if measure else np.maximum(slack[0], 0)
            least = rho + self.losses.multipliers[0] * unused
            slack[0] = slack[0] - unused
        bar = self.limit + self.margin
        alive = np.flatnonzero(least <= bar)
        if len(alive) < len(least):
            least = least[alive]
            slack = [s[alive] for s in slack]
        rays = slice(None)
        if len(self.moves) > 1 and len(alive) > 512:  # a few rays do nearly all the work
            sample = [s[:: len(alive) // 128] for s in slack]
            rays = np.unique(self._shortfall(k, sample, slice(None)).argmax(axis=0))
        return alive[least + self._shortfall(k, slack, rays).max(axis=0) <= bar]

    def _shortfall(self, k: int, slack: list[Ints], rays: slice | Ints) -> Floats:
        """−δ·slack − D(δ), one row per ray."""
        fan = self.fan[:, rays]
        short = np.multiply.outer(-fan[0], slack[0])
        for ray, rest in zip(fan[1:], slack[1:], strict=True):
            short -= np.multiply.outer(ray, rest)
        short -= self.suffix[rays, k + 1][:, None]
        return short

    def _note(self, k: int, weights: list[Ints], gain: NDArray, rho: Floats) -> None:
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
            slack = [room - int(w[i]) for room, w in zip(self.slack, weights, strict=True)]
            self.loss = float(rho[i] + self.losses.multipliers @ np.array(slack, dtype=float))
            self.limit = min(self.limit, self.loss - self.step + self.margin)

    def excess(self, choice: Ints) -> Fraction:
        """By how much, at most, rounded Δvalues hide a better choice than this one. Mostly 0."""
        if not self.rounded or self.found is None:
            return Fraction(0)
        values, reference = self.knapsack.values, self.losses.reference
        here = np.flatnonzero(choice != reference)
        gain = sum(map(Fraction, values[choice[here]].tolist()), Fraction())
        gain -= sum(map(Fraction, values[reference[here]].tolist()), Fraction())
        return max(Fraction(0), int(self._best) * Fraction(2) ** self.exponent - gain)

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
            i, k = before[i], k - 1
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


def _fan(multipliers: Floats, moves: Floats, rho: Floats, limit: float) -> Floats:
    """Offsets δ with y + δ ≥ 0, shape (resources, rays): few directions, many lengths.

    Directions are even in the metric of the moves, lengths follow the losses per unit moved,
    and a few reach so far that a single unit too much costs more than the limit.
    """
    count = len(multipliers)
    covariance = moves @ moves.T / moves.shape[1]
    values, vectors = np.linalg.eigh(covariance)
    floor = max(float(values.max()) * 1e-12, 1e-300)
    whiten = vectors @ np.diag(np.maximum(values, floor) ** -0.5) @ vectors.T
    size = np.sqrt((np.square(whiten @ moves)).sum(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = np.sort(rho / size)
    rates = rates[np.isfinite(rates) & (rates > 0)]
    if count == 1:
        directions = np.array([[1.0, -1.0]])
        places = 1.6 ** np.arange(28)
    else:
        angle = np.arange(14) * (2 * np.pi / 14)
        directions = np.stack([np.cos(angle), np.sin(angle)])
        places = 2.0 ** np.arange(20)
    if len(rates):
        rates = rates[np.unique(np.minimum(places, len(rates)).astype(int) - 1)]
    far = limit * math.sqrt(max(float(values.max()), 1e-300))
    last = float(rates[-1]) if len(rates) else far * 2.0**-20
    reach = last * 4.0 ** np.arange(1, 25)
    lengths = np.concatenate([rates, reach[reach < 4 * far][: 24 if count > 1 else 2]])
    fan = np.multiply.outer(whiten @ directions, lengths).reshape(count, -1)
    rays = np.concatenate([np.zeros((count, 1)), fan, -multipliers[:, None]], axis=1)
    return np.unique(np.maximum(rays, -multipliers[:, None]), axis=1)


def _undominated(weights: list[Ints], gain: NDArray) -> Ints:
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
