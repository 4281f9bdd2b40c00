"""One resource, exactly: Lagrange's multiplier, and an exhaustive search of the core around it.

For a price λ ≥ 0 of the resource every choice that fits has

    value ≤ Σᵢ maxⱼ (vᵢⱼ − λ·wᵢⱼ) + λ·room.

The λ of the least bound is found by bracketing: *light* is the best choice at a high price and
fits, *heavy* at a low one and does not; the next λ is the slope between them, until no better
choice lies there. At that λ a candidate's *loss* is what it lacks of the best of its class. A
choice's losses, and its unused room at the price λ, add up to what it lacks of the bound: so a
choice better than the best one known (the incumbent) has only candidates that lose less than that
does. These are few, the *core*, and are searched for rising thresholds: class after class is
merged into states (weight, value) relative to the light choice. A state is dropped if another
weighs no more and is worth no less, or if no completion brings it above the incumbent: by the bound
at the best of many prices. Once the incumbent loses no more than the threshold, it is optimal.

Sinha and Zoltners (1979) for the bound, Pisinger (1995) for the core.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import numpy as np

from gacprof.core import Progress
from gacprof.core.errors import SolverError
from gacprof.solver.problem import HEADROOM, Classes, Floats, InfeasibleBudget, Ints, Solution

STEPS = 200
"""Far more prices than are needed: two or three dozen do."""
FIRST_CORE, GROWTH = 48, 3
"""Candidates of the first core, and by how much each core exceeds the one before."""
PRICES = 24
"""Prices above and below λ that the bound of a state is taken over."""
MOST_STATES = 1 << 22
"""Of more states than this a class is not extended by: half a gigabyte."""
BITS = 44
"""Amounts that are no integers are rounded to so many bits of the room, downwards: no choice that
fits is lost. Where the best then fits by that rounding alone, upwards."""


@dataclass
class Caps:
    """What may be spent: states looked at, and time on the monotonic clock."""

    work: int
    deadline: float | None = None
    progress: Progress | None = None

    def spend(self, states: int) -> None:
        """Raises :class:`TimeoutError` saying which cap was reached."""
        self.work -= states
        if self.work < 0:
            raise TimeoutError("the work cap was reached")
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise TimeoutError("the time limit was reached")


def solve_one(classes: Classes, caps: Caps) -> Solution:
    """The best choice within the one resource. Raises :class:`InfeasibleBudget`."""
    (resource,) = classes.resources
    above = resource.takes - classes.least(resource.takes)
    floor = resource.of(classes.starts + _first_least(classes, resource.takes))
    if resource.most < floor:
        raise InfeasibleBudget(
            f"the limit of {resource.name} is {resource.most}: the least of every class takes "
            f"{floor}", 0, floor,
        )  # fmt: skip
    if resource.whole:
        widest = sum(np.maximum.reduceat(above, classes.starts).tolist())
        if widest >= HEADROOM:
            raise SolverError("the spread of the costs is beyond 64 bits: count in a larger unit")
        most = math.floor(min(resource.most, floor + widest)) - floor
        return _OneSearch(classes, above, int(most), caps).run()
    room = min(resource.most - floor, float(above.max()) * len(classes.lengths)) or 1.0
    scaled = np.minimum(above / room, 2.0) * 2.0**BITS
    slack = 2**BITS if resource.most > floor else 0
    found = _OneSearch(classes, np.floor(scaled).astype(np.int64), slack, caps).run()
    if found.takes[0] <= resource.most:
        return found
    other = _OneSearch(classes, np.ceil(scaled).astype(np.int64), slack, caps).run()
    return Solution(
        other.choice, other.value, other.takes, found.bound, other.value >= found.bound,
        other.notes, other.interrupted,
    )  # fmt: skip


def _first_least(classes: Classes, takes: Ints | Floats) -> Ints:
    at = np.flatnonzero(takes == classes.least(takes))
    return at[np.searchsorted(classes.owner[at], np.arange(len(classes.lengths)))] - classes.starts


@dataclass
class _Core:
    """Candidates class after class (``starts``), relative to those of the reference: weight, gain
    and loss; ``items`` are their places in the search."""

    items: Ints
    weight: Ints
    gain: Floats
    loss: Floats
    starts: Ints


@dataclass
class _States:
    """Partial choices; ``before`` and ``item`` lead back, class by class."""

    weight: Ints
    gain: Floats
    history: list[tuple[Ints, Ints]] = field(default_factory=list)

    def trace(self, state: int) -> list[int]:
        taken = []
        for before, item in reversed(self.history):
            taken.append(int(item[state]))
            state = int(before[state])
        return taken


class _OneSearch:
    """``weight`` of all candidates above the least of their class; those that do not fit beside
    the least of the others are left out."""

    def __init__(self, classes: Classes, weight: Ints, room: int, caps: Caps) -> None:
        self.classes, self.caps = classes, caps
        divisor = int(np.gcd.reduce(weight)) or 1
        self.room = room // divisor
        self.ids = np.flatnonzero(weight <= room)
        self.weight, self.value = weight[self.ids] // divisor, classes.values[self.ids]
        self.owner = classes.owner[self.ids]
        self.starts = np.searchsorted(self.owner, np.arange(len(classes.lengths)))
        self.bound, self.best = math.inf, -math.inf
        self.price = self.most = 0.0

    def run(self) -> Solution:
        heavy, light = self._best(0.0), self._best(math.inf)
        self.choice = light
        try:
            if self._weighs(heavy) <= self.room:
                self.choice = heavy
                return self._solution(True)
            self._price(light, heavy)
            return self._solution(True, self._search())
        except TimeoutError as cap:
            return self._solution(False, f"{cap}: the gap is what is left unproved")
        except KeyboardInterrupt:
            note = "interrupted: the gap is what is left unproved"
            return self._solution(False, note, interrupted=True)

    def _solution(self, proved: bool, note: str = "", interrupted: bool = False) -> Solution:
        proved = proved and not note
        items, bound = self.ids[self.choice], self.bound
        if not math.isfinite(bound):  # ended before the first price
            bound = self.classes.value(self.ids[self._best(0.0)])
        notes = (note,) if note else ()
        return self.classes.solution(items, bound, proved, notes=notes, interrupted=interrupted)

    def _weighs(self, choice: Ints) -> int:
        return int(self.weight[choice].sum())

    def _best(self, price: float) -> Ints:
        """The best choice at a price, the lightest where several are."""
        priced = -self.weight.astype(np.float64) if price == math.inf else self._priced(price)
        top = np.maximum.reduceat(priced, self.starts)
        at = np.flatnonzero(priced == top[self.owner])
        second = self.value if price == math.inf else -self.weight
        at = at[np.lexsort((-second[at], self.owner[at]))]
        return at[np.searchsorted(self.owner[at], np.arange(len(self.starts)))]

    def _priced(self, price: float) -> Floats:
        return self.value - price * self.weight

    def _gain(self, choice: Ints, base: Ints) -> float:
        """value(choice) − value(base), summed where they differ, so that no digits cancel."""
        here = np.flatnonzero(choice != base)
        return math.fsum((self.value[choice[here]] - self.value[base[here]]).tolist())

    def _price(self, light: Ints, heavy: Ints) -> None:
        """λ, the light choice there as reference, all losses, and a first incumbent."""
        for _ in range(STEPS):
            self.caps.spend(len(self.ids) // 64)
            over = self._weighs(heavy) - self._weighs(light)
            self.price = max(self._gain(heavy, light) / over, 0.0)
            middle = self._best(self.price)
            better = self._gain(middle, light) - self.price * (
                self._weighs(middle) - self._weighs(light)
            )
            if better <= 1e-13 * abs(self._gain(heavy, light)):
                break
            if self._weighs(middle) <= self.room:
                light = middle
            else:
                heavy = middle
        self.reference, self.slack = light, self.room - self._weighs(light)
        priced = self._priced(self.price)
        self.loss = np.maximum(np.maximum.reduceat(priced, self.starts)[self.owner] - priced, 0)
        self.loss[light] = 0.0
        self.most = self.price * self.slack  # what the bound is above the reference
        self._learn(0.0)
        self._offer(light)
        change = np.flatnonzero(light != heavy)
        fits = np.cumsum(self.weight[heavy[change]] - self.weight[light[change]]) <= self.slack
        if fits.any():
            last = int(np.flatnonzero(fits)[-1]) + 1
            walked = light.copy()
            walked[change[:last]] = heavy[change[:last]]
            self._offer(walked)

    def _offer(self, choice: Ints) -> None:
        gain = self._gain(choice, self.reference)
        if gain > self.best:
            self.best, self.choice = gain, choice

    def _learn(self, least: float) -> None:
        """Every choice that was not met loses at least so much."""
        base = self.classes.value(self.ids[self.reference])
        self.bound = min(self.bound, base + self.most - least)

    def _search(self) -> str:
        """Cores of rising size, until the incumbent is proved; else why not."""
        core = np.flatnonzero(self.loss <= self.most - self.best)
        core = core[np.argsort(self.loss[core], kind="stable")]
        core = core[~np.isin(core, self.reference)]
        count = FIRST_CORE
        while True:
            if self.caps.progress is not None:
                value = self.classes.value(self.ids[self.choice])
                self.caps.progress(value, max(self.bound, value), "bound")
            lost = self.most - self.best
            inside = int(np.searchsorted(self.loss[core], lost, side="right"))
            if not inside:
                return ""
            note = self._search_core(core[: min(count, inside)])
            if note:
                return note
            if count >= inside or self.most - self.best <= self.loss[core[count]]:
                return ""
            self._learn(float(self.loss[core[count]]))
            count *= GROWTH

    def _lay_out(self, items: Ints) -> _Core:
        """The items class by class, those first whose weight is cheapest to use."""
        classes, of = np.unique(self.owner[items], return_inverse=True)
        base = self.reference[classes]
        weight = self.weight[items] - self.weight[base[of]]
        gain = self.value[items] - self.value[base[of]]
        rate = self.loss[items] / np.maximum(np.abs(weight), 1)
        cheapest = np.full(len(classes), np.inf)
        np.minimum.at(cheapest, of, rate)
        rank = np.argsort(np.argsort(cheapest, kind="stable"), kind="stable")
        every = np.concatenate([base, items])
        place = np.concatenate([rank, rank[of]])
        order = np.argsort(place, kind="stable")
        zeros = np.zeros(len(classes), dtype=np.int64)
        return _Core(
            every[order],
            np.concatenate([zeros, weight])[order],
            np.concatenate([zeros.astype(np.float64), gain])[order],
            np.concatenate([zeros.astype(np.float64), self.loss[items]])[order],
            np.searchsorted(place[order], np.arange(len(classes) + 1)),
        )

    def _search_core(self, items: Ints) -> str:
        """Every choice of these items and the reference's; why not, if they are too many."""
        core = self._lay_out(items)
        changes, rest = _bounds(core, self.price)
        states = _States(np.zeros(1, dtype=np.int64), np.zeros(1))
        for k in range(len(core.starts) - 1):
            here = slice(int(core.starts[k]), int(core.starts[k + 1]))
            width, count = len(states.weight), here.stop - here.start
            if width * count > MOST_STATES:
                return "a core is too large to be searched: the gap is what is left unproved"
            self.caps.spend(width * count + 256)
            weight = (states.weight[:, None] + core.weight[here]).ravel()
            gain = (states.gain[:, None] + core.gain[here]).ravel()
            room = (self.slack - weight).astype(np.float64)
            most = _completed(room, self.price, changes, rest[:, k + 1])
            alive = np.flatnonzero(gain + most > self.best)
            alive = alive[np.lexsort((-gain[alive], weight[alive]))]
            top = np.maximum.accumulate(gain[alive])
            alive = (
                alive[np.concatenate([[True], gain[alive][1:] > top[:-1]])] if len(alive) else alive
            )
            history = [*states.history, (alive // count, alive % count + here.start)]
            states = _States(weight[alive], gain[alive], history)
            fits = np.flatnonzero(states.weight <= self.slack)
            if len(fits):
                first = int(fits[np.argmax(states.gain[fits])])
                if states.gain[first] > self.best:
                    choice = self.reference.copy()
                    taken = core.items[states.trace(first)]
                    choice[self.owner[taken]] = taken
                    self._offer(choice)
        return ""


def _bounds(core: _Core, price: float) -> tuple[Floats, Floats]:
    """Changes δ of the price λ, and for each the most that the classes from k on gain at λ + δ
    (column k)."""
    moved = core.weight != 0
    rates = np.sort(core.loss[moved] / np.abs(core.weight[moved]))
    changes = np.zeros(1)
    if len(rates):
        places = np.unique(np.geomspace(1, len(rates), PRICES // 2).astype(int) - 1)
        far = rates[-1] * np.geomspace(1, 64, PRICES // 4)[1:]
        lengths = np.concatenate([rates[places], far])
        changes = np.concatenate([-lengths, changes, lengths])
    changes = np.unique(np.maximum(np.append(changes, -price), -price))
    gains = -core.loss - changes[:, None] * core.weight
    best = np.maximum.reduceat(gains, core.starts[:-1], axis=1)
    rest = np.zeros((len(changes), len(core.starts)))
    rest[:, :-1] = np.cumsum(best[:, ::-1], axis=1)[:, ::-1]
    return changes, rest


def _completed(room: Floats, price: float, changes: Floats, rest: Floats) -> Floats:
    """The most that the classes to come can add to states with so much room."""
    if len(room) > 512:  # the few prices that are best for some of a sample do nearly all the work
        sample = room[:: len(room) // 128]
        each = (price + changes)[:, None] * sample + rest[:, None]
        useful = np.unique(each.argmin(axis=0))
        changes, rest = changes[useful], rest[useful]
    return ((price + changes)[:, None] * room + rest[:, None]).min(axis=0)
