"""What a deployment needs to start: expert-parallel ranks that fit its others, and weights that fit
the memory of a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING

from gacprof.checkpoint.coverage import key_gaps
from gacprof.checkpoint.from_config import ConfigSizes, mlp_widths
from gacprof.checkpoint.layouts.configs import stated_size
from gacprof.checkpoint.storage import TABLES, Storage
from gacprof.core.files import row_of_word
from gacprof.lint.products import COUNTS, RankProduct
from gacprof.workload.products import products

if TYPE_CHECKING:
    from gacprof.lint.deployment import ConfigDeployment

GIB = 1 << 30
START_ROLES = ("expert_ranks", "weights")
"""Roles of counts that say whether a deployment starts: no engine is asked of them."""
LAYERS = COUNTS["layers"]
BLOCK_OF = row_of_word(COUNTS["blocks"])


def start_counts(deployment: ConfigDeployment) -> Iterator[RankProduct]:
    """The expert-parallel ranks beside those that they are made of, and the GiB of weights beside
    a GPU's, as counts that requirements are about."""
    ep, whole = deployment.ep, deployment.ranks["expert_total"]
    if ep > 1:
        name = "expert-parallel ranks"
        yield RankProduct(name, "expert_ranks", "count", "none", ep, whole=whole, ranks=ep)
    weights, memory = weight_bytes(deployment), deployment.gpu.memory_gib
    if weights and memory:
        gib, budget = ceil(weights / GIB), int(memory * deployment.engine.memory)
        yield RankProduct(
            "GiB of weights", "weights", "count", "none", gib, whole=gib, ranks=budget
        )


def weight_bytes(deployment: ConfigDeployment) -> int | None:
    """The bytes of the weights that one rank holds; None where the config doesn't say them.

    The text part's products alone: no norms, biases, routers, and no layer that guesses ahead. Keys
    that may bear a size and that nobody read, up to now, leave it unknown.
    """
    counts = layer_counts(deployment.sizes)
    if not counts or any(key_gaps(deployment.sizes)):
        return None
    counts["moe"] *= ceil(deployment.sizes.get("experts") / deployment.ranks["expert_parallel"])
    total = 0.0
    for product in products(deployment.inventory, deployment):
        role, bits = product.role, weight_bits(product.storage)
        if not (product.N and product.K and bits):
            return None
        of_block = counts.get(role.key, counts[role.block])
        count = counts.get(f"{role.block} {product.layer}", of_block)
        total += count * product.N * product.K * bits / 8
    # an engine that gives whole layers to GPUs has one rank for tensors
    return int(total / (deployment.tp // deployment.ranks["tp"]))


def weight_bits(storage: Storage) -> float:
    """The bits of a weight with its part of a scale; 0 where they aren't known."""
    bits, scale, group = TABLES["bits"].get(storage.form, (0, 0, 1))
    return bits + max(0.0, scale / (storage.group or group))  # -1: a scale for a whole row


def layer_counts(sizes: ConfigSizes) -> Counter[str]:
    """How many layers have a block of each kind (``mlp``), where those differ the first, second …
    of them (``mlp 0``); nothing where the config doesn't say it."""
    values, layers = sizes.values, sizes.get("layers")
    listed = [values.get(key) for key in LAYERS["kinds"] if isinstance(values.get(key), list | str)]
    counts = Counter(BLOCK_OF.get(str(kind), "other") for kind in [*listed, ""][0])
    interval = stated_size(values, ["full_attention_interval"])
    if interval and not counts:
        counts = Counter({"attention": layers // interval, "gdn": layers - layers // interval})
    if not counts and any(map(sizes.get, LAYERS["several_mixers"])):
        return counts
    counts = counts or Counter(attention=layers)
    if not sizes.get("global_head_dim"):
        counts["attention"] += counts.pop("attention 0", 0)
    if not counts["moe"] + counts["mlp"]:  # else a layer is one block, as in Nemotron-H
        counts["moe"] = sparse_layers(sizes)
        counts["mlp"] = layers - counts["moe"] * (not sizes.family.get("dense_too"))
    widths = values.get("intermediate_size")
    if isinstance(widths, list):
        counts.update({f"mlp {i}": widths.count(w) for i, w in enumerate(mlp_widths(sizes))})
    # a config is silent where the head is the embedding, as transformers is
    head = int(values.get("tie_word_embeddings") is False)
    counts.update({"shared": counts["moe"], "": 1, "head": head})
    return counts if layers else Counter()


def sparse_layers(sizes: ConfigSizes) -> int:
    """How many layers route tokens to experts, where each has an MLP or experts."""
    values, layers = sizes.values, sizes.get("layers") * sizes.has_experts
    for key in LAYERS["sparse_lists"]:
        if isinstance(values.get(key), list):
            return sum(kind in (1, "sparse") for kind in values[key])
    only = values.get("mlp_only_layers")
    listed = len(only) if isinstance(only, list) else 0
    step = max(1, stated_size(values, LAYERS["sparse_step"]))
    dense = stated_size(values, LAYERS["dense_first"])
    return max(0, layers // step - dense // step - listed)
