"""The options of a plan: joint sizes of coupled dims, with what all of their weights take.

Groups whose dims meet in a product, or are written in one tensor, are one class: what one costs
depends on the others. Classes share no weight, so that what they take adds up. An option is left
out where

* it is slower than the class as it is and worth no more,
* larger joint sizes are surely faster by more than the tolerance,
* a dim of it is misaligned beside the others' sizes, as they are or padded, or
* another option is worth as much and takes no more of anything that is limited.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, prod

import numpy as np

from gacprof.checkpoint.inventory import Dim, Inventory, Module, NewSizes, TensorInfo
from gacprof.checkpoint.products import coupled_dims
from gacprof.core.sizes import ZERO
from gacprof.diagnosing.sizes import SizeTable, seems_safe
from gacprof.planning.candidates import SizeGroup
from gacprof.planning.plan import LimitName, Option, footprint
from gacprof.planning.quality import Objective

MAX_OPTIONS = 2048
"""Joint sizes of a class that are compared; where there are more, its groups have fewer sizes."""
ROUNDING = 1e-9


@dataclass(frozen=True)
class DimClass:
    """Coupled groups, and the modules and tensors that their dims are in. ``settled`` are the sizes
    of dims without a choice that share these."""

    groups: tuple[SizeGroup, ...]
    modules: tuple[Module, ...]
    tensors: tuple[TensorInfo, ...]
    settled: Mapping[str, int | None]

    @property
    def dims(self) -> list[Dim]:
        return [dim for group in self.groups for dim in group.dims]

    @property
    def stored(self) -> dict[str, int | None]:
        """The present sizes."""
        return {dim.name: dim.size for dim in self.dims}


def classes_of(
    inventory: Inventory, groups: Sequence[SizeGroup], settled: NewSizes
) -> list[DimClass]:
    """The classes of the groups that have a choice; the dims of others are ``settled``."""
    classes = []
    for coupled in _connected(inventory, groups):
        weights = {key: x for group in coupled for key, x in _weights(inventory, group).items()}
        modules = tuple(x for x in weights.values() if isinstance(x, Module))
        tensors = tuple(x for x in weights.values() if isinstance(x, TensorInfo))
        shared = {n: settled[n] for module in modules for n in module.dims if n in settled}
        classes.append(DimClass(tuple(coupled), modules, tensors, shared))
    return classes


def thinned(inventory: Inventory, groups: Sequence[SizeGroup]) -> list[SizeGroup]:
    """The groups, those of a class with more joint sizes than :data:`MAX_OPTIONS` with their first
    sizes only: the nearest that are safe beside padded coupled dims."""
    result = [group for group in groups if len(group.sizes) == 1]
    for coupled in _connected(inventory, groups):
        count = MAX_OPTIONS
        if prod(len(group.sizes) for group in coupled) > MAX_OPTIONS:
            count = int(MAX_OPTIONS ** (1 / len(coupled)))
        result += [replace(group, sizes=group.sizes[:count]) for group in coupled]
    return result


def _connected(inventory: Inventory, groups: Sequence[SizeGroup]) -> list[list[SizeGroup]]:
    """The groups that have a choice, those that share a module or a tensor together."""
    owner: dict[object, list[SizeGroup]] = {}
    for group in groups:
        if len(group.sizes) > 1:
            weights = _weights(inventory, group)
            met = {id(owner[key]): owner[key] for key in weights if key in owner}
            members = [group, *(other for coupled in met.values() for other in coupled)]
            for member in members:
                owner |= dict.fromkeys(_weights(inventory, member), members)
    return list({id(members): members for members in owner.values()}.values())


def _weights(inventory: Inventory, group: SizeGroup) -> dict[object, Module | TensorInfo]:
    """The modules that a group's dims take part in, and the tensors that they are written in."""
    weights: dict[object, Module | TensorInfo] = {}
    for dim in group.dims:
        weights |= {("module", m.name): m for m in inventory.modules_of[dim.name]}
        tensors = [inventory.tensors[place.tensor] for place in dim.places]
        weights |= {info.stored_at: info for info in tensors}
    return weights


def options_of(
    dim_class: DimClass, table: SizeTable, objective: Objective, limits: Collection[LimitName]
) -> list[Option]:
    """The options of a class that are worth comparing, those of the highest value first."""
    joint_sizes = [
        {name: size for sizes in joint for name, size in sizes.items()}
        for joint in product(*([g.at(size) for size in g.sizes] for g in dim_class.groups))
    ]
    options = [_option(dim_class, table, objective, limits, sizes) for sizes in joint_sizes]
    timed = [option for option in options if option.latency_us is not None] or options
    compared = _unbeaten(timed, dim_class.dims, table.source.tolerance)
    fallback = options[0]
    if dim_class.stored in joint_sizes:
        fallback = options[joint_sizes.index(dim_class.stored)]
        most = fallback.time_us * (1 + ROUNDING) or inf
        compared = [o for o in compared if o.value > fallback.value or o.time_us <= most]
    chosen: list[Option] = []
    for option in sorted(compared, key=lambda o: (-o.value, o.parameters, o.time_us)):
        is_dominated = any(
            all(other.takes[name] <= option.takes[name] for name in limits) for other in chosen
        )
        if not is_dominated and _is_safe(table, dim_class, option):
            chosen.append(option)
    return chosen or [fallback]


def _option(
    dim_class: DimClass,
    table: SizeTable,
    objective: Objective,
    limits: Collection[LimitName],
    sizes: Mapping[str, int | None],
) -> Option:
    """Joint sizes with what they are worth and take."""
    in_all = {**dim_class.settled, **sizes}
    weights = footprint(table.products.inventory, dim_class.tensors, in_all, dim_class.modules)
    latency_us = table.products.time_us(table.source, dim_class.modules, in_all)
    takes: dict[LimitName, float] = {
        "parameters": weights.parameters,
        "bytes": weights.nbytes,
        "latency_us": inf if latency_us is None else latency_us.value,
    }
    return Option(
        sizes=sizes,
        value=objective.value(dim_class.dims, sizes, weights.parameters),
        parameters=weights.parameters,
        latency_us=latency_us,
        takes={name: takes[name] for name in limits},
    )


def _unbeaten(options: Sequence[Option], dims: Sequence[Dim], tolerance: float) -> list[Option]:
    """The options that no option of larger sizes surely beats by more than the tolerance. Those of
    a single dim were judged by the source."""
    if len(dims) == 1:
        return list(options)
    sizes = np.array([[option.sizes[dim.name] or 0 for dim in dims] for option in options])
    low = np.array([(option.latency_us or ZERO).low for option in options])
    high = np.array([(option.latency_us or ZERO).high for option in options])
    unbeaten = []
    for i, option in enumerate(options):
        is_larger = ((sizes >= sizes[i]) & (sizes > 0)).all(1)
        if not (is_larger & (high * (1 + tolerance) < low[i])).any():
            unbeaten.append(option)
    return unbeaten


def _is_safe(table: SizeTable, dim_class: DimClass, option: Option) -> bool:
    """Whether no dim that meets others is misaligned beside their sizes, nor beside these padded:
    two odd ones hide each other's cost. What the source doesn't know there counts as it does beside
    padded ones."""
    sizes = {**dim_class.settled, **option.sizes}
    for dim in dim_class.dims:
        size = option.sizes[dim.name]
        if size is not None and coupled_dims(table.products.inventory, dim):
            now = table.verdict(dim, size, sizes)
            padded = table.beside_padded(dim, size, size, sizes).get(size, now)
            for verdict in (now, padded):
                if verdict.verdict != "unknown" and not seems_safe(verdict, table.source.tolerance):
                    return False
    return True
