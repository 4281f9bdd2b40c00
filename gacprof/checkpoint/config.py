"""Keep configs true to what a checkpoint's model computes, also after its dims were resized."""

import json
import re
from collections.abc import Mapping
from typing import Any

from gacprof.checkpoint.inventory import Inventory, NewSizes
from gacprof.checkpoint.layouts.configs import leaves, odd_heads, part_of, width_keys, with_widths
from gacprof.checkpoint.layouts.factors import FACTORS, Factors
from gacprof.checkpoint.layouts.names import layer_of
from gacprof.checkpoint.layouts.slicegpt import with_stretches
from gacprof.checkpoint.storage import QUANTISATION_KEYS
from gacprof.core.errors import CheckpointError

CODE_KEYS = ("auto_map", "custom_generate", "tokenizer_file")
"""Keys of JSON files that name code or files: a new folder does not pass them on."""
_OWN_CLASSES = ("component.svd_", "LLMPruner.")
"""SVD-LLM's and LLM-Pruner's classes have LLaMA's default base and no scaling in their code."""
LLAMA_ROPE_THETA = 10000.0  # where a Llama's config names no base (transformers' default_theta)
_NOT_OURS = re.compile(
    "|".join(CODE_KEYS)
    + r"|_.*|(use_)?return_dict|(torch_)?dtype|.*(impl|kernel|backbone|quant|path|repo|hub).*"
)
"""Keys under which text could name code or files, or that say how to return results."""
_LAYER_COUNT = re.compile(r'"(?:num|n|encoder|decoder)_(?:\w+_)?layers?": (\d+)')
"""Counts of layers in a config as JSON, also those of its parts."""


def mirrored_files(inventory: Inventory, sizes: NewSizes) -> dict[str, dict[str, Any]]:
    """Return the JSON files that change with ``sizes``, by file name, unknown keys kept."""
    files: dict[str, dict[str, Any]] = {}
    if inventory.config:
        config = with_widths(inventory.config, inventory.dims, sizes)
        for row in FACTORS:
            if isinstance(config.get(row.rank_key), Mapping):
                config = _with_ranks(config, row, inventory, sizes)
        files["config.json"] = config | unstated_facts(inventory)
    if inventory.layout == "slicegpt":
        for name, side in inventory.side.items():
            files[name] = with_stretches(side, inventory.dims, sizes)
    return files


def files_with_groups(inventory: Inventory, size: int) -> dict[str, dict[str, Any]]:
    """Return the JSON files that say the length of groups that share a scale, with this one."""
    files = {name: _with_groups(inventory.side[name], size) for name in inventory.side}
    return {**files, "config.json": config_with_groups(inventory.config, size)}


def config_with_groups(config: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return a config with groups of a size, wherever it says how weights are quantised."""
    new = dict(config)
    above, part = part_of(config)
    for key in QUANTISATION_KEYS:
        if isinstance(config.get(key), Mapping):
            new[key] = _with_groups(config[key], size)
        if above and isinstance(part.get(key), Mapping):
            new[above[0]] = {**part, key: _with_groups(part[key], size)}
    return new


def _with_groups(stated: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return a quantization_config with groups of a size; of compressed-tensors' the weights'."""
    if "config_groups" not in stated:
        key = "q_group_size" if "q_group_size" in stated else "group_size"
        return {**stated, key: size}
    groups = {}
    for name, group in stated["config_groups"].items():
        groups[name] = {**group, "weights": {**group["weights"], "group_size": size}}
    return {**stated, "config_groups": groups}


def sizes_refusal(inventory: Inventory, sizes: NewSizes) -> str:
    """Return why a checkpoint cannot have these sizes; for merges see ``merge_refusal``.

    A number that states widths rightly has to state them afterwards too, but for a decoder's dense
    MLPs: ``load_model`` and ``export`` build layers that differ. A number by layer or module that
    is the old size of a dim of this layer must not stay behind; the rank tables of ``FACTORS``
    follow.
    """
    for name, size in sizes.items():
        dim = inventory.dim(name)
        refusal = dim.refusal(dim.size if size is None else size)
        if refusal:
            return f"'{name}' cannot go from {dim.size} to {size}: {refusal}"
    for key in width_keys(inventory.config, inventory.dims):
        if key.is_true and key.must_be_true and key.value_at(sizes) is None:
            return (
                f"the config's {key.name} says {len(key.dims)} widths, {key.dims[0].name} the "
                "first, and from no number do all of the new ones follow"
            )
    resized = [dim for dim in inventory.dims if sizes.get(dim.name, dim.size) != dim.size]
    former = {(dim.layer, dim.size) for dim in resized if dim.layer is not None}
    tables = {row.rank_key for row in FACTORS}
    for path, value in leaves(inventory.config).items():
        layers = [layer_of(f"layers.{word}") for word in path]
        if path[0] not in tables and not former.isdisjoint((layer, value) for layer in layers):
            return f"the config's {'.'.join(path)} says {value}, and nothing here changes that key"
    return ""


def _with_ranks(
    config: Mapping[str, Any], row: Factors, inventory: Inventory, sizes: NewSizes
) -> dict[str, Any]:
    """Return the config with a tool's new ranks; a plain model's where no factors are left."""
    ranks = dict(config[row.rank_key])
    for module in inventory.modules:
        if module.name in ranks and len(module.gemms) > 1:
            new = [sizes.get(rank.name, rank.size) for rank in inventory.ranks_of(module)]
            is_list = isinstance(ranks[module.name], list)
            ranks[module.name] = new if is_list else new[0]
            # Merged: the table lists the modules that are still factored
            if None in new:
                del ranks[module.name]
    if ranks:
        return {**config, row.rank_key: ranks}
    plain = without_code(config)
    del plain[row.rank_key]
    plain["architectures"] = [row.without_prefix(n) for n in plain.get("architectures") or []]
    plain["model_type"] = row.without_prefix(plain.get("model_type", ""))
    return plain


def unstated_facts(inventory: Inventory) -> dict[str, Any]:
    """Return what a config leaves out or says wrongly: a pickled model's RoPE and the epsilon of
    its norms, and a head_dim, each where all layers agree."""
    facts: dict[str, Any] = {}
    modules = inventory.attributes
    rotary = [name for name in modules if name.endswith(".rotary_emb")]
    is_tools = all(str(modules[name].get("class")).startswith(_OWN_CLASSES) for name in rotary)
    thetas = set()
    for name in rotary:
        attention = modules.get(name.removesuffix(".rotary_emb"), {})
        theta = modules[name].get("base") or attention.get("rope_theta")
        thetas.add(theta or (LLAMA_ROPE_THETA if is_tools else None))
    thetas.discard(None)
    # One number states all layers: where they disagree the config's own stays
    if len(thetas) == 1:
        facts["rope_theta"] = thetas.pop()
        if is_tools:
            facts["rope_scaling"] = None
    epsilons = {module.get("variance_epsilon") for module in modules.values()} - {None}
    if len(epsilons) == 1 and "rms_norm_eps" in inventory.config:
        facts["rms_norm_eps"] = epsilons.pop()
    odd = odd_heads(inventory.config, inventory.attentions)
    head_dims = {attention.head_dim for attention in odd}
    if len(odd) == len(inventory.attentions) and len(head_dims) == 1:
        facts["head_dim"] = head_dims.pop()
    return facts


def effective_config(inventory: Inventory) -> dict[str, Any]:
    """Return the config that transformers builds the model of, without what could name code."""
    config = _harmless(inventory.config) | unstated_facts(inventory)
    layers = map(int, _LAYER_COUNT.findall(json.dumps(config, default=str)))
    if max(layers, default=0) > len(inventory.tensors):  # each would be built, with its weights
        raise CheckpointError(
            f"{inventory.path}: its config has more layers than files have tensors"
        )
    if not config.get("model_type"):
        raise CheckpointError(
            f"{inventory.path}: no config.json with a model_type: put the original model's beside "
            "the weights"
        )
    kind = str(config["model_type"]).removeprefix("gacprof_")  # of an exported folder
    for row in FACTORS:
        kind = row.without_prefix(kind)
    config["model_type"] = kind
    return config


def without_code(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a JSON file without the keys that name code."""
    return {key: value for key, value in config.items() if key not in CODE_KEYS}


def _harmless(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config, and every table in it, without the keys that could name code or files."""
    return {
        key: _harmless(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if not _NOT_OURS.fullmatch(str(key)) or isinstance(value, int | float)
    }
