"""What a plan chooses from: classes of coupled dims, each with the joint sizes it may have.

Axes whose dims meet in a product, or are written in one tensor, are *coupled*: what one costs
depends on the others. They are one class, whose options are joint sizes with what all its weights
cost, take and keep. Classes share nothing, so that costs and times of several add up exactly. An
objective that asks for safe sizes gets only options in which

- every dim is of a size that the map calls safe at the others' sizes (or that seems so),
- no larger joint sizes are surely faster: a rank and a width that are both odd hide each other's
  cliffs, and each looks as good as it can be,
- nothing takes longer than as it is, where that may stay.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from gacprof.checkpoint.inventory import (
    NEIGHBOUR_MULTIPLES,
    Dim,
    Inventory,
    Module,
    TensorInfo,
)
from gacprof.core.errors import PlanError
from gacprof.planning.axes import Size, SizeAxis
from gacprof.planning.costs import (
    CoupledAxes,
    Floats,
    Footprint,
    Ints,
    Tables,
    growth,
    stored,
)
from gacprof.planning.limits import ROUNDING, PlanLimits
from gacprof.planning.offers import axis_of, nothing_safe
from gacprof.planning.problem import Problem
from gacprof.stats.judge import SURE_LEVEL, quantiles

CELLS = 1 << 17
"""Joint sizes of a class that are looked at; where there are more, fewer sizes of each dim are on
offer. Our choice: a table of them takes 1 MiB, and three dims that meet have 50 sizes each."""
LEAST_SIZES = 4
"""On offer for each of many coupled dims. Where even these are too many, some are decided first."""


@dataclass(frozen=True)
class ClassOption:
    """Joint sizes of a class, one an axis, and what all its weights take: parameters, bytes as
    stored, µs of all their products (None where the map lacks one), and ``takes`` of every limit
    (NaN where that is not known). ``kept`` is the share of energy summed over dims, None where one
    is not known; ``value`` what the objective makes of it."""

    sizes: tuple[Size, ...]
    parameters: int
    nbytes: int
    latency_us: float | None
    kept: float | None
    value: float
    takes: tuple[float, ...] = ()


@dataclass(frozen=True)
class DimClass:
    """One choice of the plan. ``now`` is what its weights take as they are; ``narrowed`` says what
    keeps the options from being of all joint sizes."""

    axes: tuple[SizeAxis, ...]
    options: tuple[ClassOption, ...]
    now: Footprint
    narrowed: str = ""

    @property
    def members(self) -> Iterator[Dim]:
        return (dim for axis in self.axes for dim in axis.members)

    def sizes(self, option: ClassOption) -> dict[str, Size]:
        """By dim name."""
        pairs = zip(self.axes, option.sizes, strict=True)
        return {dim.name: size for axis, size in pairs for dim in axis.members}


def components(inventory: Inventory, axes: Sequence[SizeAxis]) -> list[CoupledAxes]:
    """The axes in groups that are coupled. One of a single size decides nothing, so that it couples
    no others; every weight belongs to one group."""
    touched = [_touched(inventory, axis) for axis in axes]
    leader = list(range(len(axes)))

    def find(i: int) -> int:
        while leader[i] != i:
            leader[i] = leader[leader[i]]
            i = leader[i]
        return i

    owner: dict[object, int] = {}
    for i in sorted(range(len(axes)), key=lambda i: not axes[i].free):
        for key in touched[i]:
            first = owner.setdefault(key, i)
            if axes[first].free and axes[i].free:
                leader[find(i)] = find(first)
    own: dict[int, tuple[list[SizeAxis], list[Module], list[TensorInfo]]] = {}
    for i, axis in enumerate(axes):
        own.setdefault(find(i), ([], [], []))[0].append(axis)
    for key, i in owner.items():
        what = touched[i][key]
        if isinstance(what, Module):
            own[find(i)][1].append(what)
        else:
            own[find(i)][2].append(what)
    return [CoupledAxes(tuple(a), tuple(m), tuple(t)) for a, m, t in own.values()]


def _touched(inventory: Inventory, axis: SizeAxis) -> dict[object, Module | TensorInfo]:
    """The modules that the dims of an axis take part in, and the tensors that they are written in,
    each stored one once."""
    found: dict[object, Module | TensorInfo] = {}
    for dim in axis.members:
        found |= {("module", m.name): m for m in inventory.modules_of(dim.name)}
        for place in dim.places:
            info = inventory.tensors[place.tensor]
            found.setdefault(info.stored_at, info)
    return found


def build_classes(problem: Problem, limits: PlanLimits) -> list[DimClass]:
    """All choices of the plan, their options kept apart for what is limited.

    Raises :class:`PlanError` for dims that may not stay as they are and have nothing else, and
    where nothing is on offer at all.
    """
    axes, narrowed = [axis_of(problem, *group) for group in problem.groups], dict[str, str]()
    _refuse_nothing_known(problem, [axis.held for axis in axes])
    found = components(problem.inventory, axes)
    while large := [c for c in found if prod(len(axis.sizes) for axis in c.axes) > CELLS]:
        for component in large:
            axes = _narrowed(problem, axes, component, narrowed)
        found = components(problem.inventory, axes)
    fixed = {d: axis.sizes[0] for axis in axes if not axis.free for d in axis.members}
    grown = growth((dim, size) for dim, size in fixed.items() if size != dim.size)
    sizes = {dim.name: size for dim, size in fixed.items()}
    return [
        DimClass(
            c.axes,
            _options_of(problem, Tables(problem.predictor, c, grown, problem.kept), sizes, limits),
            stored(problem.inventory, c.modules, c.tensors, lambda *_: 0, {}),
            next((narrowed[axis.name] for axis in c.axes if axis.name in narrowed), ""),
        )
        for c in found
    ]


def _refuse_nothing_known(problem: Problem, held: Sequence[str]) -> None:
    if not all(held) or problem.predictor.noisy:
        return
    why = problem.predictor.tokens_note or f"({held[0]})"
    sweep = "'gacprof sweep --for CHECKPOINT' measures what a plan needs "
    colon = ": " if problem.predictor.tokens_note else f"; {sweep}"
    raise PlanError(f"the map knows no safe size for any dim of this checkpoint{colon}{why}")


def _narrowed(
    problem: Problem, axes: Sequence[SizeAxis], component: CoupledAxes, notes: dict[str, str]
) -> list[SizeAxis]:
    """The axes with fewer sizes on some of a component's, ``notes`` saying so by their names."""
    free = [axis for axis in component.axes if axis.free]
    count = int(CELLS ** (1 / len(free)))
    if count >= LEAST_SIZES:
        changed = {axis.name: _thinned(axis, count) for axis in free}
        why = f"of {len(free)} dims that meet, {count} sizes each were looked at"
    else:
        hub = max(free, key=lambda axis: sum(len(problem.coupled.of(d)) for d in axis.members))
        changed = {hub.name: replace(hub, sizes=(_first_size(problem, hub),))}
        why = f"{len(free)} dims meet each other: some of them were decided before the others"
    notes |= dict.fromkeys((axis.name for axis in free), why)
    return [changed.get(axis.name, axis) for axis in axes]


def _thinned(axis: SizeAxis, count: int) -> SizeAxis:
    """As many sizes, from all over the window, and with them the nearest ones from ``now`` on."""
    sizes = [size for size in axis.sizes if size is not None]
    dense = axis.sizes[len(sizes) :]
    near = [size for size in sizes if size >= axis.now][:2]
    some = [sizes[round(i)] for i in np.linspace(0, len(sizes) - 1, count - len(near))]
    return replace(axis, sizes=(*sorted({*near, *some}), *dense)[-count:])


def _first_size(problem: Problem, axis: SizeAxis) -> Size:
    """The least size on offer that nothing is cut by, with the others at their next multiples."""
    near, others = problem.coupled, dict[str, Size]()
    for dim in axis.members:
        others |= near.rounded(dim, max(NEIGHBOUR_MULTIPLES))
    for size in axis.sizes:
        if size is not None and size >= axis.now:
            sizes = others | {dim.name: size for dim in axis.members}
            if all(near.offer(dim, size, sizes, axis.shared).offered for dim in axis.members):
                return size
    return axis.now if axis.may_stay else axis.sizes[-1]


def _options_of(
    problem: Problem, tables: Tables, fixed: dict[str, Size], limits: PlanLimits
) -> tuple[ClassOption, ...]:
    """The options of a class where other dims are ``fixed``, worked out once for equal experts."""
    like, asked = tables.axes[0].like, tuple(limit.asked for limit in limits.every)
    # The joint sizes are made inside: equal experts share them too.
    make = partial(options_of, problem, tables, fixed, limits)
    if len(tables.axes) > 1 or like is None or tables.fixed:
        return make()
    return problem.predictor.once(("options", like, limits.break_even, asked), make)


def options_of(
    problem: Problem, tables: Tables, fixed: dict[str, Size], limits: PlanLimits
) -> tuple[ClassOption, ...]:
    """Raises :class:`PlanError` where the dims cannot stay as they are and nothing else is safe."""
    joint = Joint(problem, tables, fixed, limits)
    cells = joint.chosen()
    if not cells and joint.own is None:
        first = tables.axes[0]
        raise PlanError(
            f"{first.name} has no size together with what it meets: {nothing_safe(problem, first)}"
        )
    costs, times, kept = tables.costs, tables.latency_us, tables.kept()
    values, taken = problem.goal.values(tables), [each.taken(tables) for each in limits.every]
    return tuple(
        ClassOption(
            tuple(axis.sizes[j] for axis, j in zip(tables.axes, cell, strict=True)),
            costs[0][cell].item(),
            costs[1][cell].item(),
            None if np.isnan(times[cell]) else times[cell].item(),
            None if np.isnan(kept[cell]) else kept[cell].item(),
            values[cell].item(),
            tuple(table[cell].item() for table in taken),
        )
        for cell in cells or [joint.own or ()]
    )


class Joint:
    """The joint sizes of one component, and which of them may be chosen."""

    def __init__(
        self, problem: Problem, tables: Tables, fixed: dict[str, Size], limits: PlanLimits
    ) -> None:
        self.problem, self.axes, self.tables, self.fixed = problem, tables.axes, tables, fixed
        self.break_even = limits.break_even
        self.limited_us = [limit.taken(tables) for limit in limits.times]
        self.taken = [limit.taken(tables) for limit in limits.every]
        self.own = tables.unchanged()
        self._place = {dim.name: i for i, axis in enumerate(self.axes) for dim in axis.members}

    def chosen(self) -> list[tuple[int, ...]]:
        """The joint sizes worth offering to the solver: of those that may be chosen, the ones that
        no other equals in value and undercuts in all that is limited."""
        stay = self.problem.request.constraints.untouched
        allowed = self._faster_than_dense()
        for us in (self.tables.latency_us, *self.limited_us):
            known = ~np.isnan(us)
            if known.any():  # no plan rests on products that were not measured, if others were
                allowed &= known
        if self.problem.goal.safe:
            allowed &= self._unbeaten()
        if stay and self.own is not None:
            allowed[self.own] = True
        return self._undominated(allowed, stay) or self._undominated(allowed, stay=True)

    def _faster_than_dense(self) -> NDArray[np.bool_]:
        """Where no factor pair is slower than the dense product in its place at every workload that
        is limited: the device's break-even, not that of parameters."""
        fair = np.ones(self.tables.shape, np.bool_)
        for i, axis in enumerate(self.axes):
            if self.break_even and axis.sizes[-1:] == (None,):
                slower = np.ones(self.tables.shape, np.bool_)
                for us in self.limited_us:
                    with np.errstate(invalid="ignore"):
                        slower &= us > np.take(us, [-1], axis=i) * (1 + ROUNDING)
                fair &= ~slower
        return fair

    def _unbeaten(self) -> NDArray[np.bool_]:
        """Where nothing larger is surely faster, nor all of it as it is at no less value."""
        latency, variance, share = self.tables.times_by(self.problem.predictor)
        with np.errstate(invalid="ignore", divide="ignore"):
            degrees = np.where(share > 0, variance**2 / share, np.inf)
            error = quantiles(SURE_LEVEL, degrees, latency.shape) * np.sqrt(variance)
            error /= np.where(latency > 0, latency, 1.0)
            least = np.log(latency) - error
            most = np.nan_to_num(np.log(latency) + error, nan=np.inf)
            for i, axis in enumerate(self.axes):  # of each place the least of all larger sizes
                where: list[slice] = [slice(None)] * latency.ndim
                where[i] = slice(0, len(axis.sizes) - (None in axis.sizes))
                flipped = np.flip(most[tuple(where)], i)
                most[tuple(where)] = np.flip(np.minimum.accumulate(flipped, i), i)
            allowed = ~(least - most > np.log1p(self.problem.predictor.tolerance))
            if self.own is not None:
                grown = np.ones(latency.shape, np.bool_)
                for i, axis in enumerate(self.axes):
                    larger = (size is None or size >= axis.now for size in axis.sizes)
                    grown &= self.tables.on_axis(i, larger, np.bool_)
                values = self.problem.goal.values(self.tables)
                slower = latency > latency[self.own] * (1 + ROUNDING)
                allowed &= ~(grown & slower & (values <= values[self.own]))
        return allowed

    def _meets(self, i: int) -> list[int]:
        """The other axes that an axis meets."""
        near = {d.name for dim in self.axes[i].members for d in self.problem.coupled.of(dim)}
        return sorted({self._place[name] for name in near if name in self._place} - {i})

    def _offers(self, i: int, cell: Sequence[int], stay: bool) -> bool:
        """Whether the size of one axis may be chosen at those of the others. ``stay``: any dim may
        stay as it is."""
        axis, size = self.axes[i], self.axes[i].sizes[cell[i]]
        if size is None or not axis.free or (stay and size == axis.now):
            return True
        own = {d.name: a.sizes[j] for a, j in zip(self.axes, cell, strict=True) for d in a.members}
        sizes = ChainMap(own, self.fixed)
        offer = self.problem.coupled.offer
        return all(offer(dim, size, sizes, axis.shared).offered for dim in axis.members)

    def _undominated(self, allowed: NDArray[np.bool_], stay: bool) -> list[tuple[int, ...]]:
        parameters, nbytes = self.tables.costs
        for table in self.taken:
            if not np.isnan(table[allowed]).all():
                allowed = allowed & ~np.isnan(table)
        cells = np.argwhere(allowed)
        worth = self.problem.goal.values(self.tables)[allowed]
        tables: list[Floats | Ints] = [parameters, *self.taken] if self.taken else []
        taken_of = (np.nan_to_num(table[allowed]) for table in tables)
        limited = np.stack([np.zeros(worth.shape), *taken_of])
        changed = np.ones(self.tables.shape)
        if self.own is not None:
            changed[self.own] = 0
        latency = np.nan_to_num(self.tables.latency_us)
        ties = [latency[allowed], changed[allowed], nbytes[allowed], parameters[allowed]]
        order = np.lexsort((np.arange(worth.size), *ties, *limited[::-1], -worth))
        meets = [(i, *self._meets(i)) for i in range(len(self.axes))]
        judged: dict[tuple[int, ...], bool] = {}  # by axis, its place and those of what it meets
        taken: list[tuple[int, ...]] = []
        while order.size:
            first, order = order[0], order[1:]
            cell = tuple(cells[first].tolist())
            for i, *others in meets if self.problem.goal.safe else ():
                key = (i, cell[i], *(cell[j] for j in others))
                if key not in judged:
                    judged[key] = self._offers(i, cell, stay)
                if not judged[key]:
                    break
            else:
                taken.append(cell)
                order = order[(limited[:, order] < limited[:, [first]]).any(axis=0)]
        return taken
