"""Exhaustive search of a core: every choice of few candidates that loses at most g.

A choice loses at most g against the dual bound only if each of its candidates does, and those
are few: the *core*. Its classes are merged one after another into states (Δweights, Δvalue, ρ)
relative to the reference choice. A state is dropped when

- the rest of the core cannot bring it within g, or another state dominates it
  (:mod:`gacprof.solver.pruning`);
- a common divisor of the weights still to come leaves part of its slack unused.

Weights and values are exact integers; ρ and the bounds are doubles, and a state is dropped
only when its bound is beyond g by more than their rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gacprof.solver.dual import Active
from gacprof.solver.knapsack import Knapsack
from gacprof.solver.problem import Floats, Ints
from gacprof.solver.pruning import multiplier_set, undominated

STEP_WORK, STEP_QUOTA = 1024, 256
"""What a class costs to merge, in states: about the fixed price of its array operations, and
what is held of it against the quota, which is there to find out early that states explode."""

BITS = 61
"""Σ|gain| of a core's items stays below 2**BITS, so that int64 sums cannot overflow."""


class OverQuotaError(Exception):
    """The next step would be more work than is allowed, and more memory than is wanted."""


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
        return States(
            self.weights[:, keep],
            self.gain[keep],
            self.loss[keep],
            self.before[keep],
            self.item[keep],
        )


class Rest(NamedTuple):
    """What the classes not yet merged can do: their common divisor, their D per multiplier."""

    divisor: int
    dual: Floats


class Core:
    """One search of the first ``count`` active items for choices that lose at most ``limit``.

    ``loss`` is of the best choice met, and ``limit`` shrinks with it. Gains that need more than 61
    bits are rounded up, so that no choice is lost.
    ``work`` is what the search cost, ``spent`` what is held against the quota.
    """

    def __init__(self, knapsack: Knapsack, active: Active, count: int, limit: float) -> None:
        self.knapsack, self.reference, self.limit = knapsack, active.reference, limit
        self.work = self.spent = 0
        self.quota = math.inf
        self.loss = math.inf
        self.best: list[int] | None = None
        self._best_gain = 0
        self.history: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
        self.multipliers = active.multipliers
        self._lay_out(active.items[:count], active.loss[:count])
        self.gains, self.unit, self.exact = self._integer_gains()
        self.step = math.nextafter(float(self.unit), 0.0) if self.exact else 0.0
        base = self.reference[knapsack.owner[self.items]]
        self.moves = np.array([weight[self.items] - weight[base] for weight in knapsack.weights])
        span = np.abs(self.moves).sum(axis=1) + 1
        self.slack = np.clip(knapsack.slack(self.reference), -span, span)
        self.margin = 2 * active.slop + 4 * active.error * self.classes
        moves = self.moves.astype(np.float64)
        self.around = multiplier_set(
            self.multipliers, moves, self.item_loss, self.bounds[:-1], limit
        )

    def _lay_out(self, items: Ints, loss: Floats) -> None:
        """The items class by class, the reference's first. Classes off the common divisor of the
        others come first, then those that are cheapest to use: the divisor of the weights still
        to come then grows early, and with it what it rules out."""
        classes, of = np.unique(self.knapsack.owner[items], return_inverse=True)
        base = self.reference[classes]
        moved = [np.abs(weight[items] - weight[base[of]]) for weight in self.knapsack.weights]
        size = self.multipliers @ moved
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.nan_to_num(loss / size, nan=np.inf)
        cheapest = np.full(len(classes), np.inf)
        np.minimum.at(cheapest, of, rate)
        divisor = np.zeros(len(classes), dtype=np.int64)
        np.gcd.at(divisor, of, moved[0])
        order = np.lexsort((cheapest, _layers(divisor)))
        rank = np.argsort(order)
        rank = np.concatenate([rank, rank[of]])
        place = np.argsort(rank, kind="stable")
        self.items = np.concatenate([base, items])[place]
        self.item_loss = np.concatenate([np.zeros(len(classes)), loss])[place]
        self.bounds = np.searchsorted(rank[place], np.arange(len(classes) + 1))
        self.divisor_after = np.append(np.gcd.accumulate(divisor[order][::-1])[::-1], 0)
        self.divisor_before = np.append(0, np.gcd.accumulate(divisor[order]))

    def _integer_gains(self) -> tuple[Ints, Fraction, bool]:
        """Δvalues as integers of a unit, rounded up if need be; that unit; whether none was."""
        values = self.knapsack.values
        base = values[self.reference[self.knapsack.owner[self.items]]]
        ratios = [one.as_integer_ratio() for one in (*values[self.items].tolist(), *base.tolist())]
        finest = max(below for _, below in ratios)  # of powers of two
        whole = [above * (finest // below) for above, below in ratios]
        exact = [a - b for a, b in zip(whole, whole[len(base) :], strict=False)]
        divisor = math.gcd(*exact) or 1
        exact = [one // divisor for one in exact]
        needed = sum(map(abs, exact)).bit_length()
        drop = needed - BITS + 1 if needed > BITS else 0
        gains = np.array([-(-one >> drop) for one in exact], dtype=np.int64)
        return gains, Fraction(divisor << drop, finest), not drop

    @property
    def classes(self) -> int:
        return len(self.bounds) - 1

    @property
    def bar(self) -> float:
        """The limit and the rounding of what is held against it."""
        return self.limit + self.margin

    def merge(self, check: Callable[[], None]) -> None:
        """Search by merging class after class. Raises :class:`OverQuotaError`."""
        states = self.root()
        for k in range(self.classes):
            check()
            states = self.extend(states, k, self.after(k + 1), math.inf)
            self.record(states)
            if not len(states.loss):
                return

    def root(self) -> States:
        """The reference choice alone."""
        none = np.zeros(1, dtype=np.int64)
        weights = np.zeros((len(self.moves), 1), dtype=np.int64)
        return States(weights, none, np.zeros(1), none, none)

    def after(self, k: int) -> Rest:
        """What classes k and later can still do."""
        return Rest(int(self.divisor_after[k]), self.around.suffix[:, k])

    def before(self, k: int) -> Rest:
        """What the classes before k can still do."""
        return Rest(int(self.divisor_before[k]), self.around.prefix[:, k])

    def extend(self, states: States, k: int, rest: Rest, most: float) -> States:
        """Each state with each candidate of class k: those with a loss ≤ ``most`` that may still
        end within the limit and that no other dominates."""
        here = np.arange(self.bounds[k], self.bounds[k + 1])
        width = len(states.loss)
        self.charge(width * len(here))
        place, item = np.tile(np.arange(width), len(here)), np.repeat(here, width)
        merged = self.moved(states, place, item)
        if most < math.inf:
            merged = merged.only(np.flatnonzero(merged.loss <= most))
        merged = merged.only(self.completable(merged, rest))
        return merged.only(undominated(merged.weights, merged.gain))

    def moved(self, states: States, place: Ints, item: Ints) -> States:
        """States ``place``, each with its ``item`` of the next class."""
        return States(
            states.weights[:, place] + self.moves[:, item],
            states.gain[place] + self.gains[item],
            states.loss[place] + self.item_loss[item],
            place,
            item,
        )

    def charge(self, states: int) -> None:
        """Raises :class:`OverQuotaError`."""
        self.work += states + STEP_WORK
        self.spent += states + STEP_QUOTA
        if self.spent > self.quota:
            raise OverQuotaError

    def completable(self, states: States, rest: Rest) -> Ints:
        """States whose loss can still end within the limit."""
        least = states.loss
        room = self.slack[:, None] - states.weights
        if rest.divisor != 1:
            unused = room[0] % rest.divisor if rest.divisor else np.maximum(room[0], 0)
            least = least + self.multipliers[0] * unused
            room[0] -= unused
        alive = np.flatnonzero(least <= self.bar)
        slack = room[:, alive].astype(np.float64)
        short = self.around.shortfall(rest.dual, slack)
        return alive[least[alive] + short <= self.bar]

    def record(self, states: States) -> None:
        """Keep what leads back from the states of the next class, and the best that fits."""
        self.history.append((states.before.astype(np.int32), states.item.astype(np.int32)))
        i = self.best_fitting(states.weights, states.gain)
        if i is not None:
            self.take(states.only(np.array([i])), self.trace(len(self.history) - 1, i))

    def best_fitting(self, weights: Ints, gain: Ints) -> int | None:
        """The place of the best state that fits, if it beats the best so far."""
        where = np.flatnonzero((weights <= self.slack[:, None]).all(axis=0))
        if not len(where):
            return None
        i = int(where[np.argmax(gain[where])])
        return i if self.best is None or gain[i] > self._best_gain else None

    def take(self, state: States, items: list[int]) -> None:
        """Remember one state that fits, and the items it takes, as the best so far."""
        self._best_gain, self.best = int(state.gain[0]), items
        self.loss = float(state.loss[0] + self.multipliers @ (self.slack - state.weights[:, 0]))
        self.limit = min(self.limit, self.loss - self.step + self.margin)

    def trace(self, k: int, i: int) -> list[int]:
        """The items that state i after class k takes."""
        taken = []
        for before, item in reversed(self.history[: k + 1]):
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


def _layers(divisor: Ints) -> Ints:
    """Layer per class, ascending: the last holds the classes of the most common large divisor."""
    layer = np.zeros(len(divisor), dtype=np.int64)
    left = np.arange(len(divisor))
    depth = 0
    while len(left):
        values, counts = np.unique(divisor[left], return_counts=True)
        usual = values[np.argsort(-counts, kind="stable")[:32]]
        shared = [int(m) for m in usual if m and 2 * (divisor[left] % m == 0).sum() >= len(left)]
        common = max([int(np.gcd.reduce(divisor[left])), *shared])
        inside = divisor[left] % common == 0 if common else np.ones(len(left), dtype=bool)
        layer[left[inside]] = depth
        left = left[~inside]
        depth -= 1
    return layer
