"""The options of a plan: sizes of dims, with what the weights take that they are written in.

What a dim costs depends on the dims that it meets in a product, or shares a tensor with. Most meet
through a few: an MLP's ranks meet its width alone, and once that is fixed each rank is a row of
options of its own. So every class of such dims has a *hub*, groups without which no two others
meet, and a scenario for each joint size of the hub that is compared. Classes share no weight, and
rows of a scenario none, so that what they take adds up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain, product
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gacprof.checkpoint.inventory import Dim, Inventory, Module, NewSizes, TensorInfo
from gacprof.core.sizes import Gemm
from gacprof.core.verdicts import Floats
from gacprof.diagnosing.sizes import SizeTable
from gacprof.planning.candidates import SizeGroup, is_open
from gacprof.planning.plan import LimitName, footprints
from gacprof.planning.quality import Objective
from gacprof.planning.solver import ROUNDING, Options
from gacprof.workload.products import (
    MERGED,
    PADDED_TO,
    coupled_dims,
    dense_lengths,
    is_merged,
    padded_neighbours,
)

if TYPE_CHECKING:
    from gacprof.workload.products import Lengths, ManySizes

MAX_JOINT = 32  # a hub's joint sizes are all compared, up to this number
LEVELS = 8  # of a larger hub: steps from the smallest to the largest sizes
MAX_LENGTH = 1 << 31  # larger than any side: N · MAX_LENGTH + K is one number for both


@dataclass(frozen=True)
class Problem:
    """A plan's problem: verdicts, objective, the limits that are set, sizes without a choice."""

    table: SizeTable
    objective: Objective
    limits: Sequence[LimitName]
    settled: NewSizes


@dataclass(frozen=True)
class Part:
    """A part of a class: dims, with the modules and the tensors that no other part is in.
    ``names`` are all dims of these. ``options`` are a leaf's sizes; a hub's are its scenario's."""

    dims: Sequence[Dim]
    modules: Sequence[Module]
    tensors: Sequence[TensorInfo]
    names: Set[str]
    options: Sequence[NewSizes]

    @property
    def stored(self) -> NewSizes:
        """The present sizes."""
        return {dim.name: dim.size for dim in self.dims}


@dataclass(frozen=True)
class DimClass:
    """A class of groups that meet, directly or through others. ``parts`` are the hub, where there
    is one, and a leaf for each other group; ``may_stay`` is whether the present sizes may be
    chosen. ``joint_sizes`` are those of the hub that are compared, out of ``joint_count``."""

    hub: Part
    parts: Sequence[Part]
    may_stay: bool
    joint_sizes: Sequence[NewSizes]
    joint_count: int


def classes_of(inventory: Inventory, groups: Sequence[SizeGroup]) -> list[DimClass]:
    """Return the classes of groups that have a choice."""
    weights = [weights_of(inventory, group) for group in groups]
    users: dict[object, set[int]] = {}
    for i, keys in enumerate(weights):
        for key in keys:
            users.setdefault(key, set()).add(i)
    meets = [set().union(*(users[key] for key in keys)) - {i} for i, keys in enumerate(weights)]
    classes = []
    for members in connected(meets):
        hub = hub_of({i: meets[i] for i in members}, groups)
        hub_groups = [groups[i] for i in hub]
        hub_weights = dict(chain.from_iterable(weights[i].items() for i in hub))
        leaves = []
        for i in members:
            if i not in hub:
                options = [groups[i].at(size) for size in groups[i].sizes]
                leaves.append(_part(inventory, [groups[i]], weights[i], options))
                hub_weights = {key: x for key, x in hub_weights.items() if key not in weights[i]}
        hub_part = _part(inventory, hub_groups, hub_weights, ())
        classes.append(
            DimClass(
                hub_part,
                [hub_part, *leaves] if hub else leaves,
                all(groups[i].may_stay for i in members),
                joint_sizes(hub_groups),
                prod(len(group.sizes) for group in hub_groups),
            )
        )
    return classes


def weights_of(inventory: Inventory, group: SizeGroup) -> dict[object, Module | TensorInfo]:
    """Return the modules and the tensors that a group's dims take part in."""
    weights: dict[object, Module | TensorInfo] = {}
    for dim in group.dims:
        weights |= {("module", m.name): m for m in inventory.modules_of[dim.name]}
        for place in dim.places:
            info = inventory.tensors[place.tensor]
            weights[info.stored_at] = info
    return weights


def connected(meets: Sequence[Set[int]]) -> list[list[int]]:
    """Return the classes of what meets directly or through others, ascending."""
    classes = []
    left = set(range(len(meets)))
    while left:
        members: set[int] = set()
        reached = {min(left)}
        while reached:
            members |= reached
            reached = set().union(*(meets[i] for i in reached)) - members
        left -= members
        classes.append(sorted(members))
    return classes


def _part(
    inventory: Inventory,
    groups: Sequence[SizeGroup],
    weights: Mapping[object, Module | TensorInfo],
    options: Sequence[NewSizes],
) -> Part:
    modules = [x for x in weights.values() if isinstance(x, Module)]
    tensors = [x for x in weights.values() if isinstance(x, TensorInfo)]
    names = set(chain.from_iterable(module.dims for module in modules))
    for info in tensors:
        names.update(inventory.written_in.get(info.name, ()))
    dims = list(chain.from_iterable(group.dims for group in groups))
    return Part(dims, modules, tensors, names, options)


def hub_of(meets: Mapping[int, Set[int]], groups: Sequence[SizeGroup]) -> list[int]:
    """Return the groups that are the hub: without them no two others meet (a greedy vertex cover).

    ``meets`` lists by number the groups that each group of a class meets. The hub takes first what
    meets the most, of equal ones what has the fewest sizes, and last ranks that may be merged.
    """
    open_meets = {i: set(others) for i, others in meets.items()}
    hub = []
    while any(open_meets.values()):
        i = min(
            (i for i, others in open_meets.items() if others),
            key=lambda i: (None in groups[i].sizes, -len(open_meets[i]), len(groups[i].sizes), i),
        )
        hub.append(i)
        for other in open_meets.pop(i):
            open_meets[other].discard(i)
    return sorted(hub)


def joint_sizes(hub: Sequence[SizeGroup]) -> list[NewSizes]:
    """Return the joint sizes of a hub to compare: all, if they are few. Else the nearest safe ones,
    the present ones, and steps from the smallest sizes of all its groups to the largest."""
    choices: list[Sequence[int | None]] = [[group.sizes[0] for group in hub]]
    if all(group.may_stay for group in hub):
        choices.append([group.largest for group in hub])
    ascending = [sorted(filter(None, group.sizes)) for group in hub]
    for share in np.linspace(0, 1, LEVELS):
        choices.append([sizes[round(share * (len(sizes) - 1))] for sizes in ascending])
    if prod(map(len, ascending)) <= MAX_JOINT:
        choices += product(*ascending)
    joint: list[NewSizes] = []
    for choice in choices:
        sizes: dict[str, int | None] = {}
        for group, size in zip(hub, choice, strict=True):
            sizes |= group.at(size)
        if sizes not in joint:
            joint.append(sizes)
    return joint


@dataclass(frozen=True)
class Row:
    """The options of one part, as sizes by dim name, and arrays with entries for each: ``us``
    is the time of the part's products, NaN where not known; ``takes`` has a row for each limit."""

    sizes: Sequence[NewSizes]
    values: Floats
    parameters: Floats
    us: Floats
    takes: Floats

    def place(self, sizes: NewSizes) -> int:
        """Return the index of the option of these sizes, else of the first."""
        return self.sizes.index(sizes) if sizes in self.sizes else 0

    def where(self, places: Sequence[int]) -> Row:
        """Return the options at these indices."""
        index = np.array(places, int)
        arrays = (self.values[index], self.parameters[index], self.us[index], self.takes[:, index])
        return Row([self.sizes[i] for i in places], *arrays)


Scenario = Sequence[Row]


def scenarios_of(problem: Problem, dim_class: DimClass) -> list[Scenario]:
    """Return the scenarios of a class: a row for every part, for each joint size of the hub that is
    served well. If there are none, the hub keeps its sizes or takes the first joint size."""
    hub, parts = dim_class.hub, dim_class.parts
    stored: Scenario = ()
    if dim_class.may_stay:
        stored = [options_of(problem, part, [part.stored], hub.stored) for part in parts]
    scenarios: list[Scenario] = []
    best = -np.inf
    for sizes in dim_class.joint_sizes:
        fixed = {**problem.settled, **sizes}
        everything = [options_of(problem, part, part.options or [sizes], sizes) for part in parts]
        if not problem.limits and most_value(everything) < best:
            continue  # without limits the better scenario is chosen anyway
        if all(well_served(problem.table, dim, [sizes[dim.name]], fixed) for dim in hub.dims):
            pairs = zip(parts, everything, strict=True)
            rows = [row_of(problem, dim_class, part, sizes, row) for part, row in pairs]
            if all(row.sizes for row in rows) and is_worth_it(rows, stored):
                scenarios.append(rows)
                best = max(best, most_value(rows))
    if not scenarios:
        sizes = hub.stored if dim_class.may_stay else dim_class.joint_sizes[0]
        rows = []
        for part in parts:
            whole = options_of(problem, part, part.options or [sizes], sizes)
            row = row_of(problem, dim_class, part, sizes, whole)
            rows.append(row if row.sizes else whole.where([whole.place(part.stored)]))
        scenarios.append(rows)
    return scenarios


def most_value(rows: Scenario) -> float:
    """Return the most that options of these rows are worth together."""
    return sum(float(row.values.max()) for row in rows)


def is_worth_it(rows: Scenario, stored: Scenario) -> bool:
    """Return whether a scenario can be as fast as the class as stored, or is worth more. Times that
    are not known decide nothing."""
    least_us = sum(row.us.min() for row in rows)
    stored_us = sum(row.us[0] for row in stored) if stored else np.nan
    is_slower = least_us > stored_us * (1 + ROUNDING)
    return not is_slower or most_value(rows) > most_value(stored)


def row_of(problem: Problem, dim_class: DimClass, part: Part, hub_sizes: NewSizes, row: Row) -> Row:
    """Return the options of a part beside the hub's sizes that are worth comparing: served well, as
    fast as the present one or worth more, timed if that is, and beaten by no other. If none is
    served well, the present size, where it may stay."""
    is_timed = ~np.isnan(row.us)
    is_pair = np.array([None not in sizes.values() for sizes in row.sizes])
    # Options are compared by time only with others that are timed: a dense product, say, is not
    # known to be faster than a pair without a time.
    is_kept = is_timed == is_timed[is_pair].any()
    now = row.place(part.stored)
    if dim_class.may_stay and is_timed[now]:
        is_as_fast = row.us <= row.us[now] * (1 + ROUNDING)
        is_kept &= is_as_fast | (row.values > row.values[now])
    if part.options:  # a hub's own sizes were judged with the scenario
        places, is_served = np.flatnonzero(is_kept).tolist(), is_kept.copy()
        for dim in part.dims:
            choices = [row.sizes[i][dim.name] for i in places]
            good = well_served(problem.table, dim, choices, {**problem.settled, **hub_sizes})
            is_served[places] &= [size in good for size in choices]
        if not (is_served & is_pair).any():
            is_served[now] = is_kept[now]
        is_kept = is_served
    return undominated(row.where(np.flatnonzero(is_kept).tolist()))


def well_served(
    table: SizeTable, dim: Dim, choices: Sequence[int | None], sizes: NewSizes
) -> set[int | None]:
    """Return the choices for a dim that are not misaligned beside other dims of these ``sizes``
    (padded ones where not given), nor beside padded ones alone: two odd dims hide each other's
    cost. The stored size counts where it is not known to be slow: else a plan would cut without
    need. None (merge) is one where the dense product serves the other dims well, too."""
    good = set(choices)
    numbers = sorted(size for size in good if size is not None)
    coupled = coupled_dims(table.products.inventory, dim)
    if None in good:
        merged = {**sizes, dim.name: None}
        beside = [(other, sizes.get(other.name, other.size)) for other in coupled]
        if not all(well_served(table, other, [size], merged) for other, size in beside):
            good.discard(None)
    if numbers and coupled:
        neighbours = padded_neighbours(table.products.inventory, dim, PADDED_TO[-1])
        fixed = {**neighbours, **sizes}
        for verdicts in (
            table.verdicts(dim, numbers[0], numbers[-1], fixed),
            table.beside_padded(dim, numbers[0], numbers[-1], sizes),
        ):
            stays = {dim.size} if is_open(verdicts.of(dim.size)) else set()
            good.difference_update(set(verdicts.refused.tolist()) - stays)
    return good


def options_of(
    problem: Problem, part: Part, options: Sequence[NewSizes], hub_sizes: NewSizes
) -> Row:
    """Return options of a part beside the hub's sizes, with what they are worth and take."""
    fixed = {**problem.settled, **hub_sizes}
    columns: dict[str, int | NDArray[np.int64] | None] = {}
    for name in part.names:
        if name in options[0]:
            columns[name] = np.array([sizes[name] or MERGED for sizes in options])
        elif name in fixed:
            columns[name] = fixed[name]
    table, count = problem.table, len(options)
    weights = footprints(table.products.inventory, part.tensors, columns, part.modules)
    parameters, nbytes = (np.broadcast_to(np.asarray(x, float), count) for x in weights)
    us = np.broadcast_to(times_us(table, part.modules, columns), count)
    latency_us = np.nan_to_num(us, nan=np.inf)
    amounts = {"parameters": parameters, "bytes": nbytes, "latency_us": latency_us}
    takes = np.array([amounts[name] for name in problem.limits]).reshape(-1, count)
    values = problem.objective.values(part.dims, options, parameters)
    return Row(options, values, parameters, us, takes)


def times_us(table: SizeTable, modules: Sequence[Module], columns: ManySizes) -> Floats:
    """Return the workload's time in these modules by column of sizes; NaN where not known."""
    products = table.products
    total = np.zeros(1)
    for module, *others in products.together(modules):
        lengths = products.lengths(module, columns, others)
        us = _module_us(table, module, lengths)
        merged = is_merged(module, columns)
        if np.any(merged):
            us = np.where(merged, _module_us(table, module, [dense_lengths(module, lengths)]), us)
        total = total + us
        if np.isnan(total).all():
            break  # nothing more can be known
    return total


def _module_us(
    table: SizeTable, module: Module, lengths: Sequence[tuple[Lengths, Lengths]]
) -> Floats:
    """Return the time of a module's products of these lengths."""
    products = table.products
    is_biased = any(gemm.bias for gemm in module.gemms)
    total = np.zeros(1)
    for i, (n, k) in enumerate(lengths):
        bias = module.gemms[i].bias if len(lengths) > 1 else is_biased
        ranks = products.shares(module, i, len(lengths))
        pairs = np.atleast_1d(np.asarray(n) * MAX_LENGTH + k)
        shapes, places = np.unique(pairs, return_inverse=True)
        total = total + _shapes_us(table, module, bias, ranks, shapes.tolist())[places]
    return total


def _shapes_us(
    table: SizeTable, module: Module, bias: bool, ranks: tuple[int, int], shapes: Sequence[int]
) -> Floats:
    """Return the time of a module's product at these N · MAX_LENGTH + K, for all ranks together."""
    products = table.products
    dtype, rows = products.dtype_of(module), products.rows_of(module)
    # Layers share shapes, and scenarios share leaves: the source is asked once for each.
    us_of = table.times.setdefault((dtype, tuple(rows.items()), bias, ranks), {})
    n_tp, k_tp = ranks
    for shape in shapes:
        if shape not in us_of:
            us_of[shape] = np.nan
            n, k = divmod(shape, MAX_LENGTH)
            if n % n_tp == 0 and k % k_tp == 0:
                gemm = Gemm("", n // n_tp, k // k_tp, bias)
                time = products.product_us(table.source, gemm, dtype, rows)
                us_of[shape] = np.nan if time is None else time.value
    return np.array([us_of[shape] for shape in shapes])


def undominated(row: Row) -> Row:
    """Return the options that no other equals in value and undercuts in everything that is limited;
    of equal ones, the one with the fewest parameters, then the fastest. The best come first."""
    order = np.lexsort((np.nan_to_num(row.us), row.parameters, -row.values))
    takes = row.takes[:, order]
    takes_no_more = (takes[:, :, None] <= takes[:, None, :]).all(0)
    # Also beaten by an option that is beaten itself: what beats that one takes no more, either.
    is_beaten = np.triu(takes_no_more, 1).any(0)
    return row.where(order[~is_beaten].tolist())


def flat(classes: Sequence[Sequence[Scenario]]) -> tuple[Options, list[NewSizes]]:
    """Return the options of all classes as the solver takes them, and the sizes of each."""
    rows: list[Row] = []
    scenario_of: list[int] = []
    class_of: list[int] = []
    for number, scenarios in enumerate(classes):
        for scenario in scenarios:
            rows += scenario
            scenario_of += [len(class_of)] * len(scenario)
            class_of.append(number)
    options = Options(
        values=np.concatenate([row.values for row in rows]),
        ties=np.concatenate([row.parameters for row in rows]),
        takes=np.concatenate([row.takes for row in rows], axis=1),
        row_of=np.repeat(np.arange(len(rows)), [len(row.sizes) for row in rows]),
        scenario_of=np.array(scenario_of),
        class_of=np.array(class_of),
    )
    return options, list(chain.from_iterable(row.sizes for row in rows))
