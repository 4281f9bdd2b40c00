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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gacprof.solver.integers import BITS, Whole, exact_sum, room_for, scaled
from gacprof.solver.problem import Floats, Ints, Knapsack
from gacprof.solver.pruning import multiplier_set, undominated
from gacprof.solver.reduced_costs import Active, loss_errors, sum_over_classes

STEP_WORK, STEP_QUOTA = 1024, 256
"""What a class costs to merge, in states: about the fixed price of its array operations, and
what is held of it against the quota, which is there to find out early that states explode."""

COARSE_BITS = 44

FEW_ITEMS = 96
"""So few candidates are searched without any rounding at once."""

BIG_WORK = 6
"""What a state with Python integers costs, in states without."""


class OverQuotaError(Exception):
    """The next step would be more work than is allowed, and more memory than is wanted."""


@dataclass(frozen=True)
class States:
    """Partial choices, one per entry: Δweights, Δvalue and loss against the reference; ``before``
    and ``move`` (0: the reference's candidate) lead back to the state without the last class."""

    weights: list[Whole]
    gain: Whole
    loss: Floats
    before: Ints
    move: Ints

    def only(self, keep: Ints) -> States:
        return States(
            [w[keep] for w in self.weights],
            self.gain[keep],
            self.loss[keep],
            self.before[keep],
            self.move[keep],
        )


class Rest(NamedTuple):
    """What the classes not yet merged can do: their common divisor, their dual per offset."""

    divisor: int
    dual: Floats


class Core:
    """One search of the first ``count`` active items for choices that lose at most ``limit``.

    ``loss`` is of the best choice met, and ``limit`` shrinks with it. Unless ``careful``,
    latencies are rounded to 44 bits, so that nearly equal states become equal ones; ``careful``
    keeps all bits of everything, if the candidates are not too many. Rounding is always towards
    what fits and towards more value, so that no choice is lost; ``exact`` tells whether there
    was any. ``work`` is what the search cost, ``spent`` what is held against the quota.
    """

    def __init__(
        self, knapsack: Knapsack, active: Active, count: int, limit: float, *, careful: bool
    ) -> None:
        self.knapsack, self.reference, self.limit = knapsack, active.reference, limit
        self.items = active.items[:count]
        self.item_loss = np.maximum(active.loss[:count], 0.0)
        self.work = self.spent = 0
        self.quota = math.inf
        self.loss = math.inf
        self.taken: list[int] | None = None
        self._best_gain: Any = None
        self.history: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
        self._order(active.multipliers)
        self._to_integers(active.multipliers, careful)
        errors = loss_errors(knapsack, active.multipliers, self.reference, self.items)
        self.margin = 2 * (active.tied + sum_over_classes(knapsack, self.items, errors))
        moves = np.array([move.astype(float) for move in self.moves])
        self.offsets = multiplier_set(self.prices, moves, self.item_loss, self.bounds, limit)

    def _order(self, multipliers: Floats) -> None:
        """Classes: those off the common divisor of the others first, then the cheapest to use.

        The divisor of the weights still to come then grows early, and with it what it rules out.
        """
        knapsack = self.knapsack
        owner = knapsack.owner[self.items]
        base = self.reference[owner]
        moves = [np.abs(w[self.items] - w[base]) for w in knapsack.weights]
        size = sum(y * m for y, m in zip(multipliers, moves, strict=True))
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.nan_to_num(self.item_loss / size, nan=np.inf)
        classes, of = np.unique(owner, return_inverse=True)
        cheapest = np.full(len(classes), np.inf)
        np.minimum.at(cheapest, of, rate)
        divisor = np.ones(len(classes), dtype=np.int64)
        if moves[0].dtype == np.int64:
            by_class = np.argsort(of, kind="stable")
            starts = np.searchsorted(of[by_class], np.arange(len(classes)))
            divisor = np.gcd.reduceat(moves[0][by_class], starts)
        order = np.lexsort((cheapest, _layers(divisor)))
        rank = np.empty(len(classes), dtype=np.int64)
        rank[order] = np.arange(len(classes))
        place = np.argsort(rank[of], kind="stable")
        self.items, self.item_loss = self.items[place], self.item_loss[place]
        self.bounds = np.searchsorted(rank[of][place], np.arange(len(classes) + 1))
        end = 0 if moves[0].dtype == np.int64 else 1  # latencies have no divisor
        self.divisor_after = np.append(np.gcd.accumulate(divisor[order][::-1])[::-1], end)
        self.divisor_before = np.append(end, np.gcd.accumulate(divisor[order]))

    def _to_integers(self, multipliers: Floats, careful: bool) -> None:
        """Moves, the slack they may use, and gains; ``exact`` if none had to be rounded."""
        knapsack, reference = self.knapsack, self.reference
        base = reference[knapsack.owner[self.items]]
        big = careful or len(base) <= FEW_ITEMS
        gains = scaled(knapsack.values[self.items], knapsack.values[base], up=True, big=big)
        self.gains, self.unit = gains.whole, gains.unit
        self.exact, self.step = gains.exact, gains.step
        self.moves: list[Whole] = []
        self.slack: list[int] = []
        self.prices = multipliers.copy()
        for k, (weight, room) in enumerate(zip(knapsack.weights, knapsack.room, strict=True)):
            if weight.dtype == np.int64:
                move = weight[self.items] - weight[base]
                slack = int(room) - int(weight[reference].sum())
            else:
                bits = BITS if careful else COARSE_BITS
                times = scaled(weight[self.items], weight[base], up=False, most_bits=bits, big=big)
                move = times.whole
                slack = room_for(float(room), exact_sum(weight[reference]), times.unit)
                self.exact &= times.exact
                self.prices[k] *= float(times.unit)
            span = sum(map(abs, move.tolist())) + 1
            self.moves.append(move)
            self.slack.append(min(max(slack, -span), span))
        big = any(whole.dtype == object for whole in (self.gains, *self.moves))
        self.state_work = BIG_WORK if big else 1

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
            self.record(k, states)
            if not len(states.loss):
                return

    def root(self) -> States:
        """The reference choice alone."""
        none = np.zeros(1, dtype=np.int64)
        weights = [np.zeros(1, dtype=move.dtype) for move in self.moves]
        return States(weights, np.zeros(1, dtype=self.gains.dtype), np.zeros(1), none, none)

    def after(self, k: int) -> Rest:
        """What classes k and later can still do."""
        return Rest(int(self.divisor_after[k]), self.offsets.suffix[:, k])

    def before(self, k: int) -> Rest:
        """What the classes before k can still do."""
        return Rest(int(self.divisor_before[k]), self.offsets.prefix[:, k])

    def extend(self, states: States, k: int, rest: Rest, most: float) -> States:
        """Each state with each candidate of class k, or none; those with a loss ≤ ``most`` that
        may still end within the limit and that no other dominates."""
        here = range(self.bounds[k], self.bounds[k + 1])
        width = len(states.loss)
        self.charge(width * (len(here) + 1))
        loss = np.concatenate([states.loss, *(states.loss + self.item_loss[j] for j in here)])
        weights = [
            np.concatenate([w, *(w + m[j] for j in here)])
            for w, m in zip(states.weights, self.moves, strict=True)
        ]
        gain = np.concatenate([states.gain, *(states.gain + self.gains[j] for j in here)])
        place = np.arange(len(loss))
        merged = States(weights, gain, loss, place % width, place // width)
        if most < math.inf:
            merged = merged.only(np.flatnonzero(loss <= most))
        merged = merged.only(self.completable(merged, rest))
        return merged.only(undominated(merged.weights, merged.gain))

    def charge(self, states: int) -> None:
        """Raises :class:`OverQuotaError`."""
        self.work += self.state_work * states + STEP_WORK
        self.spent += self.state_work * states + STEP_QUOTA
        if self.spent > self.quota:
            raise OverQuotaError

    def completable(self, states: States, rest: Rest) -> Ints:
        """States whose loss can still end within the limit."""
        least = states.loss
        room = [room - w for room, w in zip(self.slack, states.weights, strict=True)]
        if rest.divisor != 1:
            unused = room[0] % rest.divisor if rest.divisor else np.maximum(room[0], 0)
            least = least + self.prices[0] * unused
            room[0] = room[0] - unused
        alive = np.flatnonzero(least <= self.bar)
        slack = [r[alive].astype(np.float64) for r in room]
        chosen: slice | Ints = slice(None)
        if len(slack) > 1 and len(alive) > 512:  # a few offsets do nearly all the work
            sample = [s[:: len(alive) // 128] for s in slack]
            chosen = np.unique(self.offsets.shortfall(rest.dual, sample, chosen).argmax(axis=0))
        short = self.offsets.shortfall(rest.dual, slack, chosen).max(axis=0)
        return alive[least[alive] + short <= self.bar]

    def record(self, k: int, states: States) -> None:
        """Keep what leads back from the states after class k, and the best that fits."""
        self.history.append((states.before.astype(np.int32), states.move.astype(np.int32)))
        self.note(k, states)

    def note(self, k: int, states: States) -> None:
        fits = np.ones(len(states.gain), dtype=bool)
        for w, room in zip(states.weights, self.slack, strict=True):
            fits &= w <= room
        where = np.flatnonzero(fits)
        if len(where):
            i = int(where[np.argmax(states.gain[where])])
            if self.improves(states.gain[i]):
                best = states.only(np.array([i]))
                self.take(best, self.prefix(k, i))

    def improves(self, gain: Any) -> bool:
        return self.taken is None or bool(gain > self._best_gain)

    def take(self, state: States, taken: list[int]) -> None:
        """Remember one state that fits, and what it takes, as the best so far."""
        self._best_gain, self.taken = state.gain[0], taken
        rest = [float(r - w[0]) for r, w in zip(self.slack, state.weights, strict=True)]
        self.loss = float(state.loss[0] + self.prices @ np.array(rest))
        self.limit = min(self.limit, self.loss - self.step + self.margin)

    def prefix(self, k: int, i: int) -> list[int]:
        """What state i after class k takes other than the reference."""
        taken = []
        for at in range(k, -1, -1):
            before, move = self.history[at]
            if move[i]:
                taken.append(int(self.bounds[at] + move[i] - 1))
            i = int(before[i])
        return taken

    def excess(self, choice: Ints) -> Fraction:
        """By how much, at most, rounded integers hide a better choice than this one."""
        if self.exact or self.taken is None:
            return Fraction(0)
        values, reference = self.knapsack.values, self.reference
        here = np.flatnonzero(choice != reference)
        gain = exact_sum(values[choice[here]]) - exact_sum(values[reference[here]])
        return max(Fraction(0), int(self._best_gain) * self.unit - gain)

    def choice(self) -> Ints:
        """The best choice met, as items of the knapsack."""
        choice = self.reference.copy()
        items = self.items[self.taken]
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
