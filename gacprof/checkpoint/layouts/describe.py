"""Describe tensors by their names as modules, dims and attentions.

The first layout that recognises a checkpoint wins; every other matrix is a dense layer.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain, groupby
from typing import Any

from gacprof.checkpoint.inventory import (
    AttentionHeads,
    Contents,
    Dim,
    Feed,
    Inventory,
    Module,
    Place,
    ScaleGroups,
)
from gacprof.checkpoint.layouts.configs import count, odd_heads, part_of, width_keys
from gacprof.checkpoint.layouts.factors import FACTORS, Factors
from gacprof.checkpoint.layouts.linear import (
    Linear,
    dense_linears,
    matrices,
    packed_linears,
    unknown_tensor,
)
from gacprof.checkpoint.layouts.names import EMBEDDING, EXPERT, layer_of, parent_of, tower_of
from gacprof.checkpoint.layouts.quantised import stored_formats
from gacprof.checkpoint.layouts.slicegpt import shortcut_linears, stretches
from gacprof.checkpoint.layouts.widths import find_widths, stacked_experts
from gacprof.core.dtypes import MULTIPLIED
from gacprof.core.errors import CheckpointError
from gacprof.core.sizes import Gemm

WITH_HEAD = re.compile(
    r"LMHead|DoubleHeads|GenerationDecoder|For(CausalLM|ConditionalGeneration|MaskedLM|PreTraining)"
)
"""Classes of transformers that end in a product with the vocabulary."""
TIED = ("embed_tokens", "wte", "word_embeddings", "shared")  # embeddings that a head may share


def describe(contents: Contents, path: str, side_files: tuple[str, ...] = ()) -> Inventory:
    """Return the inventory. Raises :class:`CheckpointError` for factors that do not fit."""
    layout, special = recognise(contents)
    linears = [*special, *dense_linears(contents, special)]
    modules = _embeddings(contents)
    dims = find_widths(contents, linears)
    if layout == "plain" and len({dim.size for dim in dims if dim.role == "mlp"}) > 1:
        layout = "per-layer-widths"
    if layout == "slicegpt":
        dims += stretches(contents, linears, modules)
    for linear in linears:
        if len(linear.weights) > 1:
            dims += _ranks(contents, linear)
    dims.sort(key=lambda dim: _order(dim.layer, dim.role, dim.name))
    attentions = find_attentions(contents, linears)
    warnings = (*contents.warnings, *_warnings(contents, layout, dims, attentions))
    contents = replace(contents, warnings=warnings)
    inventory = Inventory(
        **{field.name: getattr(contents, field.name) for field in fields(contents)},
        path=path,
        layout=layout,
        modules=(),
        dims=tuple(dims),
        attentions=tuple(attentions),
        side_files=side_files,
        groups=scale_groups(contents, linears),
        has_scales=any(linear.is_quantised for linear in linears),
    )
    modules += [_module(inventory, linear) for linear in linears]
    if has_tied_head(contents):
        modules += _tied_head(inventory, modules)
    modules.sort(key=lambda module: _order(module.layer, module.role, module.name))
    return replace(inventory, modules=tuple(modules))


def has_tied_head(contents: Contents) -> bool:
    """Return whether a head without a tensor of its own multiplies by the embedding. The class has
    to have a head (transformers writes ``tie_word_embeddings`` for encoders, too); GPT-2's configs
    name it and don't say that it is tied."""
    tied = contents.config.get("tie_word_embeddings")
    classes = contents.config.get("architectures") or ()
    if not classes:
        return bool(tied)
    return tied in (None, True) and any(WITH_HEAD.search(str(name)) for name in classes)


def recognise(contents: Contents) -> tuple[str, list[Linear]]:
    """Return the layout's name, and the layers that only this layout understands."""
    rows = FACTORS
    if contents.factors:
        outer, inner = contents.factors
        pattern = re.escape(inner).replace(re.escape("{module}"), "(?P<module>.+)", 1)
        rows = [Factors("factor-pairs", pattern, outer)]
    # Factors first: beside them some weights may be packed or belong to experts
    for layout, group in groupby(rows, key=lambda row: row.layout):
        linears = list(chain.from_iterable(row.pairs(contents) for row in group))
        if linears:
            return layout, linears
    if contents.factors:
        raise CheckpointError(
            f"factor patterns {contents.factors} select no pair of tensors: write them as in "
            "('{module}.U.weight', '{module}.V.weight'), the outer factor first"
        )
    classes = [str(attributes.get("class")) for attributes in contents.attributes.values()]
    if any(name.startswith("LLMPruner.") for name in classes):
        return "llm-pruner", []
    finders = {"slicegpt": shortcut_linears, "quantised": packed_linears, "moe": stacked_experts}
    for layout, find in finders.items():
        linears = find(contents)
        if linears:
            return layout, linears
    templates = contents.by_template
    has_experts = any(EXPERT.search(template.removesuffix(".weight")) for template in templates)
    return ("moe" if has_experts else "plain"), []


def scale_groups(contents: Contents, linears: Iterable[Linear]) -> ScaleGroups | None:
    """Return the groups of inputs that share a scale, where their length is the config's to say."""
    form = stored_formats(contents)[0]
    quantised = [linear for linear in linears if linear.is_quantised]
    places = tuple(chain.from_iterable(linear.sides.groups for linear in quantised))
    if form.group < 1 or not form.any_group or not places:
        return None
    why = next((linear.why for linear in quantised if linear.why), "")
    if len(stored_formats(contents)) > 1:
        why = "its layers have several formats"
    if any(linear.in_features % form.group for linear in quantised):
        why = "the last group of a layer is shorter"
    if form.desc_act:
        why = "its groups are not in the order of the inputs (desc_act)"
    return ScaleGroups(form.group, places, why)


def _embeddings(contents: Contents) -> list[Module]:
    """Return the tables that are looked up in rather than multiplied by."""
    tables = []
    for template, infos in matrices(contents):
        for info in infos if EMBEDDING.fullmatch(template) else ():
            name, (rows, width) = info.name.removesuffix(".weight"), info.shape
            place = (name, "embedding", layer_of(name))
            tables.append(Module(*place, "embedding", rows, width, info.dtype, ()))
    return tables


_REFUSED = "a plain transformers model refuses these weights, gacprof.load_model takes them"


def _warnings(
    contents: Contents, layout: str, dims: Sequence[Dim], attentions: Sequence[AttentionHeads]
) -> Iterator[str]:
    """Return the faults that a plain loader passes over, and what configs say against tensors."""
    if any(dim.kind != "width" for dim in dims):
        yield (
            f"a plain transformers model leaves weights of this layout ({layout}) random or "
            "unused: use gacprof.load_model or the tool's own class"
        )
    for key in width_keys(contents.config, dims):
        if key.value is not None and not key.is_true:
            widths = sorted({dim.size for dim in key.dims})
            yield (
                f"the widths are {', '.join(map(str, widths[:6]))}, the config says "
                f"{key.name} {key.value}: {_REFUSED}"
            )
    for attention in odd_heads(contents.config, attentions)[:1]:
        yield (
            f"layer {attention.layer} has {attention.heads} heads of {attention.head_dim}, the "
            "config says num_attention_heads "
            f"{count(contents.config, 'num_attention_heads')} and no head_dim: {_REFUSED}"
        )


_ROLES = "embedding q k v qkv o gdn_out mamba_out gate up gate_up down mlp"
_PLACES = {role: place for place, role in enumerate(_ROLES.split())}


def _order(layer: int | None, role: str, name: str) -> tuple[Any, ...]:
    """Return a sort key: embedding, layers, the rest; within a layer by role, then by name."""
    if layer is None:
        layer = -1 if role == "embedding" else sys.maxsize
    parts = name.replace(":", ".").split(".")
    parts = [part.zfill(8) if part.isdecimal() else part for part in parts]  # 10 comes after 9
    return layer, _PLACES.get(role, len(_PLACES)), parts


def _ranks(contents: Contents, linear: Linear) -> Iterator[Dim]:
    """Return one rank for each outer factor, at its offset in the inner one's output."""
    inner, *outer = linear.weights
    n_in = linear.in_features
    beside = {*contents.below(linear.name), *contents.below(parent_of(inner))}
    beside -= {*linear.weights, *linear.biases}
    sizes = {contents.shape(inner)[0], *(contents.shape(factor)[1] for factor in outer)}
    why = unknown_tensor(contents, beside, sizes)
    dtypes = {contents.tensors[factor].dtype for factor in linear.weights}
    if not dtypes <= MULTIPLIED:
        why = f"its factors are {' and '.join(sorted(dtypes))}, and their scales are not known"
    start = 0
    for i, factor in enumerate(outer):
        n_out, size = contents.tensors[factor].shape
        full = min(n_in, n_out)
        yield Dim(
            name=f"{linear.name}:rank.{i}" if len(outer) > 1 else f"{linear.name}:rank",
            kind="rank",
            size=size,
            places=(Place(inner, 0, start), Place(factor, 1)),
            feeds=(Feed(inner, "N"), Feed(factor, "K")),
            params_per_unit=n_in + n_out,
            layer=linear.layer,
            role=linear.role,
            dense_size=full if size < full else None,
            padding="refused" if why else "exact",
            why=why,
            ordered=linear.ordered,
        )
        start += size


def _module(inventory: Inventory, linear: Linear) -> Module:
    """Return the layer with its products, in the order of execution."""
    inner, *outer = linear.weights
    is_biased = bool(linear.biases)
    gemms = [Gemm(inner, linear.out_features, linear.in_features, is_biased)]
    if outer:
        gemms = [Gemm(inner, inventory.shape(inner)[0], linear.in_features)]
    for factor in outer:
        n_out, rank = inventory.shape(factor)
        gemms.append(Gemm(factor, n_out, rank, is_biased))
    dims: dict[str, None] = {}
    for gemm in gemms:
        dims |= {dim.name: None for dim in inventory.fed_by.get(gemm.weight, ())}
    return Module(
        name=linear.name,
        role=linear.role,
        layer=linear.layer,
        kind=("dense", "factored", "grouped")[min(2, len(outer))],
        in_features=linear.in_features,
        out_features=linear.out_features,
        dtype=linear.dtype,
        gemms=tuple(gemms),
        dims=tuple(dims),
    )


def _tied_head(inventory: Inventory, modules: Iterable[Module]) -> list[Module]:
    """Return the head's product with the embedding's weight, where the head has none of its own."""
    tables = [m for m in modules if m.name.rpartition(".")[2] in TIED]
    if not tables or any(module.role == "head" for module in modules):
        return []
    rows, width = tables[0].in_features, tables[0].out_features
    gemm = Gemm(f"{tables[0].name}.weight", rows, width)
    dims = tuple(dim.name for dim in inventory.fed_by.get(gemm.weight, ()))
    return [Module("lm_head", "head", None, "dense", width, rows, tables[0].dtype, (gemm,), dims)]


def find_attentions(contents: Contents, linears: Sequence[Linear]) -> list[AttentionHeads]:
    """Return the attention of each layer whose heads its shapes and config tell."""
    blocks: dict[str, dict[str, int]] = {}
    for linear in linears:
        role = "latent" if linear.name.endswith(".kv_b_proj") else linear.role
        if role in ("q", "k", "v", "qkv", "latent") and linear.layer is not None:
            sizes = blocks.setdefault(parent_of(linear.name), {"layer": linear.layer})
            sizes[role] = linear.out_features
    attentions = []
    for name, sizes in blocks.items():
        _, config = part_of(contents.config, tower_of(name))
        facts = {**config, **contents.attributes.get(name, {})}
        attention = _attention(sizes["layer"], facts, sizes)
        if min(attention.heads, attention.kv_heads) > 0:
            attentions.append(attention)
    return attentions


def _attention(layer: int, config: Mapping[str, Any], sizes: Mapping[str, int]) -> AttentionHeads:
    """Return the heads of q and k of these ``sizes``, or of a fused weight; 0 where unknown."""
    stated_heads = count(config, "num_attention_heads", "n_head")
    heads = count(config, "num_heads", "num_attention_heads", "n_head")
    kv_heads = count(config, "num_key_value_heads", "num_kv_heads") or heads
    if not heads:
        return AttentionHeads(layer, 0, 0, 0)
    if "latent" in sizes:  # DeepSeek: q and k have a rotated and an unrotated part for each head
        head_dim = count(config, "qk_nope_head_dim") + count(config, "qk_rope_head_dim")
        return AttentionHeads(layer, heads, heads, head_dim)
    hidden = count(config, "hidden_size", "n_embd", "d_model")
    head_dim, rest = divmod(hidden, stated_heads or heads)
    head_dim = count(config, "head_dim") or (0 if rest else head_dim)
    # Shapes count before the config: a pruned layer has fewer heads than it says
    if "qkv" in sizes:  # Falcon's config names 71 kv heads where its weight has one
        kv_heads, rest = divmod(sizes["qkv"] - heads * head_dim, max(1, 2 * head_dim))
        return AttentionHeads(layer, heads, 0 if rest else kv_heads, head_dim)
    q, k = sizes.get("q", 0), sizes.get("k", 0)
    if head_dim and q % head_dim == k % head_dim == 0:
        return AttentionHeads(layer, q // head_dim, k // head_dim, head_dim)
    if q % heads == 0 and q * kv_heads == k * heads:
        return AttentionHeads(layer, heads, kv_heads, q // heads)
    return AttentionHeads(layer, 0, 0, 0)
