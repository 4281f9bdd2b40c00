"""Candidate sizes of dims: the safe ones within the window that the objective, an engine and the
user allow. Dims that share one size are a group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from math import gcd, lcm
from typing import Literal

import numpy as np

from gacprof.checkpoint.inventory import Dim
from gacprof.checkpoint.layouts.configs import WidthKey, width_keys
from gacprof.core.errors import PlanError
from gacprof.core.sizes import SizeVerdict, seems_slow
from gacprof.core.verdicts import Ints
from gacprof.diagnosing.sizes import SizeTable, window_of
from gacprof.lint.multiples import ANY_SIZE, EngineMultiple
from gacprof.planning.quality import Objective
from gacprof.workload.products import PADDED_TO, coupled_dims, padded_neighbours

Uniform = Literal["none", "module", "role", "kind"]


@dataclass(frozen=True)
class SizeGroup:
    """A group of dims that take one size, and its candidate ``sizes``: the safe ones beside padded
    coupled dims first, nearer to the present size before others; None (merged) last.

    ``times`` are the multiples of the group's size that its dims have (of shared experts, say).
    """

    dims: tuple[Dim, ...]
    times: tuple[int, ...]
    sizes: tuple[int | None, ...] = ()

    @property
    def largest(self) -> int:
        """The largest present size of its dims, in units of the group's size."""
        return max(dim.size // times for dim, times in zip(self.dims, self.times, strict=True))

    @property
    def is_equal(self) -> bool:
        """Whether the dims share one size already."""
        return self.at(self.largest) == {dim.name: dim.size for dim in self.dims}

    @property
    def may_stay(self) -> bool:
        """Whether the present sizes are among the candidates."""
        return self.largest in self.sizes and self.is_equal

    def at(self, size: int | None) -> dict[str, int | None]:
        """Return the dims' sizes by name where the group has this one."""
        pairs = zip(self.dims, self.times, strict=True)
        return {dim.name: size and size * times for dim, times in pairs}


@dataclass(frozen=True)
class SizeRules:
    """The options of a plan that restrict sizes. ``pins`` are sizes by dim name, ``window`` is a
    fraction of the present size, ``required`` an engine's multiples by dim name."""

    pins: Mapping[str, int]
    window: float
    multiple: int
    uniform: Uniform
    required: Mapping[str, EngineMultiple] = field(default_factory=dict)

    def multiple_of(self, group: SizeGroup) -> int:
        """Return the multiple of a group's size that user, engine and stored units require."""
        multiple = self.multiple
        for dim, times in zip(group.dims, group.times, strict=True):
            of_dim = lcm(dim.step, self.required.get(dim.name, ANY_SIZE).multiple)
            multiple = lcm(multiple, of_dim // gcd(of_dim, times))
        return multiple


def read_pins(pins: Sequence[str], dims: Sequence[Dim]) -> dict[str, int]:
    """Return sizes by dim name from texts such as ``*.mlp:width=688`` or ``*:rank=keep``.

    Raises :class:`PlanError` for a pattern that no dim has, or a size that the dim cannot have.
    """
    sizes: dict[str, int] = {}
    for pin in pins:
        pattern, _, text = pin.rpartition("=")
        matches = [dim for dim in dims if fnmatchcase(dim.name, pattern)]
        is_size = text.isdecimal() and len(text) < 20  # Python reads at most 4300 digits
        if not matches or not (text == "keep" or is_size):
            raise PlanError(f"no dim for the pin '{pin}': write it like '{dims[0].name}=keep'")
        for dim in matches:
            sizes[dim.name] = dim.size if text == "keep" else int(text)
            refusal = dim.refusal(sizes[dim.name])
            if refusal:
                raise PlanError(f"'{dim.name}' of {dim.size} cannot have the pin {pin}: {refusal}")
    return sizes


def size_groups(table: SizeTable, objective: Objective, rules: SizeRules) -> list[SizeGroup]:
    """Return the adjustable dims in groups that take one size, each with its candidate sizes.

    Widths that the config states as one number, and that no model code builds one by one, are a
    group; none of them changes where one cannot. A pinned dim leaves a ``uniform`` group.
    """
    inventory = table.products.inventory
    follow: dict[str, WidthKey] = {}
    for key in width_keys(inventory.config, inventory.dims):
        if key.is_true and key.must_be_true:
            follow |= dict.fromkeys(key.times, key)
    members: dict[object, list[Dim]] = {}
    for dim in inventory.dims:
        module = dim.name.partition(":")[0]
        shared = {"none": dim.name, "module": module, "role": dim.role, "kind": ""}
        label: object = (dim.kind, dim.name if dim.name in rules.pins else shared[rules.uniform])
        must_agree = [dim]
        if dim.name in follow:
            label, must_agree = follow[dim.name].name, list(follow[dim.name].dims)
        if all(other.adjustable for other in must_agree):
            members.setdefault(label, []).append(dim)
    groups = []
    for dims in members.values():
        times = [follow[dim.name].times[dim.name] if dim.name in follow else 1 for dim in dims]
        group = SizeGroup(tuple(dims), tuple(map(int, times)))
        groups.append(replace(group, sizes=_sizes(table, objective, rules, group)))
    return groups


def _sizes(
    table: SizeTable, objective: Objective, rules: SizeRules, group: SizeGroup
) -> tuple[int | None, ...]:
    """Return the sizes that a group may take: only the pinned one; else the safe ones, the present
    one where only noise or coupled dims may keep it from being safe, and None (merge). If there are
    none, the next multiple that an engine allows."""
    dim, largest, multiple = group.dims[0], group.largest, rules.multiple_of(group)
    pins = {
        rules.pins[dim.name] / times
        for dim, times in zip(group.dims, group.times, strict=True)
        if dim.name in rules.pins
    }
    if len(pins) > 1 or not all(pin.is_integer() for pin in pins):
        raise PlanError(f"{dim.name} and others follow from one size, but pins differ: {pins}")
    if pins:
        return (int(pins.pop()),)
    sizes: list[int | None] = list(_offered(table, objective, rules, group))
    now = table.verdict(dim, dim.size)
    beside_padded = table.beside_padded(dim, dim.size, dim.size).of(dim.size) or now
    is_coupled = bool(coupled_dims(table.products.inventory, dim))
    stays = largest in sizes or is_open(now) or is_coupled
    if stays and largest % multiple == 0 and group.is_equal:
        sizes = list(dict.fromkeys([*sizes[:1], largest, *sizes]))
    if not sizes:
        sizes.append(-(-largest // multiple) * multiple)
    is_known = {now.verdict, beside_padded.verdict} != {"unknown"}
    is_pair = len(group.dims) == 1 and table.products.inventory.is_mergeable(dim)
    if is_known and is_pair and objective.name != "gac":
        sizes.append(None)
    return tuple(sizes)


def is_open(now: SizeVerdict | None) -> bool:
    """Return whether a stored size is undecided and not even mostly slower than a larger one."""
    return now is not None and now.verdict == "undecided" and not seems_slow(now)


def _offered(
    table: SizeTable, objective: Objective, rules: SizeRules, group: SizeGroup
) -> dict[int, None]:
    """Return the sizes that are safe for all of the dims, and allowed, in a group's order."""
    largest, required = group.largest, rules.multiple_of(group)
    pairs = list(zip(group.dims, group.times, strict=True))
    low = window_of(min(dim.size // times for dim, times in pairs), rules.window)[0]
    next_multiple = -(-largest // required) * required
    high = max(window_of(largest, rules.window)[1], next_multiple)
    sizes: dict[int, None] = {}
    for multiple in (*PADDED_TO, 1):
        offered: list[Ints] = []
        refused: list[Ints] = []
        for dim, times in pairs:
            neighbours = padded_neighbours(table.products.inventory, dim, multiple)
            verdicts = table.verdicts(dim, low * times, high * times, neighbours)
            for of_dim, of_group in ((verdicts.offered, offered), (verdicts.refused, refused)):
                of_group.append(of_dim[of_dim % times == 0] // times)
        safe = np.setdiff1d(np.concatenate(offered), np.concatenate(refused))
        safe = safe[safe % required == 0]
        for dim, times in pairs:
            safe = safe[objective.suits(dim, safe * times)]
        nearest = np.argsort(abs(safe - largest), kind="stable")
        sizes |= dict.fromkeys(safe[nearest].tolist())
    return sizes
