"""Configs: true to what a checkpoint's model computes, and true after its dims were resized.

A pickled model's modules know things that its config does not: compression tools bring attention
classes of their own, some with constants written into the code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gacprof.checkpoint.inventory import Dim, Inventory, NewSizes
from gacprof.checkpoint.layouts.configs import odd_heads, untrue_keys, with_widths
from gacprof.checkpoint.layouts.factors import FACTORS, Factors
from gacprof.checkpoint.layouts.slicegpt import with_stretches
from gacprof.core.errors import CheckpointError

_OWN_CLASSES = ("component.svd_", "LLMPruner.")
"""Beginnings of SVD-LLM's and LLM-Pruner's class names. Their rotary embeddings have LLaMA's
default base and no scaling, whatever the config says."""
LLAMA_ROPE_THETA = 10000.0

_NOT_OURS = re.compile(
    r"_.*|auto_map|(use_)?return_dict|(torch_)?dtype|.*(impl|kernel|backbone|quant|path|repo|hub).*"
)
"""Config keys under which text could name code or files, or that say how to return results:
a checkpoint has no say there."""


def mirrored_files(inventory: Inventory, sizes: NewSizes) -> dict[str, dict[str, Any]]:
    """Return the JSON files that change when dims are resized, by file name, unknown keys kept.

    ``sizes`` are new sizes by dim name; None: merged into a dense weight. A file that is not in the
    result is unchanged.
    """
    files: dict[str, dict[str, Any]] = {}
    if inventory.config:
        config = with_widths(inventory.config, inventory.dims, sizes)
        for row in FACTORS:
            if isinstance(config.get(row.rank_key), Mapping):
                config = _with_ranks(config, row, inventory, sizes)
        files["config.json"] = config | module_facts(inventory) | head_facts(inventory)
    if inventory.layout == "slicegpt":
        for name, side in inventory.side.items():
            files[name] = with_stretches(side, inventory.dims, sizes)
    return files


def config_refusal(inventory: Inventory, sizes: NewSizes) -> str:
    """Return why the config cannot say these sizes; empty where it can.

    Of a config that describes its tensors before and would not afterwards.
    """
    if not inventory.config:
        return ""
    resized = []
    for dim in inventory.dims:
        size = sizes.get(dim.name, dim.size)
        if size is not None:
            resized.append(replace(dim, size=size))
    return broken_key(inventory, mirrored_files(inventory, sizes)["config.json"], resized)


def broken_key(inventory: Inventory, config: Mapping[str, Any], dims: Sequence[Dim]) -> str:
    """Return what a new config says untruly of the new dims where the inventory's config is true.

    Dense MLPs may come to differ from layer to layer: :func:`~gacprof.load_model` and ``export``
    build them so, and :func:`~gacprof.scan` warns. Nothing builds experts of different widths.
    """
    former = {key.path for key in untrue_keys(inventory.config, inventory.dims)}
    for key in untrue_keys(config, dims):
        if key.path not in former and any(dim.role != "mlp" for dim in key.dims):
            widths = {f"{dim.size} (of {key.times[dim.name]} × it)" for dim in key.dims}
            return (
                f"{'.'.join(key.path)} of its config says {len(key.dims)} widths, of "
                f"{key.dims[0].name} the first, by one number, and none says {sorted(widths)[:6]}"
            )
    return stale_key(inventory, config, dims)


def stale_key(inventory: Inventory, config: Mapping[str, Any], dims: Sequence[Dim]) -> str:
    """Return which number of the new config, in a list or table by layer or by module, is still
    the old size of a dim of this layer or module that has another now."""
    sizes = {dim.name: dim.size for dim in dims}
    former: dict[str, set[int]] = {}
    for dim in inventory.dims:
        if sizes.get(dim.name) != dim.size:
            for place in (dim.name.partition(":")[0], str(dim.layer)):
                former.setdefault(place, set()).add(dim.size)
    new = dict(_numbers(config))
    ours = {row.rank_key for row in FACTORS}
    for path, value in _numbers(inventory.config):
        is_kept = new.get(path) == value and path[0] not in ours
        if is_kept and any(value in former.get(word, ()) for word in path):
            return (
                f"{'.'.join(path)} of its config says {value}, and it is not known how to change it"
            )
    return ""


def _numbers(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """The whole numbers of a JSON value, each with its keys, and indices of lists, as words."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    elif type(value) is int:
        yield path, value
    for key, item in items:
        yield from _numbers(item, (*path, str(key)))


def _with_ranks(
    config: Mapping[str, Any], row: Factors, inventory: Inventory, sizes: NewSizes
) -> dict[str, Any]:
    """The config with a tool's new ranks; that of a plain model where nothing is factored any more,
    since the tool's remote code would build factors that are not there."""
    ranks = dict(config[row.rank_key])
    for module in inventory.modules:
        if module.name in ranks and len(module.gemms) > 1:
            new = [sizes.get(rank.name, rank.size) for rank in inventory.ranks_of(module)]
            if None in new:
                del ranks[module.name]
            elif isinstance(ranks[module.name], list):
                ranks[module.name] = new
            else:
                ranks[module.name] = new[0]
    if ranks:
        return {**config, row.rank_key: ranks}
    plain = {key: value for key, value in config.items() if key not in (row.rank_key, "auto_map")}
    plain["architectures"] = [row.without_prefix(n) for n in plain.get("architectures") or []]
    plain["model_type"] = row.without_prefix(plain.get("model_type", ""))
    return plain


def module_facts(inventory: Inventory) -> dict[str, Any]:
    """Return RoPE and the norms' epsilon as a pickled model's modules have them, if they agree."""
    facts: dict[str, Any] = {}
    thetas: set[float | None] = set()
    are_tools = True
    for name, module in inventory.attributes.items():
        if name.endswith(".rotary_emb"):
            attention = inventory.attributes.get(name.removesuffix(".rotary_emb"), {})
            theta = module.get("base") or attention.get("rope_theta")
            if str(module.get("class")).startswith(_OWN_CLASSES):
                theta = theta or LLAMA_ROPE_THETA
            else:
                are_tools = False
            thetas.add(theta)
    thetas.discard(None)
    if len(thetas) == 1:
        facts["rope_theta"] = thetas.pop()
        if are_tools:
            facts["rope_scaling"] = None
    epsilons = {module.get("variance_epsilon") for module in inventory.attributes.values()} - {None}
    if len(epsilons) == 1 and "rms_norm_eps" in inventory.config:
        facts["rms_norm_eps"] = epsilons.pop()
    return facts


def head_facts(inventory: Inventory) -> dict[str, Any]:
    """Return the head_dim that all attentions have, where a config without one says another."""
    odd = odd_heads(inventory.config, inventory.attentions)
    head_dims = {attention.head_dim for attention in odd}
    if len(odd) < len(inventory.attentions) or len(head_dims) != 1:
        return {}
    return {"head_dim": head_dims.pop()}


def effective_config(inventory: Inventory) -> dict[str, Any]:
    """Return the config that transformers builds the model of, without what could name code.

    Raises :class:`CheckpointError` where the checkpoint has none.
    """
    config = _harmless(inventory.config) | module_facts(inventory) | head_facts(inventory)
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


def _harmless(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without the keys that could name code or files; parts of it likewise."""
    return {
        key: _harmless(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if not _NOT_OURS.fullmatch(str(key)) or isinstance(value, int | float)
    }
