"""A preset on a checkpoint: what each adjustable dim has to be a multiple of, and what cannot be.

Demands are on products (:mod:`.presets`), a plan chooses dims. What a dim has to be a multiple of
follows from every axis that it feeds; axes that no dim feeds are what they are, and are refused or
noted where they break a demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, lcm
from typing import Literal

from gacprof.checkpoint.inventory import Dim, Feed, Gemm, Inventory, Module
from gacprof.core.errors import PlanError
from gacprof.planning.presets import SHARDS, Demand, Preset, parse_preset

COLUMN = frozenset({"q", "k", "v", "qkv", "gate", "up", "gate_up"})
ROW = frozenset({"o", "down"})
"""Roles that tensor parallelism splits along N, and along K (Megatron's scheme)."""
AXES: tuple[Literal["N", "K"], ...] = ("N", "K")


@dataclass(frozen=True)
class Required:
    """What one size has to be a multiple of: each multiple ``apart``, with its demand."""

    apart: tuple[tuple[int, Demand], ...] = ()

    @property
    def multiple(self) -> int:
        return lcm(*(multiple for multiple, _ in self.apart))

    @property
    def reasons(self) -> str:
        return "; ".join(dict.fromkeys(demand.why for _, demand in self.apart))

    def __and__(self, other: Required) -> Required:
        return Required(tuple(dict.fromkeys((*self.apart, *other.apart))))


@dataclass(frozen=True)
class Requirements:
    """A preset on one checkpoint: what each adjustable dim has to be a multiple of, by name.

    ``unmet`` are notes on sizes that no plan changes and that break a demand which the engine gets
    around. ``dense`` are the modules whose product, were their factors multiplied out, meets all
    demands.
    """

    preset: Preset | None = None
    by_dim: Mapping[str, Required] = field(default_factory=dict)
    unmet: tuple[str, ...] = ()
    dense: frozenset[str] = frozenset()

    def of(self, members: Iterable[Dim]) -> Required:
        """What dims that share one size have to be a multiple of, all together."""
        found = Required()
        for dim in members:
            found &= self.by_dim.get(dim.name, Required())
        return found

    def allows_dense(self, module: str) -> bool:
        return self.preset is None or module in self.dense


def requirements(inventory: Inventory, text: str | None) -> Requirements:
    """What a preset asks of each adjustable dim of a checkpoint.

    Raises :class:`PlanError` for a preset that is none, for factor pairs that the engine cannot
    hold, and for sizes that no plan changes and that the engine refuses.
    """
    if text is None:
        return Requirements()
    preset = parse_preset(text)
    _refuse_factors(inventory, preset)
    _refuse_heads(inventory, preset)
    by_dim: dict[str, Required] = {}
    unmet: dict[str, list[str]] = {}
    for module in inventory.modules:
        for axis in AXES:
            for name, found in _on_axis(inventory, preset, module, axis, unmet):
                by_dim[name] = by_dim.get(name, Required()) & found
    for dim in inventory.dims:
        for demand in _of_widths(preset, dim):
            if dim.adjustable:
                found = Required(((demand.multiple, demand),))
                by_dim[dim.name] = by_dim.get(dim.name, Required()) & found
            elif dim.size % demand.multiple:
                raise _cannot(preset, f"{dim.name} is {dim.size}", demand, demand.multiple)
    notes = (f"{text}: {places[0]}{_more(places)}" for places in unmet.values())
    dense = frozenset(m.name for m in inventory.modules if _meets_dense(inventory, preset, m))
    return Requirements(preset, by_dim, tuple(notes), dense)


def _more(places: Sequence[str]) -> str:
    return f" ({len(places) - 1} more like it)" if len(places) > 1 else ""


def _of_widths(preset: Preset, dim: Dim) -> list[Demand]:
    wanted = dim.kind == "width" and dim.role != "tower"
    return [d for d in preset.demands if d.axis == "width" and wanted]


def _refuse_factors(inventory: Inventory, preset: Preset) -> None:
    factored = [module.name for module in inventory.modules if len(module.gemms) > 1]
    if factored and preset.no_factors:
        raise PlanError(
            f"the preset '{preset.text}' cannot express the factor pair of {factored[0]}"
            f"{_more(factored)}: {preset.no_factors}; multiply the pairs out first ('gacprof "
            "realign MODEL --fuse --out MERGED')"
        )


def _refuse_heads(inventory: Inventory, preset: Preset) -> None:
    """Heads are shared out whole; heads of keys and values are repeated where shards outnumber
    them."""
    for attention in inventory.attentions:
        heads, shared = attention.heads, attention.kv_heads
        uneven = shared % preset.tp and preset.tp % shared
        if heads % preset.tp == 0 and not uneven:
            continue
        which = f"{heads} heads" if heads % preset.tp else f"{shared} heads of keys and values"
        fits = [n for n in range(1, heads + 1) if not (heads % n or (shared % n and n % shared))]
        raise PlanError(
            f"the preset '{preset.text}': {preset.tp} shards cannot share the {which} of layer "
            f"{attention.layer} ({SHARDS}): ask for tp of {', '.join(map(str, fits))}"
        )


def _on_axis(
    inventory: Inventory,
    preset: Preset,
    module: Module,
    axis: Literal["N", "K"],
    unmet: dict[str, list[str]],
) -> Iterator[tuple[str, Required]]:
    """What the adjustable dims on an axis of the module's products have to be multiples of.

    Where several add up on it (PaLU's groups), each has to be one. What else is on the axis is
    refused, or noted in ``unmet`` by demand, where it breaks one.
    """
    for gemm in module.gemms:
        feed = Feed(gemm.weight, axis)
        feeding = inventory.fed_by(gemm.weight)
        free = {d.name: d.feeds.count(feed) for d in feeding if feed in d.feeds and d.adjustable}
        sizes = (times * inventory.dim(name).size for name, times in free.items())
        fixed = int(getattr(gemm, axis)) - sum(sizes)
        for multiple, demand in _demanded(inventory, preset, module, axis):
            for name, times in free.items():
                yield name, Required(((multiple // gcd(multiple, times), demand),))
            if fixed % multiple:
                told = _fixed(preset, gemm, axis, fixed, demand, multiple)
                unmet.setdefault(demand.why, []).append(told)


def _demanded(
    inventory: Inventory, preset: Preset, module: Module, axis: str
) -> list[tuple[int, Demand]]:
    """(multiple over all shards, demand) of an axis of a module's products."""
    role = module.role.removeprefix("expert_")
    shards = 1
    if len(module.gemms) == 1 and role in (COLUMN if axis == "N" else ROW):
        shards = preset.tp
    if role in ("k", "v"):  # of keys and values there are no more shards than heads
        heads = (a.kv_heads for a in inventory.attentions if a.layer == module.layer)
        shards = min(shards, next(heads, shards))
    beside = role in ("embedding", "head")
    found = [
        (demand.multiple * shards, demand)
        for demand in preset.demands
        if demand.axis == axis and (demand.everywhere or not beside)
    ]
    return [(multiple, demand) for multiple, demand in found if multiple > 1]


def _fixed(preset: Preset, gemm: Gemm, axis: str, size: int, demand: Demand, multiple: int) -> str:
    """A note on a size that no plan changes. Raises :class:`PlanError` where it is refused."""
    where = f"the {'outputs' if axis == 'N' else 'inputs'} of {gemm.weight} are {size}"
    if not demand.otherwise:
        raise _cannot(preset, where, demand, multiple)
    return (
        f"{where}, no multiple of {multiple} ({demand.why}), and no plan changes that: "
        f"{demand.otherwise}"
    )


def _cannot(preset: Preset, where: str, demand: Demand, multiple: int) -> PlanError:
    hint = "" if demand.axis == "width" else ": ask for smaller groups or fewer shards"
    return PlanError(
        f"the preset '{preset.text}': {where}, no multiple of {multiple} ({demand.why}; "
        f"{demand.source}), and no plan changes that{hint}"
    )


def _meets_dense(inventory: Inventory, preset: Preset, module: Module) -> bool:
    """Whether the module's product with its factors multiplied out meets the demands that the
    engine does not get around. An axis that a width feeds does, by the width's own."""
    if not module.gemms:
        return True
    ends = (
        ("K", module.in_features, module.gemms[0]),
        ("N", module.out_features, module.gemms[-1]),
    )
    return all(
        size % multiple == 0 or bool(demand.otherwise) or _is_width(inventory, gemm, axis)
        for axis, size, gemm in ends
        for multiple, demand in _demanded(inventory, preset, module, axis)
    )


def _is_width(inventory: Inventory, gemm: Gemm, axis: str) -> bool:
    fed = inventory.fed_by(gemm.weight)
    return any(
        d.kind == "width" and (gemm.weight, axis) == (f.weight, f.axis)
        for d in fed
        for f in d.feeds
    )
