"""The products of an inventory as one rank of an engine runs them, and the counts that ranks share.

Column splits give a TP rank N / tp, row splits K / tp; keys and values are repeated where ranks
outnumber their heads; experts are shared by ranks of their own. What an engine fuses (q, k and v;
gate and up) is one product with *parts*, since requirements may be on each of them. ``roles.toml``
says how the modules of each role are split.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from gacprof.checkpoint.from_config import ConfigSizes
from gacprof.checkpoint.inventory import Inventory, Module
from gacprof.extras.lint.storage import Storage
from gacprof.kernels.requirements import Engine

ROTATED = re.compile(r"(llama|mistral|mixtral|qwen[23](_moe)?|gemma2?)(_text)?")
"""Types whose classes rotate all of head_dim in two halves where the config says no part of it."""
PARTLY_ROTATED = ("partial_rotary_factor", "rotary_pct", "rotary_dim")
HEAD_DIMS = ("rotated_head_dim", "attention_head_dim", "mixed_head_dim")
"""Roles of head_dims: of a model that rotates them whole, of others, of one that has several."""
ALWAYS_FUSED = ("in_proj", "in_proj_qkvz", "w1/w3")
"""Products that are stored as one, or whose parts have one requirement."""
MXFP4_BLOCK = 32
"""Weights a scale of MXFP4: experts are shared in whole blocks."""


@dataclass(frozen=True)
class Ranks:
    """``experts`` ranks share each expert, ``shared`` each shared expert; ``expert_parallel`` ranks
    deal out whole experts; what is replicated is on one ``alone``."""

    tp: int = 1
    experts: int = 1
    shared: int = 1
    expert_parallel: int = 1
    alone: int = 1


def share_out(engine: Engine, tp: int, ep: int, dp: int) -> Ranks:
    """The ranks of a deployment, as the engine shares experts out."""
    if engine.splits == "layers":
        return Ranks()
    if engine.experts != "whole under EP":
        return Ranks(tp, max(1, tp // ep), tp, ep)
    if ep == 1:
        return Ranks(tp, tp * dp, tp, 1)
    return Ranks(tp, 1, 1 if dp > 1 else tp, tp * dp)


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
        shared_side = self.K if self.split == "row" else self.N
        return self.kind not in ("dense", "expert") or shared_side > 0


@cache
def _roles() -> Mapping[str, Any]:
    text = files("gacprof.kernels").joinpath("demands/roles.toml").read_text("utf-8")
    return tomllib.loads(text)


def rank_products(
    inventory: Inventory, sizes: ConfigSizes, engine: Engine, ranks: Ranks, storage: Storage
) -> list[RankProduct]:
    """The counts and products of a model on one rank, counts first."""
    groups: dict[str, list[RankProduct]] = {}
    widths = {module.out_features for module in inventory.modules if module.role == "up"}
    prefixes = {"mlp": "", "attention": "", "": ""}
    if "expert" in sizes.family:
        prefixes["mlp"] = "dense."
    if sizes.mixer in ("mla", "v4"):
        prefixes["attention"] = {"mla": "mla.", "v4": "attention."}[sizes.mixer]
    for module in inventory.modules:
        block, fused, name, *_ = _roles()["roles"][module.role]
        suffix = ""
        if block == "mlp" and len(widths) > 1:
            suffix = f" ({min({module.in_features, module.out_features} & widths)})"
        elif module.layer and block == "attention":
            suffix = " (global)"
        prefix = prefixes.get(block, f"{block}.")
        part = _rank_product(module, f"{prefix}{name}{suffix}", sizes, engine, ranks, storage)
        groups.setdefault(f"{prefix}{fused}{suffix}", []).append(part)
    products = list(counts(sizes, ranks, storage))
    for name, parts in groups.items():
        base = name.partition(" ")[0].rpartition(".")[2]
        is_fused = len(parts) > 1 and base in (*engine.fused, *ALWAYS_FUSED)
        products += [_fuse(name, base, parts)] if is_fused else parts
    return products


def _fuse(name: str, base: str, parts: Sequence[RankProduct]) -> RankProduct:
    """The parts as one product: N is their sum, 0 where a part's size isn't known."""
    first = parts[0]
    modules = tuple(dict.fromkeys(module for part in parts for module in part.modules))
    if first.kind == "expert":
        return replace(first, name=name, role="expert_gate_up", modules=modules)
    uneven = [part for part in parts if part.whole > 0 == part.N]
    prefix = "shared_" if first.role.startswith("shared_") else ""
    return replace(
        first,
        name=name,
        role=prefix + base.removesuffix("_qkvz"),
        N=sum(part.N for part in parts) if all(part.N for part in parts) else 0,
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
    block, _, _, kind, split, shared_by, count = _roles()["roles"][role]
    modules = (module.name.replace(f".layers.{module.layer}.", ".layers.{}."),)
    widths = {"moe": "expert_width", "shared": "shared_width", "": "vocab_size"}
    field = sizes.field(count or widths.get(block, "mlp_width"))
    parts, whole = getattr(ranks, shared_by), gemm.K if split == "row" else gemm.N
    size, parts = _share(whole, parts, sizes.get(count) if count else 0, count, engine)
    if kind == "expert" and storage.form == "mxfp4" and whole % MXFP4_BLOCK == 0 == size:
        size = -(-whole // MXFP4_BLOCK // parts) * MXFP4_BLOCK
    n, k = (gemm.N, size) if split == "row" else (size, gemm.K)
    return RankProduct(
        name,
        role,
        kind,
        split,
        0 if kind == "vocab" else n,
        k,
        whole,
        parts,
        is_by_heads=bool(count),
        is_gated=sizes.family.get("is_gated", True),
        field=field,
        modules=modules,
    )


def _share(whole: int, ranks: int, count: int, unit: str, engine: Engine) -> tuple[int, int]:
    """A size on one rank, 0 where it can't be shared evenly, and the ranks that share it. Of keys
    and values, and of one group, each rank has one at least."""
    repeats = unit == "kv_heads" and count and ranks % count == 0
    if repeats or (unit, count) == ("mamba_groups", 1):
        ranks = min(ranks, count)
    if count and unit in engine.uneven:
        return -(-count // ranks) * (whole // count), ranks
    if not unit and "widths" in engine.uneven:
        return -(-whole // ranks), ranks
    is_even = whole % ranks == 0 == count % ranks
    return (whole // ranks if is_even else 0), ranks


def counts(sizes: ConfigSizes, ranks: Ranks, storage: Storage) -> Iterator[RankProduct]:
    """What ranks share whole, how heads group, and attention's head_dims."""
    left_out = set(_roles()["not-in"][sizes.mixer])
    if sizes.get("head_dim"):
        left_out.add("head_dim")
    if not sizes.has_experts:
        left_out.add("experts")
    if storage.form in ("bnb", "mxfp4"):
        yield _count("every quantised linear", "model", ranks.tp)
    for name, (role, size, shared_by, needs) in _roles()["counts"].items():
        number = sizes.get(size)
        by = vars(ranks).get(shared_by) or sizes.get(shared_by)
        if name not in left_out and number and by and (not needs or sizes.get(needs)):
            yield _count(name, role, number, by, sizes.field(size))
    if sizes.mixer == "grouped" and sizes.get("heads"):
        yield from _head_dims(sizes)


def _head_dims(sizes: ConfigSizes) -> Iterator[RankProduct]:
    is_partly = any(sizes.values.get(field) not in (None, 1, 1.0) for field in PARTLY_ROTATED)
    role = "attention_head_dim"
    if ROTATED.fullmatch(sizes.model_type) and not is_partly:
        role = "rotated_head_dim"
    sides = {"attention head_dim (global)": "global_head_dim", "attention head_dim": "head_dim"}
    if sizes.get("global_head_dim"):  # Gemma 4: layers of full attention have their own
        role = "mixed_head_dim"
    for name, size in sides.items():
        if sizes.get(size):
            yield _count(name, role, sizes.get(size), 1, sizes.field(size))


def _count(name: str, role: str, number: int, ranks: int = 1, field: str = "") -> RankProduct:
    return RankProduct(name, role, "count", "none", number, 0, number, ranks, field=field)
