"""The products of an inventory as one rank of an engine runs them, and the counts that ranks share.

Column splits give a TP rank N / tp, row splits K / tp; keys and values are repeated where ranks
outnumber their heads; experts are shared by ranks of their own. What an engine fuses (q, k and v;
gate and up) is one product with *parts*. ``roles.toml`` says how the modules of a role are split.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING

from gacprof.checkpoint.inventory import Module

if TYPE_CHECKING:
    from gacprof.lint.deployment import Deployment

ROLES = tomllib.loads(files("gacprof.kernels").joinpath("demands/roles.toml").read_text("utf-8"))
ROTATED = re.compile(r"(llama|mistral|mixtral|qwen[23](_moe)?|gemma2?)(_text)?")
"""Types whose classes rotate all of head_dim in two halves where the config says no part of it."""
PARTLY_ROTATED = ("partial_rotary_factor", "rotary_pct", "rotary_dim")
HEAD_DIMS = ("rotated_head_dim", "attention_head_dim", "mixed_head_dim")
"""Roles of head_dims: of a model that rotates them whole, of others, of one that has several."""
ALWAYS_FUSED = ("in_proj", "in_proj_qkvz", "w1/w3")
"""Products that are stored as one, or whose parts have one requirement."""
MIXER_PREFIXES = {"mla": "mla.", "v4": "attention."}
"""Parts of the names of attention's products, where it is not grouped."""
MXFP4_BLOCK = 32
"""Weights a scale of MXFP4: experts are shared in whole blocks."""


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
    field: str = ""
    modules: tuple[str, ...] = ()

    @property
    def is_sized(self) -> bool:
        """Whether the side that ranks share is known."""
        shared_side = self.K if self.split == "row" else self.N
        return self.kind not in ("dense", "expert") or shared_side > 0


def rank_products(deployment: Deployment) -> list[RankProduct]:
    """The counts and products of a model on one rank, counts first."""
    sizes, modules = deployment.sizes, deployment.inventory.modules
    groups: dict[str, list[RankProduct]] = {}
    widths = {module.out_features for module in modules if module.role == "up"}
    prefixes = {"": "", "mlp": "", "attention": MIXER_PREFIXES.get(sizes.mixer, "")}
    if "expert_width" in sizes.family:
        prefixes["mlp"] = "dense."
    for module in modules:
        block, fused, name, *_ = ROLES["roles"][module.role]
        suffix = ""
        if block == "mlp" and len(widths) > 1:
            suffix = f" ({min({module.in_features, module.out_features} & widths)})"
        elif module.layer and block == "attention":
            suffix = " (global)"
        prefix = prefixes.get(block, f"{block}.")
        part = _rank_product(f"{prefix}{name}{suffix}", module, deployment)
        groups.setdefault(f"{prefix}{fused}{suffix}", []).append(part)
    products = list(_counts(deployment))
    for name, parts in groups.items():
        base = name.partition(" ")[0].rpartition(".")[2]
        is_fused = len(parts) > 1 and base in (*deployment.engine.fused, *ALWAYS_FUSED)
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


def _rank_product(name: str, module: Module, deployment: Deployment) -> RankProduct:
    """One module as a rank holds it."""
    gemm, sizes, engine = module.gemms[0], deployment.sizes, deployment.engine
    block, _, _, kind, split, shared_by, unit = ROLES["roles"][module.role]
    widths = {"moe": "expert_width", "shared": "shared_width", "": "vocab_size"}
    whole = gemm.K if split == "row" else gemm.N
    count = sizes.get(unit) if unit else 0
    ranks = deployment.ranks[shared_by]
    repeats = unit == "kv_heads" and count and ranks % count == 0
    if repeats or (unit, count) == ("mamba_groups", 1):  # each rank has one at least
        ranks = min(ranks, count)
    size = 0  # ranks cannot share it evenly
    if count and unit in engine.uneven:
        size = -(-count // ranks) * (whole // count)
    elif whole % ranks == 0 == count % ranks:
        size = whole // ranks
    elif not unit and "widths" in engine.uneven:
        size = -(-whole // ranks)
    elif kind == "expert" and deployment.storage.form == "mxfp4" and whole % MXFP4_BLOCK == 0:
        size = -(-whole // MXFP4_BLOCK // ranks) * MXFP4_BLOCK
    n, k = (gemm.N, size) if split == "row" else (size, gemm.K)
    return RankProduct(
        name,
        module.role,
        kind,
        split,
        0 if kind == "vocab" else n,
        k,
        whole,
        ranks,
        is_by_heads=bool(unit),
        field=sizes.field(unit or widths.get(block, "mlp_width")),
        modules=(module.name.replace(f".layers.{module.layer}.", ".layers.{}."),),
    )


def _counts(deployment: Deployment) -> Iterator[RankProduct]:
    """What ranks share whole, how heads group, and attention's head_dims."""
    sizes, ranks = deployment.sizes, deployment.ranks
    left_out = set(ROLES["not-in"][sizes.mixer])
    if sizes.get("head_dim"):
        left_out.add("head_dim")
    if not sizes.has_experts:
        left_out.add("experts")
    if deployment.storage.form in ("bnb", "mxfp4"):
        yield _count("every quantised linear", "model", ranks["tp"])
    for name, (role, size, shared_by, needs) in ROLES["counts"].items():
        number = sizes.get(size)
        by = ranks.get(shared_by) or sizes.get(shared_by)
        if name not in left_out and number and by and (not needs or sizes.get(needs)):
            yield _count(name, role, number, by, sizes.field(size))
    if sizes.mixer != "grouped" or not sizes.get("heads"):
        return
    is_partly = any(sizes.values.get(field) not in (None, 1, 1.0) for field in PARTLY_ROTATED)
    role = "attention_head_dim"
    if sizes.get("global_head_dim"):  # Gemma 4: layers of full attention have their own
        role = "mixed_head_dim"
    elif ROTATED.fullmatch(sizes.model_type) and not is_partly:
        role = "rotated_head_dim"
    for suffix, size in ((" (global)", "global_head_dim"), ("", "head_dim")):
        if sizes.get(size):
            yield _count(f"attention head_dim{suffix}", role, sizes.get(size), 1, sizes.field(size))


def _count(name: str, role: str, number: int, ranks: int = 1, field: str = "") -> RankProduct:
    return RankProduct(name, role, "count", "none", number, 0, number, ranks, field=field)
