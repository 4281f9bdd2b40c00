"""What a deployment needs to start: expert-parallel ranks that fit its others, and weights that fit
the memory of a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING

from gacprof.checkpoint.from_config import ConfigSizes, stated_size
from gacprof.checkpoint.storage import TABLES, Storage
from gacprof.core.dtypes import ITEMSIZE
from gacprof.core.files import row_of_word
from gacprof.lint.products import COUNTS, RankProduct
from gacprof.workload.products import plain_dtype, products

if TYPE_CHECKING:
    from gacprof.lint.deployment import ConfigDeployment

GIB = 1 << 30
MAX_LAYERS = 10_000  # no model has more
START_ROLES = ("expert_ranks", "weights")
"""Roles of counts that say whether a deployment starts: no engine is asked of them."""
LAYERS = COUNTS["layers"]
BLOCK_OF = row_of_word(COUNTS["blocks"])


def start_counts(deployment: ConfigDeployment) -> Iterator[RankProduct]:
    """The expert-parallel ranks beside those that they are made of, and the GiB of weights beside
    a GPU's, as counts that requirements are about."""
    tp, ep = deployment.tp, deployment.ep
    if ep > 1:
        is_whole = deployment.engine.experts == "whole under EP"
        ranks = tp * deployment.dp if is_whole else tp
        name = "expert-parallel ranks"
        yield RankProduct(name, "expert_ranks", "count", "none", ep, whole=ranks, ranks=ep)
    weights, memory = weight_bytes(deployment), deployment.gpu.memory_gib
    if weights is not None and memory is not None:
        gib = ceil(weights / GIB)
        yield RankProduct(
            "GiB of weights", "weights", "count", "none", gib, whole=gib, ranks=int(memory)
        )


def weight_bytes(deployment: ConfigDeployment) -> int | None:
    """The bytes of the weights that one rank holds; None where the config doesn't say them.

    The text part's products alone: no norms, biases, routers, and no layer that guesses ahead.
    """
    sizes = deployment.sizes
    layers = layer_counts(sizes)
    if layers is None:
        return None
    is_tied = sizes.values.get("tie_word_embeddings", True)  # configs are silent where it is
    widths = sizes.values.get("intermediate_size")
    experts = ceil(sizes.get("experts") / deployment.ranks["expert_parallel"])
    itemsize = ITEMSIZE[plain_dtype(deployment.inventory)]
    total = 0.0
    for product in products(deployment.inventory, deployment):
        role = product.role
        block: str = role.block
        if block == "attention" and sizes.get("global_head_dim") and not product.layer:
            block = "sliding"
        count = layers.get(block, 0)
        if role.kind == "vocab":
            count = 0 if role.key == "head" and is_tied else 1
        elif block == "mlp" and isinstance(widths, list):
            count = widths.count((product.parts or (product,))[0].whole)
        size = (product.N or 0) * (product.K or 0) * weight_bits(product.storage, itemsize) / 8
        if role.kind == "expert":
            size *= experts
        if count and not size:
            return None
        total += count * size
    pipeline = deployment.tp if deployment.engine.splits == "layers" else 1
    return int(total / pipeline)


def weight_bits(storage: Storage, itemsize: int) -> float:
    """The bits of a weight with its part of a scale; 0 where they aren't known."""
    if storage.form == "none":
        return 8 * itemsize
    bits, scale, group = TABLES["bits"].get(storage.form, (0, 0, 1))
    return bits + scale / max(storage.group or group, 1)


def layer_counts(sizes: ConfigSizes) -> dict[str, int] | None:
    """How many layers have a block of each kind; None where the config doesn't say it."""
    values, layers = sizes.values, sizes.get("layers")
    has_global = bool(sizes.get("global_head_dim"))
    listed = [values.get(key) for key in LAYERS["kinds"] if isinstance(values.get(key), list | str)]
    kinds = Counter(BLOCK_OF.get(str(kind), "other") for kind in (listed or [""])[0])
    interval = stated_size(values, ["full_attention_interval"])
    if not 0 < layers < MAX_LAYERS:
        return None
    if kinds["moe"] or kinds["mlp"]:  # a layer is one block, as in Nemotron-H
        return {**kinds, "shared": kinds["moe"]}
    if not kinds and interval:
        kinds = Counter(attention=layers // interval, gdn=layers - layers // interval)
    elif not kinds and (has_global or any(map(sizes.get, LAYERS["several_mixers"]))):
        return None
    if not kinds:
        kinds["attention"] = layers
    elif not has_global:
        kinds["attention"] += kinds.pop("sliding", 0)
    sparse = sum(is_sparse(sizes, layer) for layer in range(layers))
    dense = layers if sizes.family.get("dense_too") else layers - sparse
    return {**kinds, "mlp": dense, "moe": sparse, "shared": sparse}


def is_sparse(sizes: ConfigSizes, layer: int) -> bool:
    """Whether a layer routes tokens to experts."""
    values = sizes.values
    for key in LAYERS["sparse_lists"]:
        if isinstance(values.get(key), list):
            return values[key][layer : layer + 1] in ([1], ["sparse"])
    step, only = stated_size(values, LAYERS["sparse_step"]) or 1, values.get("mlp_only_layers")
    is_listed = isinstance(only, list) and layer in only
    is_dense = layer < stated_size(values, LAYERS["dense_first"]) or (layer + 1) % step
    return sizes.has_experts and not is_dense and not is_listed
