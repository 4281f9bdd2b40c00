"""Exhaustive search of a core: every choice of few candidates that loses at most g.

A choice loses at most g against the dual bound only if each of its candidates does, and those
are few: the *core*. Its classes are merged one after another into states (Δweights, Δvalue, ρ)
relative to the reference choice. A state is dropped when

- another dominates it: weighs no more in anything and is worth no less;
- no completion brings it within g. Whatever the remaining classes do, the loss ends at least at
  ρ − δ·slack − D(δ), for any change δ of the multipliers y with y + δ ≥ 0, where
  D(δ) = Σ max(0, maxⱼ −ρⱼ − δ·Δweightⱼ) over the remaining classes: it is the dual bound at y + δ.
  A set of such changes, laid around y, comes close to the best of all;
- a common divisor of the weights still to come leaves so much of its slack unused.

Weights and values are exact integers; ρ and the bounds are doubles, and a state is dropped
only when its bound is beyond g by more than their rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gacprof.solver.dual import Active
from gacprof.solver.problem import Floats, Ints, Knapsack

STEP_WORK, STEP_QUOTA = 1024, 256
"""What a class costs to merge, in states: about the fixed price of its array operations, and
what is held of it against the quota, which is there to find out early that states explode."""

DEPTH = (8, 1)
"""Layers of common divisors that classes are ordered by, for one resource and for two, where the
order of the losses matters more."""

BITS = 61
"""Σ|gain| of a core's items stays below 2**BITS, so that int64 sums cannot overflow."""

NEIGHBOURS = 4
"""Of two weights, a state is compared with so many that weigh next less in the first."""

DIRECTIONS, LENGTHS, SAMPLE = 14, 40, 128
"""How many multipliers are laid around y: in so many directions (two resources), so far. Which of
them prune most is learnt from a sample of the states."""

CHUNK = 500_000
"""Numbers held at once while D is tabulated."""


@dataclass(frozen=True)
class States:
    """Partial choices: Δweights of shape (resources, states), Δvalue and loss against the
    reference; ``before`` and ``item`` lead back to the state without the last class."""

    weights: Ints
    gain: Ints
    loss: Floats
    before: Ints
    item: Ints

    def only(self, keep: Ints) -> States:
        weights, gain, loss = self.weights[:, keep], self.gain[keep], self.loss[keep]
        return States(weights, gain, loss, self.before[keep], self.item[keep])


class Core:
    """One search of the first ``count`` active items for choices that lose at most ``limit``.

    ``limit`` shrinks to the loss of the best choice met. Gains that need more than 61 bits are
    rounded up, so that no choice is lost. ``work`` is what the search cost, in states.
    """

    def __init__(self, knapsack: Knapsack, active: Active, count: int, limit: float) -> None:
        self.knapsack, self.reference, self.limit = knapsack, active.reference, limit
        self.multipliers, self.work = active.multipliers, 0
        self.best: list[int] | None = None
        self._best_gain = 0
        self.history: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
        self._lay_out(active.items[:count], active.loss[:count])
        self.gains, self.unit, self.exact = self._integer_gains()
        self.step = math.nextafter(float(self.unit), 0.0) if self.exact else 0.0
        base = self.reference[knapsack.owner[self.items]]
        self.moves = np.array([weight[self.items] - weight[base] for weight in knapsack.weights])
        span = np.abs(self.moves).sum(axis=1) + 1
        self.slack = np.clip(knapsack.slack(self.reference), -span, span)
        self.margin = 2 * active.slop + 4 * active.error * self.classes
        moves = self.moves.astype(np.float64)
        changes = _changes(self.multipliers, moves, self.item_loss, limit)
        self.bounding = Bounding(changes, moves, self.item_loss, self.bounds[:-1])

    def _lay_out(self, items: Ints, loss: Floats) -> None:
        """The items class by class, the reference's first. Classes off the common divisor of the
        others come first, then those that are cheapest to use: the divisor of the weights still
        to come then grows early, and with it what it rules out."""
        classes, of = np.unique(self.knapsack.owner[items], return_inverse=True)
        base = self.reference[classes]
        moved = [np.abs(weight[items] - weight[base[of]]) for weight in self.knapsack.weights]
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.nan_to_num(loss / (self.multipliers @ moved), nan=np.inf)
        cheapest = np.full(len(classes), np.inf)
        np.minimum.at(cheapest, of, rate)
        divisor = np.zeros(len(classes), dtype=np.int64)
        np.gcd.at(divisor, of, moved[0])
        self.classes = len(classes)
        order = np.lexsort((cheapest, _layers(divisor, DEPTH[len(moved) - 1])))
        rank = np.argsort(order)
        rank = np.concatenate([rank, rank[of]])
        place = np.argsort(rank, kind="stable")
        self.items = np.concatenate([base, items])[place]
        self.item_loss = np.concatenate([np.zeros(len(classes)), loss])[place]
        self.bounds = np.searchsorted(rank[place], np.arange(len(classes) + 1))
        self.divisors = np.append(np.gcd.accumulate(divisor[order][::-1])[::-1], 0)

    def _integer_gains(self) -> tuple[Ints, Fraction, bool]:
        """Δvalues as integers of a unit, rounded up if need be; that unit; whether none was."""
        values = self.knapsack.values
        base = values[self.reference[self.knapsack.owner[self.items]]]
        ratios = [one.as_integer_ratio() for one in (*values[self.items].tolist(), *base.tolist())]
        finest = max(below for _, below in ratios)  # of powers of two
        whole = [above * (finest // below) for above, below in ratios]
        gains = [a - b for a, b in zip(whole, whole[len(base) :], strict=False)]
        divisor = math.gcd(*gains) or 1
        gains = [one // divisor for one in gains]
        bits = sum(map(abs, gains)).bit_length()
        drop = bits - BITS + 1 if bits > BITS else 0
        rounded = np.array([-(-one >> drop) for one in gains], dtype=np.int64)
        return rounded, Fraction(divisor << drop, finest), not drop

    def search(self, quota: int, check: Callable[[], None]) -> bool:
        """Merge class after class; false if that was given up for taking more work than ``quota``.
        ``check`` is called before each class and may raise."""
        none = np.zeros(1, dtype=np.int64)
        weights = np.zeros((len(self.moves), 1), dtype=np.int64)
        states = States(weights, none, np.zeros(1), none, none)
        self._note(states)
        states = states.only(self._completable(states, 0))
        spent = 0
        for k in range(self.classes):
            check()
            candidates = len(states.loss) * int(self.bounds[k + 1] - self.bounds[k])
            self.work += candidates + STEP_WORK
            spent += candidates + STEP_QUOTA
            if spent > quota:
                return False
            states = self._extended(states, k)
            self.history.append((states.before.astype(np.int32), states.item.astype(np.int32)))
            self._note(states)
        return True

    def _extended(self, states: States, k: int) -> States:
        """Each state with each candidate of class k: those that may still end within the limit and
        that no other dominates."""
        here, width = np.arange(self.bounds[k], self.bounds[k + 1]), len(states.loss)
        place, item = np.tile(np.arange(width), len(here)), np.repeat(here, width)
        merged = States(
            states.weights[:, place] + self.moves[:, item],
            states.gain[place] + self.gains[item],
            states.loss[place] + self.item_loss[item],
            place,
            item,
        )
        merged = merged.only(self._completable(merged, k + 1))
        return merged.only(undominated(merged.weights, merged.gain))

    def _completable(self, states: States, k: int) -> Ints:
        """States whose loss can still end within the limit by what classes k and later can do."""
        bar = self.limit + self.margin
        least = states.loss
        room = self.slack[:, None] - states.weights
        divisor = int(self.divisors[k])
        if divisor != 1:
            unused = room[0] % divisor if divisor else np.maximum(room[0], 0)
            least = least + self.multipliers[0] * unused
            room[0] -= unused
        alive = np.flatnonzero(least <= bar)
        more = self.bounding.least_more(k, room[:, alive].astype(np.float64))
        return alive[least[alive] + more <= bar]

    def _note(self, states: States) -> None:
        """Keep the best of the states that fit, if it beats the best so far."""
        where = np.flatnonzero((states.weights <= self.slack[:, None]).all(axis=0))
        if not len(where):
            return
        i = int(where[np.argmax(states.gain[where])])
        if self.best is None or states.gain[i] > self._best_gain:
            self._best_gain, self.best = int(states.gain[i]), self._trace(i)
            unused = self.multipliers @ (self.slack - states.weights[:, i])
            loss = float(states.loss[i] + unused)
            self.limit = min(self.limit, loss - self.step + self.margin)

    def _trace(self, i: int) -> list[int]:
        """The items that state i of the last class takes."""
        taken = []
        for before, item in reversed(self.history):
            taken.append(int(item[i]))
            i = int(before[i])
        return taken

    def excess(self, choice: Ints) -> Fraction:
        """By how much, at most, rounded gains hide a better choice than this one."""
        if self.exact or self.best is None:
            return Fraction(0)
        gain = self.knapsack.exact_gain(choice, self.reference)
        return max(Fraction(0), self._best_gain * self.unit - gain)

    def choice(self) -> Ints:
        """The best choice met."""
        choice = self.reference.copy()
        items = self.items[np.array(self.best, dtype=np.int64)]
        choice[self.knapsack.owner[items]] = items
        return choice


def _layers(divisor: Ints, most: int) -> Ints:
    """Layer per class: the last holds those of the largest divisor that at least half share, the
    one before it those of the largest that half of the rest share, and so on."""
    layer, left = np.zeros(len(divisor), dtype=np.int64), np.arange(len(divisor))
    for depth in range(most):
        part = divisor[left]
        shared = [m for m in np.unique(part) if m and 2 * (part % m == 0).sum() >= len(part)]
        common = max(shared, default=int(np.gcd.reduce(part)) or 1)
        left = left[part % common != 0]
        layer[left] = -depth - 1
        if not len(left):
            break
    return layer


def undominated(weights: Ints, gain: Ints) -> Ints:
    """Places of the states to keep, lightest first; for two weights some dominated ones stay."""
    order = np.lexsort((-gain, *weights[::-1]))
    gain = gain[order]
    keep = np.ones(len(order), dtype=bool)
    if len(weights) == 1:
        keep[1:] = gain[1:] > np.maximum.accumulate(gain)[:-1]
        return order[keep]
    other = weights[1][order]
    for lag in range(1, min(NEIGHBOURS + 1, len(order))):
        before, after = slice(None, -lag), slice(lag, None)
        keep[after] &= ~((other[before] <= other[after]) & (gain[before] >= gain[after]))
    return order[keep]


class Bounding:
    """``changes`` δ of the multipliers, shape (m, resources); column k of ``rest`` is D(δ) of the
    classes from k on. ``moves`` are the Δweights, shape (resources, items), class after class from
    ``starts`` on."""

    def __init__(self, changes: Floats, moves: Floats, loss: Floats, starts: Ints) -> None:
        error = (len(starts) + 64) * 2.0**-52  # of a sum over the classes, of terms this large
        self.changes, self.rest = changes, np.zeros((len(changes), len(starts) + 1))
        step = max(1, CHUNK // len(loss))
        for at in range(0, len(changes), step):
            some = changes[at : at + step]
            best = np.maximum(-np.minimum.reduceat(loss + some @ moves, starts, axis=1), 0)
            size = loss + np.abs(some) @ np.abs(moves)
            best += error * np.maximum.reduceat(size, starts, axis=1)
            self.rest[at : at + step, :-1] = np.cumsum(best[:, ::-1], axis=1)[:, ::-1]

    def least_more(self, k: int, slack: Floats) -> Floats:
        """The most of −δ·slack − D(δ) over all δ, for each state before class k: what its loss
        rises by at least.

        A few δ do nearly all the work: those that are best for some of a sample of the states.
        Any selection gives a valid bound.
        """
        states = slack.shape[1]
        changes, rest = self.changes, self.rest[:, k]
        if states > 4 * SAMPLE:
            sample = slack[:, :: states // SAMPLE]
            useful = np.unique((-(changes @ sample) - rest[:, None]).argmax(axis=0))
            changes, rest = changes[useful], rest[useful]
        return np.asarray((-(changes @ slack) - rest[:, None]).max(axis=0))


def _changes(multipliers: Floats, moves: Floats, loss: Floats, limit: float) -> Floats:
    """Directions are even in the metric of the moves. Lengths rise from the least loss per unit
    moved to where a single unit too much costs more than the limit."""
    count = len(multipliers)
    unit = np.abs(moves).max(axis=1)
    unit[unit == 0] = 1.0
    scaled = moves / unit[:, None]  # so that no square overflows
    values, vectors = np.linalg.eigh(scaled @ scaled.T / scaled.shape[1])
    largest = max(float(values.max()), 1e-280)
    whiten = vectors @ np.diag(np.maximum(values, 1e-12 * largest) ** -0.5) @ vectors.T
    size = np.linalg.norm(whiten @ scaled, axis=0)
    angle = np.arange(DIRECTIONS) * (2 * np.pi / DIRECTIONS)
    directions = np.array([[1.0, -1.0]]) if count == 1 else np.stack([np.cos(angle), np.sin(angle)])
    useful = (size > 0) & (loss > 0)
    rates = np.sort(loss[useful] / size[useful])
    lengths = np.zeros(1)
    if len(rates):
        far = max(4 * limit * float(unit.max()) * largest**0.5, 4 * rates[-1])
        places = np.unique(np.geomspace(1, len(rates), LENGTHS // 2).astype(int) - 1)
        lengths = np.append(rates[places], np.geomspace(rates[-1], far, LENGTHS // 2)[1:])
    changes = np.multiply.outer(lengths, (whiten @ directions).T).reshape(-1, count) / unit
    changes = np.concatenate([np.zeros((1, count)), changes, -multipliers[None]])
    return np.unique(np.maximum(changes, -multipliers), axis=0)
