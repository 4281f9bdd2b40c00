"""What serving engines demand of a checkpoint's sizes, as presets: ``vllm,tp=4,fp8-block``.

A map says which sizes a device serves fast. An engine has demands of its own, of divisibility: what
breaks them is refused, padded at load time or stored in another type. They are data
(:mod:`gacprof.demands`), the same that ``gacprof lint`` reads; a plan under a preset gets only
sizes that meet the map *and* all of them.

A demand is on an axis of a product ``y[M, N] = x[M, K] · W[N, K]ᵀ``, as one shard of tensor
parallelism holds it: q, k, v, gate and up are split along N, o and down along K. So
``tp=4,fp8-block`` asks widths for multiples of 4 · 128.

Demands are on products, a plan chooses dims. What a dim has to be a multiple of follows from every
axis that it feeds; axes that no dim feeds are what they are, and are refused or noted where they
break a demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, lcm
from typing import Literal

from gacprof.checkpoint.inventory import Attention, Dim, Feed, Inventory, Module
from gacprof.checkpoint.products import check_heads, shards_of, split_of
from gacprof.core.errors import PlanError
from gacprof.demands.evaluate import judge, multiples
from gacprof.demands.model import count
from gacprof.demands.products import Product, Ranks, Size
from gacprof.demands.quantisation import NONE
from gacprof.planning.preset_text import Preset, parse_preset

Axis = Literal["N", "K", "width"]
AXES: tuple[Literal["N", "K"], ...] = ("N", "K")

FFN_MULT = "DeciLM's ffn_mult: convert_hf_to_gguf.py (DeciModel), TensorRT-LLM nemotron_nas"
ROUNDED_UP = "a width per layer is stored as a multiple of the hidden size and rounded up to 256"


@dataclass(frozen=True)
class Demand:
    """Sizes on ``axis`` have to be multiples of ``multiple`` in every shard.

    ``axis`` is N or K of a product, or ``width``: an MLP's width itself. ``otherwise`` says what
    the engine does with another size; empty where it refuses it.
    """

    axis: Axis
    multiple: int
    why: str
    source: str
    otherwise: str = ""


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
    refuse_counts(inventory, preset)
    by_dim: dict[str, Required] = {}
    unmet: dict[str, list[str]] = {}
    for module in inventory.modules:
        for axis in AXES:
            for name, found in _on_axis(inventory, preset, module, axis, unmet):
                by_dim[name] = by_dim.get(name, Required()) & found
    of_widths = [Demand("width", 256, ROUNDED_UP, FFN_MULT)] if preset.ffn_mult else []
    widths = [dim for dim in inventory.dims if dim.kind == "width" and dim.role != "tower"]
    for dim in widths:
        for demand in of_widths:
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


def _refuse_factors(inventory: Inventory, preset: Preset) -> None:
    factored = [module.name for module in inventory.modules if len(module.gemms) > 1]
    if factored and preset.no_factors:
        raise PlanError(
            f"the preset '{preset.text}' cannot express the factor pair of {factored[0]}"
            f"{_more(factored)}: {preset.no_factors}; multiply the pairs out first ('gacprof "
            "realign MODEL --fuse --out MERGED')"
        )


def refuse_counts(inventory: Inventory, preset: Preset) -> None:
    """Raise :class:`PlanError` for heads or a vocabulary that the engine's ranks cannot share."""

    def refused(attention: Attention, tp: int) -> str | None:
        setting = replace(preset.setting, scheme=NONE, ranks=Ranks(tp, tp, tp))
        numbers = {"heads": attention.heads, "kv_heads": attention.kv_heads}
        for role, number in numbers.items():
            worst = judge(count(role, role, number, tp), setting).worst
            if worst is not None and worst.outcome == "refused":
                of = " of keys and values" if role == "kv_heads" else ""
                return f"{number} heads{of} ({worst.demand.source})"
        return None

    check_heads(inventory, preset.tp, refused, f"the preset '{preset.text}': ")
    for module in inventory.modules:
        if module.role in ("embedding", "head") and len(module.gemms) == 1:
            n = Size(None, module.out_features, preset.tp)
            made = Product(module.name, module.role, "vocab", "column", n, Size(None))
            worst = judge(made, preset.setting).worst
            if worst and worst.outcome == "refused" and worst.axis == "global":
                raise PlanError(
                    f"the preset '{preset.text}': the vocabulary of {module.name}: {worst.why} "
                    f"({worst.demand.source})"
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
        chosen = {
            f.axis for d in feeding if d.adjustable for f in d.feeds if f.weight == gemm.weight
        }
        ends = {each: int(getattr(gemm, each)) for each in AXES}
        known = {each: None if each in chosen else size for each, size in ends.items()}
        for multiple, demand in _demanded(inventory, preset, module, axis, known):
            for name, times in free.items():
                yield name, Required(((multiple // gcd(multiple, times), demand),))
            if fixed % multiple:
                message = _fixed(preset, gemm.weight, axis, fixed, demand, multiple)
                unmet.setdefault(demand.why, []).append(message)


def _demanded(
    inventory: Inventory,
    preset: Preset,
    module: Module,
    axis: str,
    sizes: Mapping[Literal["N", "K"], int | None],
) -> list[tuple[int, Demand]]:
    """(multiple over all shards, demand) of an axis of a module's product; ``sizes`` are what it
    has on both sides, None where a plan may choose."""
    product = _product(inventory, preset, module, sizes)
    side = {"column": "N", "row": "K"}.get(product.split, "")
    parts = product.k.parts if side == "K" else product.n.parts
    found = []
    for on, multiple, demand in multiples(product, preset.setting):
        shards = parts if on == side else 1
        if axis not in (on, side if on == "global" else ""):
            continue
        if axis == "K" and product.kind == "vocab" and on == "global":
            continue
        why = demand.why.format(multiple=multiple) or f"{preset.setting.engine.name}: {demand.id}"
        outcomes = {"pads": "pads it with zeros", "falls_back": f"falls back to {demand.kernel}"}
        gets_by = outcomes.get(demand.outcome, "")
        otherwise = f"{preset.setting.engine.name} {gets_by}" if gets_by else ""
        made = Demand("N" if axis == "N" else "K", multiple, why, demand.source, otherwise)
        found.append((multiple * shards, made))
    return found


def _product(
    inventory: Inventory,
    preset: Preset,
    module: Module,
    sizes: Mapping[Literal["N", "K"], int | None],
) -> Product:
    """A module's product as one shard holds it. Factor pairs are not split."""
    role, split = module.role.removeprefix("expert_"), split_of(module)
    on_n, on_k = shards_of(module, preset.tp, inventory.attentions)

    def local(size: int | None, shards: int) -> Size:
        return Size(None if size is None or size % shards else size // shards, size, shards)

    n, k = local(sizes["N"], on_n), local(sizes["K"], on_k)
    kind = "expert" if module.role != role else "dense"
    kind = "vocab" if role in ("embedding", "head") else kind
    shards = ((role, n),) if role in ("q", "k", "v", "gate", "up") and split == "column" else ()
    return Product(module.name, module.role, kind, split, n, k, shards=shards)


def _fixed(preset: Preset, weight: str, axis: str, size: int, demand: Demand, multiple: int) -> str:
    """A note on a size that no plan changes. Raises :class:`PlanError` where it is refused."""
    where = f"the {'outputs' if axis == 'N' else 'inputs'} of {weight} are {size}"
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
        (module.in_features, Feed(module.gemms[0].weight, "K")),
        (module.out_features, Feed(module.gemms[-1].weight, "N")),
    )
    known: dict[Literal["N", "K"], int | None]
    known = {"K": module.in_features, "N": module.out_features}
    return all(
        size % multiple == 0
        or bool(demand.otherwise)
        or any(d.kind == "width" and feed in d.feeds for d in inventory.fed_by(feed.weight))
        for size, feed in ends
        for multiple, demand in _demanded(inventory, preset, module, feed.axis, known)
    )
