"""Choose one option of every row, for the most value within limits, and certify it by a bound.

This is a multiple-choice knapsack. Rows that depend on the sizes of a common hub belong to its
scenarios, one of which is taken: a *class* has scenarios, a scenario rows, a row options. A price
on what a limit counts is bisected: at any price the best options give an upper bound of the value
(Lagrangian relaxation), and at the lowest price at which they fit they are a choice. If a gap is
left between the two, HiGHS narrows it, for seconds.
"""

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np

from gacprof.core.errors import PlanError
from gacprof.core.verdicts import Floats, Ints

Rows = Sequence[Sequence[float]]

# HiGHS decides few options to the last digit; of more the relaxation's gap of some 1e-4 is left.
FEW_OPTIONS = 2_000
FEW_GAP, GAP = 1e-9, 1e-3  # from which gap on, relative to the bound: of few options, of many
HIGHS_GAP, NODES, SECONDS = 1e-7, 2_000, 30.0
"""HiGHS stops at this relative gap; else, with its best choice, after this many nodes of its search
(some seconds, and the same plan each time), or where these take too long."""
HIGHS_TOLERANCE = 2e-6  # HiGHS takes a sum for within its limit that is a millionth above it
BISECTIONS, MAX_CHANGES = 80, 1000
ROUNDING = 1e-9  # sums of doubles in another order differ by less than this share
TINY = 1e-300
OUTPUT = Lock()  # held while the standard output is discarded: by one thread at a time


@contextmanager
def quiet() -> Iterator[None]:
    """Discard what HiGHS writes to standard output, which would spoil a result's JSON."""
    with OUTPUT:
        libc, output, nowhere = ctypes.CDLL(None), os.dup(1), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        try:
            yield
        finally:
            libc.fflush(None)
            os.dup2(output, 1)
            os.close(output)
            os.close(nowhere)


def best_of(owner: Ints, score: Floats, tie: Floats) -> Ints:
    """Return the index of the highest score, then the least tie, of each owner (ascending)."""
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    position = np.cumsum(np.diff(owner, prepend=-1) != 0) - 1
    is_best = score == np.maximum.reduceat(score, starts)[position]
    ties = np.where(is_best, tie, np.inf)
    places = np.flatnonzero(ties == np.minimum.reduceat(ties, starts)[position])
    return places[np.searchsorted(places, starts)]


@dataclass(frozen=True)
class Options:
    """All options of a plan, those of a row, of a scenario and of a class together.

    ``values``, ``ties`` (the lower is preferred) and ``row_of`` are by option, ``takes`` by limit
    and option, ``scenario_of`` by row, ``class_of`` by scenario. Numbers of owners ascend from 0.
    """

    values: Floats
    ties: Floats
    takes: Floats
    row_of: Ints
    scenario_of: Ints
    class_of: Ints

    def best(self, score: Floats, tie: Floats) -> Ints:
        """Return the best options of each row of the best scenario of each class."""
        picks = best_of(self.row_of, score, tie)
        starts = np.flatnonzero(np.diff(self.scenario_of, prepend=-1))
        scores = np.add.reduceat(score[picks], starts)
        ties = np.add.reduceat(tie[picks], starts)
        scenarios = best_of(self.class_of, scores, ties)
        return picks[np.isin(self.scenario_of, scenarios)]

    def least(self, limit: int) -> float:
        """Return the least that any choice takes of a limit."""
        picks = self.best(-self.takes[limit], -self.values)
        return float(self.takes[limit, picks].sum())

    def value(self, picks: Ints) -> float:
        return float(self.values[picks].sum())

    def fits(self, picks: Ints, room: Floats) -> bool:
        return bool((self.takes[:, picks].sum(1) <= room).all())

    def beside(self, picks: Ints) -> tuple["Options", Ints]:
        """Return these picks' scenarios, every row as a class, and the index each option had."""
        places = np.flatnonzero(np.isin(self.row_of, self.row_of[picks]))
        rows = np.unique(self.row_of[places], return_inverse=True)[1]
        numbers = np.arange(len(picks))
        values, ties, takes = self.values[places], self.ties[places], self.takes[:, places]
        return Options(values, ties, takes, rows, numbers, numbers), places


@dataclass(frozen=True)
class Solution:
    """A choice of options, one for each row; none within the limits has more than ``bound``."""

    choice: tuple[int, ...]
    value: float
    bound: float


def solve(values: Rows, limits: Sequence[tuple[Rows, float]]) -> Solution:
    """Choose one option of each row: the most Σ value, with Σ takes ≤ max for each limit (takes,
    max). ``choice`` holds an index within each row. Raises :class:`PlanError` if none fits."""
    lengths = np.array([len(row) for row in values], int)
    takes = np.array([np.concatenate(rows) for rows, _ in limits]).reshape(-1, lengths.sum())
    numbers = np.arange(len(lengths))
    row_of = np.repeat(numbers, lengths)
    options = Options(np.concatenate(values), takes.sum(0), takes, row_of, numbers, numbers)
    solution = solve_options(options, [most for _, most in limits])
    starts = np.cumsum(lengths) - lengths
    return replace(solution, choice=tuple((np.array(solution.choice) - starts).tolist()))


def solve_options(options: Options, limits: Sequence[float]) -> Solution:
    """Choose scenarios and options of the most value. Raises :class:`PlanError` if none fit."""
    room = np.array([most + ROUNDING * abs(most) for most in limits])
    picks = options.best(options.values, options.ties)
    if options.fits(picks, room):
        return Solution(tuple(picks.tolist()), options.value(picks), options.value(picks))
    bound = options.value(picks)
    fitting: list[Ints] = []
    for limit in range(len(room)):
        picks, limit_bound = _by_price(options, limit, room[limit])
        bound = min(bound, limit_bound)
        if options.fits(picks, room):
            fitting.append(picks)
    best = max((options.value(picks) for picks in fitting), default=-np.inf)
    gap = FEW_GAP if options.values.size <= FEW_OPTIONS else GAP
    if bound - best > gap * abs(bound):
        more, programme_bound = _by_programme(options, room)
        bound = min(bound, programme_bound)
        fitting += more
    if not fitting:
        raise PlanError("no choice of sizes keeps to all limits: raise one, or widen the window")
    picks = max(fitting, key=options.value)
    value = options.value(picks)
    return Solution(tuple(picks.tolist()), value, max(bound, value))


def _by_price(options: Options, limit: int, most: float) -> tuple[Ints, float]:
    """Return the best options at the lowest price that fits one limit, and an upper bound."""
    costs, values = options.takes[limit], options.values
    light, heavy = options.best(-costs, -values), options.best(values, costs)
    if costs[light].sum() > most:
        raise PlanError(
            f"the smallest candidates take {costs[light].sum():,.0f}, and the limit is "
            f"{most:,.0f}: raise it, or widen the window"
        )
    bound = options.value(heavy)
    low, high = 0.0, 0.0
    price = float(np.ptp(values) / max(np.ptp(costs), TINY))
    for _ in range(BISECTIONS):
        score = values - price * costs
        picks = options.best(score, costs)
        bound = min(bound, float(score[picks].sum() + price * most))
        if costs[picks].sum() <= most:
            light, high = picks, price
        else:
            heavy, low = picks, price
        price = (low + high) / 2 if high else 2 * price
    light = _filled(options, costs, most, light, heavy)
    if len(options.class_of) < len(options.scenario_of):
        # with the scenarios chosen, single rows may still gain
        rows, places = options.beside(light)
        return places[_by_price(rows, limit, most)[0]], bound
    return _improved(options, costs, most, light), bound


def _filled(options: Options, costs: Floats, most: float, light: Ints, heavy: Ints) -> Ints:
    """Return the light picks with the heavy ones of as many classes as fit (greedy repair)."""
    classes = options.class_of[options.scenario_of[options.row_of]]
    count = int(options.class_of[-1]) + 1

    def totals(amounts: Floats, picks: Ints) -> Floats:
        return np.bincount(classes[picks], amounts[picks], count).astype(float)

    gains = totals(options.values, heavy) - totals(options.values, light)
    more = totals(costs, heavy) - totals(costs, light)
    left = most - costs[light].sum()
    is_heavy = np.zeros(count, bool)
    for i in np.argsort(-gains / np.maximum(more, TINY), kind="stable"):
        if gains[i] > 0 and more[i] <= left:
            is_heavy[i] = True
            left -= more[i]
    both = [light[~is_heavy[classes[light]]], heavy[is_heavy[classes[heavy]]]]
    return np.sort(np.concatenate(both))


def _improved(options: Options, costs: Floats, most: float, picks: Ints) -> Ints:
    """Return the picks of one-row classes after the changes that fit the rest of the limit, the
    largest gain first: this reaches options that are best at no price."""
    picks = picks.copy()
    for _ in range(MAX_CHANGES):
        gains = options.values - options.values[picks][options.row_of]
        left = most - costs[picks].sum()
        gains[costs - costs[picks][options.row_of] > left] = 0.0
        best = int(gains.argmax())
        if gains[best] <= 0:
            break
        picks[options.row_of[best]] = best
    return picks


def _by_programme(options: Options, room: Floats) -> tuple[list[Ints], float]:
    """Return HiGHS's choice, if it came to one that fits, and its bound."""
    bound = np.inf
    for share in (1.0, 1.0 - HIGHS_TOLERANCE):
        result = _highs(options, room * share)
        if share == 1.0 and result.mip_dual_bound is not None:
            bound = -result.mip_dual_bound * (np.abs(options.values).max() or 1.0)
        if result.x is None:
            break
        picks = np.flatnonzero(result.x[: options.values.size] > 0.5)
        if options.fits(picks, room):
            return [picks], bound
    return [], bound


def _highs(options: Options, room: Floats):  # type: ignore[no-untyped-def]
    """Solve the integer programme: one scenario a class, one option for each row of it."""
    from scipy.optimize import LinearConstraint, milp
    from scipy.sparse import csr_matrix, hstack

    rows, scenarios = len(options.scenario_of), len(options.class_of)
    columns = options.values.size
    units = np.maximum(np.abs(room), TINY)
    in_row = csr_matrix((np.ones(columns), (options.row_of, np.arange(columns))))
    of_scenario = csr_matrix((-np.ones(rows), (np.arange(rows), options.scenario_of)))
    in_class = csr_matrix((np.ones(scenarios), (options.class_of, np.arange(scenarios))))
    classes = in_class.shape[0]
    takes = [csr_matrix(options.takes / units[:, None]), csr_matrix((len(room), scenarios))]
    constraints = [
        LinearConstraint(hstack(takes), -np.inf, room / units),
        LinearConstraint(hstack([in_row, of_scenario]), 0, 0),
        LinearConstraint(hstack([csr_matrix((classes, columns)), in_class]), 1, 1),
    ]
    costs = -options.values / (np.abs(options.values).max() or 1.0)
    with quiet():
        return milp(
            np.concatenate([costs, np.zeros(scenarios)]),
            constraints=constraints,
            integrality=np.ones(columns + scenarios),
            bounds=(0, 1),
            options={"mip_rel_gap": HIGHS_GAP, "node_limit": NODES, "time_limit": SECONDS},
        )
