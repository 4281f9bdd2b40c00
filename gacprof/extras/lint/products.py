"""The products of an inventory as one rank of an engine runs them, and the counts that ranks share.

Column splits give a TP rank N / tp, row splits K / tp; keys and values are repeated where ranks
outnumber their heads; experts are shared by ranks of their own. What an engine fuses (q, k and v;
gate and up) is one product with *parts*, since requirements may be on each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gacprof.checkpoint.from_config import ConfigSizes, whole_number
from gacprof.checkpoint.inventory import Inventory, Module
from gacprof.extras.lint.storage import Storage
from gacprof.kernels.demands.requirements import Engine



@dataclass(frozen=True)
class Place:
    """A module's place on ranks: the block that it is in, the product that engines may fuse it
    into, its own name, how it is split, and the count that is shared whole."""

    block: str
    fused: str
    name: str
    split: str
    count: str


ROLES = {
    "q": Place("attention", "qkv", "q", "column", "heads"),
    "k": Place("attention", "qkv", "k", "column", "kv_heads"),
    "v": Place("attention", "qkv", "v", "column", "kv_heads"),
    "o": Place("attention", "o", "o", "row", "heads"),
    "q_a": Place("attention", "qkv_a", "q_a", "replicated", ""),
    "kv_a": Place("attention", "qkv_a", "kv_a", "replicated", ""),
    "q_b": Place("attention", "q_b", "q_b", "column", "heads"),
    "kv_b": Place("attention", "kv_b", "kv_b", "column", "heads"),
    "o_b": Place("attention", "o_b", "o_b", "row", "o_groups"),
    "gdn_q": Place("gdn", "in_proj_qkvz", "q", "column", "linear_num_key_heads"),
    "gdn_k": Place("gdn", "in_proj_qkvz", "k", "column", "linear_num_key_heads"),
    "gdn_v": Place("gdn", "in_proj_qkvz", "v", "column", "linear_num_value_heads"),
    "gdn_z": Place("gdn", "in_proj_qkvz", "z", "column", "linear_num_value_heads"),
    "gdn_out": Place("gdn", "out", "out", "row", "linear_num_value_heads"),
    "mamba_z": Place("mamba", "in_proj", "z", "column", "mamba_heads"),
    "mamba_x": Place("mamba", "in_proj", "x", "column", "mamba_heads"),
    "mamba_B": Place("mamba", "in_proj", "B", "column", "mamba_groups"),
    "mamba_C": Place("mamba", "in_proj", "C", "column", "mamba_groups"),
    "mamba_dt": Place("mamba", "in_proj", "dt", "column", "mamba_heads"),
    "mamba_out": Place("mamba", "out_proj", "out_proj", "row", "mamba_heads"),
    "mamba1": Place("mamba", "in_proj", "in_proj", "mamba1", ""),
    "gate": Place("mlp", "gate_up", "gate", "column", ""),
    "up": Place("mlp", "gate_up", "up", "column", ""),
    "down": Place("mlp", "down", "down", "row", ""),
    "shared_gate": Place("shared", "gate_up", "gate", "column", ""),
    "shared_up": Place("shared", "gate_up", "up", "column", ""),
    "shared_down": Place("shared", "down", "down", "row", ""),
    "expert_gate": Place("moe", "w1/w3", "w1", "column", ""),
    "expert_up": Place("moe", "w1/w3", "w1", "column", ""),
    "expert_down": Place("moe", "w2", "w2", "row", ""),
    "embedding": Place("", "embedding", "embedding", "vocab", ""),
    "head": Place("", "lm_head", "lm_head", "vocab", ""),
}
"""By a module's role."""

COUNTS = {
    "attention heads": ("heads", "heads"),
    "kv heads": ("kv_heads", "kv_heads"),
    "mamba heads": ("mamba_heads", "mamba_heads"),
    "mamba groups": ("mamba_groups", "mamba_groups"),
    "output groups": ("output_groups", "o_groups"),
    "linear key heads": ("linear_key_heads", "linear_num_key_heads"),
    "linear value heads": ("linear_value_heads", "linear_num_value_heads"),
}
"""Role and size, by name, of what TP ranks share whole."""
ROTATED = (
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2",
)  # fmt: skip
"""Types whose classes rotate all of head_dim in two halves where the config says no part of it."""
HEAD_DIMS = ("rotated_head_dim", "attention_head_dim", "mixed_head_dim")
"""Roles of head_dims: of a model that rotates them whole, of others, of one that has several."""
PARTLY_ROTATED = ("partial_rotary_factor", "rotary_pct", "rotary_dim")
MXFP4_BLOCK = 32
"""Weights a scale of MXFP4: experts are shared in whole blocks."""


@dataclass(frozen=True)
class Ranks:
    """``experts`` ranks share each expert, ``shared`` each shared expert; ``expert_parallel`` ranks
    deal out whole experts."""

    tp: int = 1
    experts: int = 1
    shared: int = 1
    expert_parallel: int = 1


def share_out(engine: Engine, tp: int, ep: int, dp: int) -> Ranks:
    """The ranks of a deployment, as the engine shares experts out."""
    if engine.splits == "layers":
        return Ranks()
    if engine.experts == "whole under EP":
        if ep > 1:
            return Ranks(tp, 1, 1 if dp > 1 else tp, tp * dp)
        return Ranks(tp, tp * dp, tp, 1)
    return Ranks(tp, max(1, tp // ep), tp, ep)


@dataclass(frozen=True)
class RankProduct:
    """A product, or a count (``N`` of it), as one rank holds it; sizes that aren't known are 0.

    ``kind`` is dense, expert, vocab or count; ``split`` column, row, replicated or none. ``whole``
    is the number that ``ranks`` are to share evenly; ``is_by_heads``: heads are shared, whose count
    is judged by itself. ``parts`` are those of a fused product. ``field`` is the config's name of
    the width, ``modules`` are the checkpoint's names, ``{}`` for the layer.
    """

    name: str
    role: str
    kind: str
    split: str
    N: int
    K: int = 0
    whole: int = 0
    ranks: int = 1
    is_by_heads: bool = False
    parts: tuple[RankProduct, ...] = ()
    is_gated: bool = True
    field: str = ""
    modules: tuple[str, ...] = ()

    @property
    def needs_witness(self) -> bool:
        """Whether an ok rests on a row: of all products, and of attention's head_dim."""
        return self.kind != "count" or self.role in HEAD_DIMS

    @property
    def is_sized(self) -> bool:
        """Whether the side that ranks share is known."""
        if self.kind not in ("dense", "expert"):
            return True
        return bool(self.K if self.split == "row" else self.N)


ALWAYS_FUSED = ("in_proj", "in_proj_qkvz", "w1/w3")
"""Products that are stored as one, or whose parts have one requirement."""


def rank_products(
    inventory: Inventory, sizes: ConfigSizes, engine: Engine, ranks: Ranks, storage: Storage
) -> list[RankProduct]:
    """The counts and products of a model on one rank, counts first."""
    groups: dict[str, list[RankProduct]] = {}
    widths = {module.out_features for module in inventory.modules if module.role == "up"}
    for module in inventory.modules:
        place = ROLES[module.role]
        suffix = ""
        if place.block == "mlp" and len(widths) > 1:
            suffix = f" ({module.in_features if place.split == 'row' else module.out_features})"
        elif place.block == "attention" and module.layer:
            suffix = " (global)"
        prefix = _prefix(place.block, sizes)
        part = _rank_product(module, f"{prefix}{place.name}{suffix}", sizes, engine, ranks, storage)
        groups.setdefault(f"{prefix}{place.fused}{suffix}", []).append(part)
    products = list(counts(sizes, ranks, storage))
    for name, parts in groups.items():
        base = name.partition(" ")[0].rpartition(".")[2]
        if len(parts) > 1 and base in (*engine.fused, *ALWAYS_FUSED):
            products.append(_fuse(name, base, parts))
        else:
            products += parts
    return products


def _prefix(block: str, sizes: ConfigSizes) -> str:
    """The block's name in front of a product's: ``mla.``, ``dense.`` in a model with experts."""
    if block == "mlp":
        return "dense." if sizes.has_experts or "expert" in sizes.family else ""
    if block == "attention":
        is_v4 = sizes.family.get("mixer") == "v4"
        return "mla." if sizes.is_latent else "attention." if is_v4 else ""
    return f"{block}." if block else ""


def _fuse(name: str, base: str, parts: Sequence[RankProduct]) -> RankProduct:
    """The parts as one product: N is their sum, 0 where a part's size isn't known."""
    first = parts[0]
    modules = tuple(dict.fromkeys(module for part in parts for module in part.modules))
    if first.kind == "expert":
        return replace(first, name=name, role="expert_gate_up", modules=modules)
    sizes = [part.N for part in parts]
    uneven = [part for part in parts if part.whole and not part.N]
    role = "in_proj" if base.startswith("in_proj") else base
    return replace(
        first,
        name=name,
        role=f"shared_{role}" if first.role.startswith("shared_") else role,
        N=sum(sizes) if all(sizes) else 0,
        whole=uneven[0].whole if uneven else 0,
        is_by_heads=bool(uneven) and uneven[0].is_by_heads,
        parts=tuple(parts),
        modules=modules,
    )


def _rank_product(
    module: Module,
    name: str,
    sizes: ConfigSizes,
    engine: Engine,
    ranks: Ranks,
    storage: Storage,
) -> RankProduct:
    """One module as a rank holds it."""
    gemm, role = module.gemms[0], module.role
    place = ROLES[role]
    modules = (module.name.replace(f".layers.{module.layer}.", ".layers.{}."),)
    is_gated = sizes.family.get("is_gated", True)
    if place.split == "vocab":
        field = sizes.field("vocab_size")
        return RankProduct(
            name, role, "vocab", "column", 0, gemm.K, gemm.N, ranks.tp, field=field, modules=modules
        )
    kind, parts, field = "dense", ranks.tp, place.count
    if place.block == "moe":
        kind, parts, field = "expert", ranks.experts, sizes.family["expert"]
    elif place.block == "shared":
        parts, field = ranks.shared, sizes.family["shared"].replace("count * expert", "")
        field = field or sizes.family["expert"]
    elif place.block == "mlp":
        field = sizes.family.get("dense", "intermediate_size")
    elif place.split == "mamba1":
        kind = "Mamba-1"
    if place.split == "replicated":
        parts = 1
    whole = gemm.K if place.split == "row" else gemm.N
    count = sizes.get(place.count) if place.count else 0
    size, parts = _share(whole, parts, count, place.count, engine)
    if kind == "expert" and not size and storage.form == "mxfp4" and whole % MXFP4_BLOCK == 0:
        size = -(-whole // MXFP4_BLOCK // parts) * MXFP4_BLOCK
    n, k = (gemm.N, size) if place.split == "row" else (size, gemm.K)
    return RankProduct(
        name, role, kind, place.split, n, k, whole, parts, bool(place.count),
        is_gated=is_gated, field=sizes.field(field), modules=modules,
    )  # fmt: skip


def _share(whole: int, ranks: int, count: int, unit: str, engine: Engine) -> tuple[int, int]:
    """A size on one rank, 0 where it can't be shared evenly, and the ranks that share it. Of keys
    and values, and of one group, each rank has one at least."""
    if unit == "kv_heads" and 0 < count < ranks and ranks % count == 0:
        ranks = count
    elif unit == "mamba_groups" and count == 1:
        ranks = 1
    if unit == "kv_heads" and count and unit in engine.uneven:
        return -(-count // ranks) * (whole // count), ranks
    if not unit and "widths" in engine.uneven:
        return -(-whole // ranks), ranks
    if whole % ranks or count % ranks:
        return 0, ranks
    return whole // ranks, ranks


def counts(sizes: ConfigSizes, ranks: Ranks, storage: Storage) -> Iterator[RankProduct]:
    """What ranks share whole, how heads group, and attention's head_dims."""
    mixer = sizes.family.get("mixer", "")
    if storage.form == "bnb":
        yield _count("every quantised linear", "model", ranks.tp)
    for name, (role, field) in COUNTS.items():
        hidden = (field == "kv_heads" and mixer == "mla") or (
            field == "mamba_groups" and not sizes.get("mamba_heads")
        )
        if sizes.get(field) and not hidden:
            yield _count(name, role, sizes.get(field), ranks.tp, sizes.field(field))
    heads, kv_heads = sizes.get("heads"), sizes.get("kv_heads")
    if heads and kv_heads and not mixer:
        field = sizes.field("kv_heads")
        yield _count("heads over kv heads", "head_groups", heads, kv_heads, field)
    yield from _head_dims(sizes, heads)
    if sizes.get("experts") and sizes.has_experts:
        field = sizes.field("experts")
        yield _count("experts", "experts", sizes.get("experts"), ranks.expert_parallel, field)
    for field in ("num_attention_heads", "num_heads", "heads"):
        number = whole_number(sizes.vision.get(field), field)
        if number:
            yield _count("vision attention heads", "vision_attention_heads", number, ranks.tp)
            break


def _head_dims(sizes: ConfigSizes, heads: int) -> Iterator[RankProduct]:
    if sizes.family.get("mixer") or sizes.is_latent or not heads:
        return
    head_dim, hidden = sizes.get("head_dim"), sizes.get("hidden_size")
    if not head_dim and hidden:
        yield _count("head_dim", "head_dim", hidden, heads, "head_dim")
    is_partly = any(sizes.values.get(field) not in (None, 1, 1.0) for field in PARTLY_ROTATED)
    is_rotated = sizes.model_type.removesuffix("_text") in ROTATED and not is_partly
    role = "rotated_head_dim" if is_rotated else "attention_head_dim"
    if sizes.get("global_head_dim"):  # Gemma 4: layers of full attention have their own
        role, size = "mixed_head_dim", sizes.get("global_head_dim")
        yield _count("attention head_dim (global)", role, size, 1, "global_head_dim")
    if head_dim:
        yield _count("attention head_dim", role, head_dim, 1, sizes.field("head_dim"))


def _count(name: str, role: str, number: int, ranks: int = 1, field: str = "") -> RankProduct:
    return RankProduct(name, role, "count", "none", number, 0, number, ranks, field=field)
