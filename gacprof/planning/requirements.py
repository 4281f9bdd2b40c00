"""What a preset's engine demands of a checkpoint's dims.

A demand is on an axis of a product ``y[M, N] = x[M, K] · W[N, K]ᵀ``, as one shard of tensor
parallelism holds it: q, k, v, gate and up are split along N, o and down along K. So
``tp=4,fp8-block`` asks widths for multiples of 4 · 128. A plan chooses dims, which have to be
multiples of what every axis asks that they feed; axes that no dim feeds are what they are, and are
refused or noted where they break a demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, lcm
from typing import Literal

from gacprof.checkpoint.inventory import AttentionHeads, Dim, Feed, Inventory, Module
from gacprof.checkpoint.products import check_heads, shards_of, split_of
from gacprof.core.errors import PlanError
from gacprof.demands.evaluate import judge, multiples
from gacprof.demands.model import count
from gacprof.demands.products import ModelProduct, Ranks, Size
from gacprof.demands.quantisation import NONE
from gacprof.planning.presets import Preset, parse_preset

Axis = Literal["N", "K"]
AXES: tuple[Axis, ...] = ("N", "K")


@dataclass(frozen=True)
class RequiredMultiple:
    """A size has to be a multiple of ``multiple``. ``otherwise`` says what the engine does with
    another; empty where it refuses it."""

    multiple: int
    why: str
    source: str
    otherwise: str = ""


FFN_MULT = RequiredMultiple(
    256,
    "a width per layer is stored as a multiple of the hidden size and rounded up to 256",
    "DeciLM's ffn_mult: convert_hf_to_gguf.py (DeciModel), TensorRT-LLM nemotron_nas",
)


@dataclass(frozen=True)
class Required:
    """All that is demanded of one size."""

    demands: tuple[RequiredMultiple, ...] = ()

    @property
    def multiple(self) -> int:
        return lcm(*(demand.multiple for demand in self.demands))

    @property
    def reasons(self) -> str:
        return "; ".join(dict.fromkeys(demand.why for demand in self.demands))

    def __and__(self, other: Required) -> Required:
        return Required(tuple(dict.fromkeys((*self.demands, *other.demands))))


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
    factored = [module.name for module in inventory.modules if len(module.gemms) > 1]
    if factored and preset.no_factors:
        raise PlanError(
            f"the preset '{text}' cannot express the factor pair of {factored[0]}"
            f"{_more(factored)}: {preset.no_factors}; multiply the pairs out first ('gacprof "
            "realign MODEL --fuse --out MERGED')"
        )
    refuse_counts(inventory, preset)
    by_dim: dict[str, Required] = {}
    unmet: dict[str, list[str]] = {}
    asked = [
        each
        for module in inventory.modules
        for axis in AXES
        for each in _on_axis(inventory, preset, module, axis, unmet)
    ]
    widths = [dim for dim in inventory.dims if dim.kind == "width" and dim.role != "tower"]
    for dim in widths if preset.ffn_mult else ():
        if dim.adjustable:
            asked.append((dim.name, FFN_MULT))
        elif dim.size % FFN_MULT.multiple:
            raise _cannot(preset, f"{dim.name} is {dim.size}", FFN_MULT)
    for name, demand in asked:
        by_dim[name] = by_dim.get(name, Required()) & Required((demand,))
    notes = (f"{text}: {places[0]}{_more(places)}" for places in unmet.values())
    dense = frozenset(m.name for m in inventory.modules if _meets_dense(inventory, preset, m))
    return Requirements(preset, by_dim, tuple(notes), dense)


def _more(places: Sequence[str]) -> str:
    return f" ({len(places) - 1} more like it)" if len(places) > 1 else ""


def refuse_counts(inventory: Inventory, preset: Preset) -> None:
    """Raise :class:`PlanError` for heads or a vocabulary that the engine's ranks cannot share."""

    def refused(attention: AttentionHeads, tp: int) -> str | None:
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
            made = ModelProduct(module.name, module.role, "vocab", "column", n, Size(None))
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
    axis: Axis,
    unmet: dict[str, list[str]],
) -> Iterator[tuple[str, RequiredMultiple]]:
    """What is asked of each adjustable dim on an axis of the module's products.

    Where several add up on it (PaLU's groups), each has to be a multiple. What else is on the axis
    is refused, or noted in ``unmet`` by demand, where it breaks one.
    """
    for gemm in module.gemms:
        feed = Feed(gemm.weight, axis)
        feeding = [dim for dim in inventory.fed_by(gemm.weight) if dim.adjustable]
        free = {d.name: d.feeds.count(feed) for d in feeding if feed in d.feeds}
        sizes = (times * inventory.dim(name).size for name, times in free.items())
        fixed = int(getattr(gemm, axis)) - sum(sizes)
        chosen = {f.axis for d in feeding for f in d.feeds if f.weight == gemm.weight}
        known = {each: None if each in chosen else int(getattr(gemm, each)) for each in AXES}
        for demand in _demanded(inventory, preset, module, axis, known):
            for name, times in free.items():
                yield name, replace(demand, multiple=demand.multiple // gcd(demand.multiple, times))
            if fixed % demand.multiple:
                where = f"the {'outputs' if axis == 'N' else 'inputs'} of {gemm.weight} are {fixed}"
                if not demand.otherwise:
                    raise _cannot(preset, where, demand, ": ask for smaller groups or fewer shards")
                unmet.setdefault(demand.why, []).append(
                    f"{where}, no multiple of {demand.multiple} ({demand.why}), and no plan "
                    f"changes that: {demand.otherwise}"
                )


def _demanded(
    inventory: Inventory,
    preset: Preset,
    module: Module,
    axis: Axis,
    sizes: Mapping[Axis, int | None],
) -> Iterator[RequiredMultiple]:
    """What an axis of a module's product has to be a multiple of over all shards; ``sizes`` are
    what it has on both sides, None where a plan may choose."""
    product = _product(inventory, preset, module, sizes)
    side, name = {"column": "N", "row": "K"}.get(product.split, ""), preset.setting.engine.name
    parts = product.k.parts if side == "K" else product.n.parts
    for on, multiple, demand in multiples(product, preset.setting):
        if axis not in (on, side if on == "global" else ""):
            continue
        if axis == "K" and product.kind == "vocab" and on == "global":
            continue
        why = demand.why.format(multiple=multiple) or f"{name}: {demand.id}"
        outcomes = {"pads": "pads it with zeros", "falls_back": f"falls back to {demand.kernel}"}
        gets_by = outcomes.get(demand.outcome, "")
        shards = parts if on == side else 1
        yield RequiredMultiple(
            multiple * shards, why, demand.source, f"{name} {gets_by}" if gets_by else ""
        )


def _product(
    inventory: Inventory, preset: Preset, module: Module, sizes: Mapping[Axis, int | None]
) -> ModelProduct:
    """A module's product as one shard holds it. Factor pairs are not split."""
    role, split = module.role.removeprefix("expert_"), split_of(module)
    on_n, on_k = shards_of(module, preset.tp, inventory.attentions)

    def local(size: int | None, shards: int) -> Size:
        return Size(None if size is None or size % shards else size // shards, size, shards)

    n, k = local(sizes["N"], on_n), local(sizes["K"], on_k)
    kind = "expert" if module.role != role else "dense"
    kind = "vocab" if role in ("embedding", "head") else kind
    shards = ((role, n),) if role in ("q", "k", "v", "gate", "up") and split == "column" else ()
    return ModelProduct(module.name, module.role, kind, split, n, k, shards=shards)


def _cannot(preset: Preset, where: str, demand: RequiredMultiple, hint: str = "") -> PlanError:
    return PlanError(
        f"the preset '{preset.text}': {where}, no multiple of {demand.multiple} ({demand.why}; "
        f"{demand.source}), and no plan changes that{hint}"
    )


def _meets_dense(inventory: Inventory, preset: Preset, module: Module) -> bool:
    """Whether the module's product with its factors multiplied out meets the demands that the
    engine does not get around. An axis that a width feeds does, by the width's own."""
    if not module.gemms:
        return True
    known: dict[Axis, int | None] = {"N": module.out_features, "K": module.in_features}
    ends = {"N": module.gemms[-1].weight, "K": module.gemms[0].weight}
    return all(
        (known[axis] or 0) % demand.multiple == 0
        or bool(demand.otherwise)
        or any(
            d.kind == "width" and Feed(ends[axis], axis) in d.feeds
            for d in inventory.fed_by(ends[axis])
        )
        for axis in AXES
        for demand in _demanded(inventory, preset, module, axis, known)
    )
