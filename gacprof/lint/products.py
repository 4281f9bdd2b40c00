"""What rows of requirements are about: the products of one rank, counts that ranks share, and what
decides before any product whether a deployment starts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from gacprof.checkpoint.storage import PLAIN, Storage
from gacprof.core.files import shipped_table
from gacprof.workload.products import Product, products

if TYPE_CHECKING:
    from gacprof.lint.deployment import ConfigDeployment

COUNTS_FILE = Path(__file__).parent / "counts.toml"
COUNTS = shipped_table(COUNTS_FILE, dict[str, dict[str, list[str]]])
ROTATED = re.compile(r"(llama|mistral|mixtral|qwen[23](_moe)?|gemma2?)(_text)?")
"""Types whose classes rotate all of head_dim in two halves where the config says no part of it."""
PARTLY_ROTATED = ("partial_rotary_factor", "rotary_pct", "rotary_dim")
HEAD_DIMS = ("rotated_head_dim", "attention_head_dim", "mixed_head_dim")
"""Roles of head_dims: of a model that rotates them whole, of others, of one that has several."""
NAMED_BLOCKS = ("gdn", "kda", "lightning", "conv", "mamba", "shared", "moe")
PREFIXES = {"v4": "attention."} | {name: f"{name}." for name in (*NAMED_BLOCKS, "mla")}
"""What stands before the names of products, by their block, those of attention by its mixer."""
GIB = 1 << 30
START_ROLES = ("expert_ranks", "weights")
"""Roles of counts that say whether a deployment starts: no engine is asked of them."""
WIDTHS = {"conv": "hidden_size", "moe": "expert_width", "shared": "shared_width", "": "vocab_size"}
"""The size that ranks share of a block's products; of others it is mlp_width."""


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
    storage: Storage = PLAIN

    @property
    def is_sized(self) -> bool:
        """Whether the side that ranks share is known."""
        shared_side = self.K if self.split == "row" else self.N
        return self.kind not in ("dense", "expert") or shared_side > 0


def rank_products(deployment: ConfigDeployment) -> list[RankProduct]:
    """The counts and products of a model on one rank, counts first."""
    model = deployment.inventory.modules
    has_widths = len({module.out_features for module in model if module.role == "up"}) > 1
    subjects = list(_counts(deployment))
    for product in products(deployment.inventory, deployment):
        block, suffix = product.role.block, ""
        if block == "mlp" and has_widths:
            suffix = f" ({(product.parts or (product,))[0].whole})"
        elif product.layer and block == "attention":
            suffix = deployment.sizes.attention_suffix(product.layer)
        subjects.append(_subject(product, deployment, suffix))
    return subjects


def _subject(product: Product, deployment: ConfigDeployment, suffix: str) -> RankProduct:
    """A product by the names that requirements have for it. Of experts each part is asked alone."""
    role, sizes = product.role, deployment.sizes
    name, key, n, whole = role.name, role.key, product.N or 0, product.whole
    is_by_heads = bool(role.counted)
    parts = tuple(_subject(part, deployment, suffix) for part in product.parts)
    if parts and role.kind == "expert":
        name, key, n, whole, parts = role.fused, "expert_gate_up", parts[0].N, parts[0].whole, ()
    elif parts:
        # a row on `whole` speaks of the part that ranks cannot share, as its engine does
        uneven = [part for part in parts if part.whole > 0 == part.N]
        name = role.fused
        key = name.removesuffix("_qkvz")
        if role.part == "shared":
            key = f"shared_{key}"
        whole = uneven[0].whole if uneven else 0
        is_by_heads = bool(uneven) and uneven[0].is_by_heads
    prefix = PREFIXES.get(role.block, "")
    if role.block == "attention":
        prefix = PREFIXES.get(sizes.mixer, "")
    elif role.block == "mlp" and "expert_width" in sizes.family:
        prefix = "dense."
    return RankProduct(
        f"{prefix}{name}{suffix}",
        key,
        role.kind,
        role.split,
        0 if role.kind == "vocab" else n,
        product.K or 0,
        whole,
        product.ranks,
        is_by_heads=is_by_heads,
        parts=parts,
        field=sizes.field(role.counted or WIDTHS.get(role.block, "mlp_width")),
        modules=product.modules,
        storage=product.storage,
    )


def _counts(deployment: ConfigDeployment) -> Iterator[RankProduct]:
    """What ranks share whole, how heads group, and attention's head_dims."""
    sizes, ranks = deployment.sizes, deployment.ranks
    if deployment.storage.form in ("bnb", "mxfp4"):
        count = count_of("every quantised linear", "model", ranks["tp"])
        yield replace(count, storage=deployment.storage)
    facts = {**sizes.sizes, **ranks, "": 1, "routed experts": sizes.has_experts}
    facts["no head_dim"] = not sizes.get("head_dim")
    for name, (role, size, shared_by, needs) in COUNTS["counts"].items():
        number, by = sizes.get(size), facts[shared_by]
        if number and by and facts[needs] and name not in COUNTS["not-in"][sizes.mixer]:
            yield count_of(name, role, number, by, sizes.field(size))
    if sizes.mixer != "grouped" or not sizes.get("heads"):
        return
    is_partly = any(sizes.values.get(field) not in (None, 1, 1.0) for field in PARTLY_ROTATED)
    role = "attention_head_dim"
    if sizes.get("global_head_dim") not in (0, sizes.get("head_dim")):  # Gemma 4
        role = "mixed_head_dim"
    elif ROTATED.fullmatch(sizes.model_type) and not is_partly:
        role = "rotated_head_dim"
    for attention in reversed(deployment.inventory.attentions):
        suffix = sizes.attention_suffix(attention.layer)
        other = "global_" if suffix else ""
        for name, key in (("attention heads", "heads"), ("kv heads", "kv_heads")):
            number = getattr(attention, key)
            if number != sizes.get(key):
                field = sizes.field(f"{other}{key}")
                yield count_of(f"{name}{suffix}", key, number, ranks["tp"], field)
        if not suffix or attention.head_dim != sizes.get("head_dim"):
            field = sizes.field(f"{other}head_dim")
            yield count_of(f"attention head_dim{suffix}", role, attention.head_dim, 1, field)


def count_of(name: str, role: str, number: int, ranks: int = 1, field: str = "") -> RankProduct:
    """A count that ranks share, as requirements are about it."""
    return RankProduct(name, role, "count", "none", number, 0, number, ranks, field=field)


def start_counts(deployment: ConfigDeployment) -> Iterator[RankProduct]:
    """The expert-parallel ranks beside those that they are made of, and the GiB of weights beside
    a GPU's, as counts that requirements are about."""
    ep, whole = deployment.ep, deployment.ranks["expert_total"]
    if ep > 1:
        yield replace(count_of("expert-parallel ranks", "expert_ranks", ep, ep), whole=whole)
    weights = deployment.weight_bytes
    if weights and deployment.gpu.memory_gib:
        budget = int(deployment.gpu.memory_gib * deployment.engine.memory)
        yield count_of("weights of a rank (GiB)", "weights", ceil(weights / GIB), budget)
