"""The sizes on offer to dims: safe ones within the window, as the objective, an engine and the user
allow. Dims that share one size are a group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from gacprof.checkpoint.inventory import Dim
from gacprof.checkpoint.products import PADDED_TO, coupled_dims
from gacprof.core.errors import PlanError
from gacprof.diagnosing.sizes import SizeTable, seems_safe, window_of
from gacprof.planning.quality import Objective

Uniform = Literal["none", "module", "role", "kind"]


@dataclass(frozen=True)
class SizeGroup:
    """Dims that take one size, of ``sizes``: those that are safe beside padded coupled dims first,
    the nearest to the present one before others. None, merged, is last."""

    dims: tuple[Dim, ...]
    sizes: tuple[int | None, ...]

    def at(self, size: int | None) -> dict[str, int | None]:
        """The size by dim name."""
        return {dim.name: size for dim in self.dims}


@dataclass(frozen=True)
class SizeRules:
    """What the user and an engine leave to a plan: ``pins`` by dim name, a ``window`` around the
    present size (a fraction), a ``multiple``, and one size for a ``uniform`` module, role or
    kind."""

    pins: Mapping[str, int]
    window: float
    multiple: int
    uniform: Uniform


def read_pins(pins: Sequence[str], dims: Sequence[Dim]) -> dict[str, int]:
    """Sizes by dim name, of texts such as ``*.mlp:width=688`` or ``*:rank=keep``.

    Raises :class:`PlanError` for a pattern that no dim has, or a size that is none.
    """
    sizes: dict[str, int] = {}
    for pin in pins:
        pattern, _, size = pin.rpartition("=")
        matches = [dim for dim in dims if fnmatchcase(dim.name, pattern)]
        if not matches or not (size == "keep" or size.isdecimal()):
            raise PlanError(f"no dim for the pin '{pin}': write it like '{dims[0].name}=keep'")
        sizes |= {dim.name: dim.size if size == "keep" else int(size) for dim in matches}
    return sizes


def size_groups(table: SizeTable, objective: Objective, rules: SizeRules) -> list[SizeGroup]:
    """The adjustable dims in groups that take one size, each with the sizes on offer."""
    members: dict[object, list[Dim]] = {}
    for dim in table.products.inventory.dims:
        if dim.adjustable:
            module = dim.name.partition(":")[0]
            shared = {"none": dim.name, "module": module, "role": dim.role, "kind": ""}
            members.setdefault((dim.kind, shared[rules.uniform]), []).append(dim)
    return [_group(table, objective, rules, dims) for dims in members.values()]


def _group(
    table: SizeTable, objective: Objective, rules: SizeRules, dims: Sequence[Dim]
) -> SizeGroup:
    """The group with its sizes: a pin; or those on offer, the present one where noise or coupled
    dims may be all that keeps it from being safe, and merged. Where the source knows none, the
    least that an engine or the others' sizes leave."""
    largest = max(dim.size for dim in dims)
    pins = sorted({rules.pins[dim.name] for dim in dims if dim.name in rules.pins})
    if len(pins) > 1:
        raise PlanError(f"{dims[0].name} and others take one size, but pins say {pins}")
    if pins:
        return SizeGroup(tuple(dims), (_possible(dims, pins[0]),))
    sizes: list[int | None] = list(_offered(table, objective, rules, dims))
    is_undecided = table.verdict(dims[0], largest).verdict == "undecided"
    coupled = coupled_dims(table.products.inventory, dims[0])
    may_stay = largest in sizes or is_undecided or bool(coupled)
    if may_stay and largest % rules.multiple == 0 and all(dim.size == largest for dim in dims):
        sizes = list(dict.fromkeys([*sizes[:1], largest, *sizes]))
    if not sizes:
        sizes.append(_possible(dims, -(-largest // rules.multiple) * rules.multiple))
    modules = table.products.inventory.modules_of[dims[0].name]
    is_pair = dims[0].kind == "rank" and all(module.kind == "factored" for module in modules)
    if is_pair and len(dims) == 1 and objective.name != "gac":
        sizes.append(None)
    return SizeGroup(tuple(dims), tuple(sizes))


def _possible(dims: Sequence[Dim], size: int) -> int:
    """The size. Raises :class:`PlanError` where a dim cannot have it."""
    for dim in dims:
        refusal = dim.refusal(size)
        if refusal:
            raise PlanError(f"'{dim.name}' cannot go from {dim.size} to {size}: {refusal}")
    return size


def _offered(
    table: SizeTable, objective: Objective, rules: SizeRules, dims: Sequence[Dim]
) -> dict[int, None]:
    """The sizes that are safe for all of the dims and suit them, in the order of a group's."""
    low = window_of(min(dim.size for dim in dims), rules.window)[0]
    largest = max(dim.size for dim in dims)
    next_multiple = -(-largest // rules.multiple) * rules.multiple
    high = max(window_of(largest, rules.window)[1], next_multiple)
    sizes: dict[int, None] = {}
    for multiple in (*PADDED_TO, 1):
        by_dim = [
            table.verdicts(dim, low, high, table.padded_neighbours(dim, multiple)) for dim in dims
        ]
        for size in sorted(set().union(*by_dim), key=lambda size: abs(size - largest)):
            verdicts = [verdicts[size] for verdicts in by_dim if size in verdicts]
            known = [verdict for verdict in verdicts if verdict.verdict != "unknown"]
            is_safe = bool(known) and all(seems_safe(v, table.source.tolerance) for v in known)
            is_allowed = size % rules.multiple == 0 and is_safe
            if is_allowed and all(objective.suits(dim, size) for dim in dims):
                sizes[size] = None
    return sizes
