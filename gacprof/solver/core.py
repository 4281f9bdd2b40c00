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

from gacprof.solver.dominance import undominated
from gacprof.solver.fan import open_fan
from gacprof.solver.integers import BITS, exact_sum, room_for, scaled
from gacprof.solver.losses import Losses, per_class, sizes
from gacprof.solver.meet import meet
from gacprof.solver.problem import Ints, Knapsack
from gacprof.solver.states import Found, OverQuotaError, Rest, States, Trail, Whole

STEP_WORK = 1024
"""What a class costs to merge, in states: about the fixed price of its array operations."""

COARSE_BITS = 44

FEW_ITEMS = 96
"""So few candidates are searched without any rounding at once."""

BIG_WORK = 6
"""What a state with Python integers costs, in states without."""

QUOTA_STEP = 256
"""The same for the quota."""


@dataclass
class Core:
    """One search. ``loss`` and ``found`` are of the best choice met, ``limit`` shrinks with it.

    ``care``: 0 rounds latencies to 44 bits, so that nearly equal states become equal ones, 1 to
    61, 2 keeps all bits of everything, if the candidates are not too many. Rounding is always
    towards what fits and towards more value, so that no choice is lost; ``exact`` tells whether
    there was any.

    ``work`` is what it cost; ``spent`` is held against the quota, which is there to find out
    early that states explode, and leaves the fixed price of a step mostly aside.
    """

    knapsack: Knapsack
    losses: Losses
    count: int
    limit: float
    care: int = 0
    work: int = 0
    spent: int = 0
    loss: float = math.inf
    found: Found | None = None
    quota: float = math.inf
    history: list[Trail] = field(default_factory=list)
    tails: list[States] = field(default_factory=list)
    _best: Any = None

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
        self.measure_before = np.append(0, np.gcd.accumulate(measure[order]))
        if moves[0].dtype != np.int64:
            self.measure[:] = self.measure_before[:] = 1

    def _to_integers(self) -> None:
        """Moves, the slack they may use, and gains; ``exact`` if none had to be rounded."""
        knapsack, reference = self.knapsack, self.losses.reference
        base = reference[knapsack.owner[self.items]]
        big = self.care > 1 or len(base) <= FEW_ITEMS
        gains = scaled(knapsack.values[self.items], knapsack.values[base], up=True, big=big)
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
                bits = BITS if self.care else COARSE_BITS
                times = scaled(weight[self.items], weight[base], up=False, most_bits=bits, big=big)
                move, unit = times.whole, float(times.unit)
                slack = room_for(room, exact_sum(weight[reference]), times.unit)
                self.exact &= times.exact
            span = sum(map(abs, move.tolist())) + 1
            self.moves.append(move)
            self.slack.append(min(max(slack, -span), span))
            units.append(unit)
        self.prices = self.losses.multipliers * np.array(units)
        big = any(whole.dtype == object for whole in (self.gains, *self.moves))
        self.price = BIG_WORK if big else 1

    def run(self, quota: int, check: Callable[[], None]) -> bool:
        """Search; false if it was given up because it took more work than ``quota``."""
        self.quota = quota
        states = self.root()
        self.note(-1, states)
        if not len(self.completable(states, self.after(0))):
            return True
        try:
            if len(self.moves) > 1:
                meet(self, check)
            else:
                self._merge(states, check)
        except OverQuotaError:
            return False
        return True

    def _merge(self, states: States, check: Callable[[], None]) -> None:
        for k in range(self.classes):
            check()
            states = self.extend(states, k, self.after(k + 1), math.inf)
            self.history.append(states.trail)
            if not len(states.rho):
                return
            self.note(k, states)

    @property
    def classes(self) -> int:
        return len(self.bounds) - 1

    def root(self) -> States:
        none = np.zeros(1, dtype=np.int64)
        weights = [np.zeros(1, dtype=move.dtype) for move in self.moves]
        return States(weights, np.zeros(1, dtype=self.gains.dtype), np.zeros(1), none, none)

    def after(self, k: int) -> Rest:
        """What classes k and later can still do."""
        return Rest(int(self.measure[k]), self.fan.suffix[:, k])

    def before(self, k: int) -> Rest:
        """What the classes before k can still do."""
        return Rest(int(self.measure_before[k]), self.fan.prefix[:, k])

    def extend(self, states: States, k: int, rest: Rest, most: float) -> States:
        """Each state with each candidate of class k, or none; those with ρ ≤ ``most`` that may
        still end within the limit and that no other dominates."""
        here = range(self.bounds[k], self.bounds[k + 1])
        width = len(states.rho)
        self.charge(width * (len(here) + 1))
        rho = np.concatenate([states.rho, *(states.rho + self.rho[j] for j in here)])
        weights = [
            np.concatenate([w, *(w + m[j] for j in here)])
            for w, m in zip(states.weights, self.moves, strict=True)
        ]
        gain = np.concatenate([states.gain, *(states.gain + self.gains[j] for j in here)])
        place = np.arange(len(rho))
        merged = States(weights, gain, rho, place % width, place // width)
        if most < math.inf:
            merged = merged.only(np.flatnonzero(rho <= most))
        merged = merged.only(self.completable(merged, rest))
        return merged.only(undominated(merged.weights, merged.gain))

    def charge(self, states: int) -> None:
        """Raises :class:`OverQuotaError`."""
        self.work += self.price * states + STEP_WORK
        self.spent += self.price * states + QUOTA_STEP
        if self.spent > self.quota:
            raise OverQuotaError

    def completable(self, states: States, rest: Rest) -> Ints:
        """States whose loss can still end within the limit."""
        least = states.rho
        room = [room - w for room, w in zip(self.slack, states.weights, strict=True)]
        if rest.measure != 1:
            unused = room[0] % rest.measure if rest.measure else np.maximum(room[0], 0)
            least = least + self.prices[0] * unused
            room[0] = room[0] - unused
        bar = self.limit + self.margin
        alive = np.flatnonzero(least <= bar)
        slack = [r[alive].astype(np.float64) for r in room]
        rays: slice | Ints = slice(None)
        if len(slack) > 1 and len(alive) > 512:  # a few rays do nearly all the work
            sample = [s[:: len(alive) // 128] for s in slack]
            rays = np.unique(self.fan.shortfall(rest.dual, sample, rays).argmax(axis=0))
        short = self.fan.shortfall(rest.dual, slack, rays).max(axis=0)
        return alive[least[alive] + short <= bar]

    def note(self, k: int, states: States) -> None:
        """Remember the best state that fits, should it better what is known."""
        fits = np.ones(len(states.gain), dtype=bool)
        for w, room in zip(states.weights, self.slack, strict=True):
            fits &= w <= room
        where = np.flatnonzero(fits)
        if len(where):
            i = int(where[np.argmax(states.gain[where])])
            self.take(states.only(np.array([i])), Found(k, i))

    def take(self, state: States, found: Found) -> None:
        """One state that fits: the best so far, or not."""
        if self.found is None or state.gain[0] > self._best:
            self._best, self.found = state.gain[0], found
            rest = [float(r - w[0]) for r, w in zip(self.slack, state.weights, strict=True)]
            self.loss = float(state.rho[0] + self.prices @ np.array(rest))
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
        taken = [] if self.found.item is None else [self.found.item]
        k, i = self.found.last, self.found.state
        while k >= 0:
            taken += self._moved(self.history[k], k, i)
            i, k = int(self.history[k].before[i]), k - 1
        for k, i in self.found.tail:
            taken += self._moved(self.tails[k], k, i)
        items = self.items[taken]
        choice[self.knapsack.owner[items]] = items
        return choice

    def _moved(self, states: States | Trail, k: int, i: int) -> list[int]:
        move = int(states.move[i])
        return [int(self.bounds[k]) + move - 1] if move else []


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
