"""The bytes of weights that a rank holds, as far as a config says how many layers are of a kind."""

from collections import Counter
from math import ceil
from pathlib import Path

from gacprof.checkpoint.coverage import key_gaps
from gacprof.checkpoint.from_config import ConfigSizes, mlp_widths
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.configs import stated_size
from gacprof.checkpoint.storage import TABLES, Storage
from gacprof.core.files import row_of_word, shipped_table
from gacprof.workload.deployment import Deployment
from gacprof.workload.products import products

LAYERS_FILE = Path(__file__).with_name("layers.toml")
LAYER_TABLES = shipped_table(LAYERS_FILE, dict[str, dict[str, list[str]]])
LAYERS = LAYER_TABLES["layers"]
BLOCK_OF = row_of_word(LAYER_TABLES["blocks"])


def weight_bytes(sizes: ConfigSizes, inventory: Inventory, deployment: Deployment) -> int | None:
    """Return the bytes of the weights that one rank holds; None where the config doesn't say them.

    Only the text part's products count: no norms, biases, routers, and no layer that guesses ahead.
    A key that may hold a size and that nobody read so far leaves the bytes unknown.
    """
    counts = layer_counts(sizes)
    if not counts or any(key_gaps(sizes)):
        return None
    ranks = deployment.ranks
    counts["moe"] *= ceil(sizes.get("experts") / ranks["expert_parallel"])
    total = 0.0
    for product in products(inventory, deployment):
        role, bits = product.role, weight_bits(product.storage)
        if not (product.N and product.K and bits):
            return None
        of_block = counts.get(role.key, counts[role.block])
        count = counts.get(f"{role.block} {product.layer}", of_block)
        total += count * product.N * product.K * bits / 8
    # an engine that gives whole layers to GPUs has one rank for tensors
    return int(total / (deployment.tp // ranks["tp"]))


def weight_bits(storage: Storage) -> float:
    """Return the bits of a weight with its part of a scale; 0 where they aren't known."""
    bits, scale, group = TABLES["bits"].get(storage.form, (0, 0, 1))
    return bits + max(0.0, scale / (storage.group or group))  # -1: a scale for a whole row


def layer_counts(sizes: ConfigSizes) -> Counter[str]:
    """Return how many layers have a block of each kind (``mlp``; ``mlp 0``, ``mlp 1`` … where its
    widths differ); nothing where the config doesn't say it."""
    values, layers = sizes.values, sizes.get("layers")
    listed = [values.get(key) for key in LAYERS["kinds"] if isinstance(values.get(key), list | str)]
    interval = stated_size(values, ["full_attention_interval"])
    if any(listed):
        counts = Counter(BLOCK_OF.get(str(kind), "other") for kind in next(filter(None, listed)))
    elif interval:
        counts = Counter(attention=layers // interval, gdn=layers - layers // interval)
    elif any(map(sizes.get, LAYERS["several_mixers"])):
        return Counter()
    else:
        counts = Counter(attention=layers)
    if not sizes.get("global_head_dim"):
        counts["attention"] += counts.pop("attention 0", 0)
    if not counts["moe"] + counts["mlp"]:  # else a layer is one block, as in Nemotron-H
        counts["moe"] = sparse_layers(sizes)
        counts["mlp"] = layers - counts["moe"] * (not sizes.family.get("dense_too"))
    widths = values.get("intermediate_size")
    if isinstance(widths, list):
        counts.update({f"mlp {i}": widths.count(w) for i, w in enumerate(mlp_widths(sizes))})
    # silence means that the head is the embedding, as in transformers
    head = int(values.get("tie_word_embeddings") is False)
    counts.update({"shared": counts["moe"], "": 1, "head": head})
    return counts if layers else Counter()


def sparse_layers(sizes: ConfigSizes) -> int:
    """Return how many layers route tokens to experts, where each has an MLP or experts."""
    values, layers = sizes.values, sizes.get("layers") * sizes.has_experts
    for key in LAYERS["sparse_lists"]:
        if isinstance(values.get(key), list):
            return sum(kind in (1, "sparse") for kind in values[key])
    only = values.get("mlp_only_layers")
    listed = len(only) if isinstance(only, list) else 0
    step = stated_size(values, LAYERS["sparse_step"]) or 1
    dense = stated_size(values, LAYERS["dense_first"])
    return max(0, layers // step - dense // step - listed)
