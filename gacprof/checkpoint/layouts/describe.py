"""From tensors by name to modules, dims and attentions.

The first layout that recognises a checkpoint by its structure wins; the user's factor patterns go
before all. Every other matrix is a dense layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from gacprof.checkpoint.inventory import (
    Contents,
    Dim,
    Feed,
    Inventory,
    Module,
    Place,
    dims_by_weight,
)
from gacprof.checkpoint.layouts.configs import width_keys
from gacprof.checkpoint.layouts.experts import stacked_experts
from gacprof.checkpoint.layouts.factors import FACTORS, named_pairs, pairs_by_shape
from gacprof.checkpoint.layouts.heads import find_attentions
from gacprof.checkpoint.layouts.linear import Linear, dense_linears
from gacprof.checkpoint.layouts.names import is_embedding, is_expert, last_of, layer_of, role_of
from gacprof.checkpoint.layouts.quantised import is_quantised, packed_linears
from gacprof.checkpoint.layouts.slicegpt import shortcut_linears, stretches
from gacprof.checkpoint.layouts.widths import find_widths
from gacprof.core.sizes import Gemm

_UNIFORM_WARNINGS = {
    "quantised": "its quantised weights run in dequantising kernels and are not resized",
    "slicegpt": "only gacprof.load_model or SliceGPT's own loader runs this model right: its norms "
    "have no weights and divide by the original hidden size",
    "factor-pairs": "its factor pairs were recognised by their shapes, not by a tool's names",
}
"""By layout. All layouts in FACTORS share the warning below."""
_RANDOM = (
    "a plain transformers model loads these tensors without an error and leaves the factored "
    "weights random: use gacprof.load_model or the tool's own class"
)


def describe(contents: Contents, path: str, side_files: tuple[str, ...] = ()) -> Inventory:
    """Return the inventory of tensors whose meaning is not known yet.

    Raises :class:`CheckpointError` for factors or stretches that do not fit each other.
    """
    layout, special = recognise(contents)
    linears = [*special, *dense_linears(contents, special)]
    tables = embedding_tables(contents)
    widths = find_widths(contents, linears)
    if layout == "plain" and len({dim.size for dim in widths if dim.role == "mlp"}) > 1:
        layout = "per-layer-widths"
    ordered = layout not in ("gacprof", "factor-pairs")
    dims = [dim for linear in linears for dim in _ranks(contents, linear, ordered)]
    dims += widths
    dims += [stretch.dim(contents) for stretch in stretches(contents, linears, tables)]
    dims.sort(key=lambda dim: _order(dim.layer, dim.role, dim.name))
    by_weight = dims_by_weight(dims)
    modules = [_embedding(contents, name) for name in tables]
    modules += [_module(contents, linear, by_weight) for linear in linears]
    modules += _tied_head(contents, modules, by_weight)
    modules.sort(key=lambda module: _order(module.layer, module.role, module.name))
    inventory = Inventory(
        **{f.name: getattr(contents, f.name) for f in fields(Contents)},
        path=path,
        layout=layout,
        modules=tuple(modules),
        dims=tuple(dims),
        attentions=tuple(find_attentions(contents, linears)),
        side_files=side_files,
    )
    return replace(inventory, warnings=(*contents.warnings, *_warnings(inventory)))


def recognise(contents: Contents) -> tuple[str, list[Linear]]:
    """Return the layout's name, and the layers that only this layout understands."""
    if contents.factors:
        return "factor-pairs", named_pairs(contents, *contents.factors)
    for row in FACTORS:
        linears = [x for r in FACTORS if r.layout == row.layout for x in r.pairs(contents)]
        if linears:
            return row.layout, linears
    classes = [str(attributes.get("class")) for attributes in contents.attributes.values()]
    if any(name.startswith("LLMPruner.") for name in classes):
        return "llm-pruner", []
    finders = {
        "slicegpt": shortcut_linears,
        "quantised": packed_linears,
        "factor-pairs": pairs_by_shape,
        "moe": stacked_experts,
    }
    for layout, find in finders.items():
        linears = find(contents)
        if linears:
            return layout, linears
    if is_quantised(contents):
        return "quantised", []
    has_experts = any(is_expert(name.removesuffix(".weight")) for name in contents.tensors)
    return ("moe" if has_experts else "plain"), []


def embedding_tables(contents: Contents) -> list[str]:
    """Return the tensors that are looked up in rather than multiplied by."""
    return [
        name
        for name, info in contents.tensors.items()
        if name.endswith(".weight")
        and len(info.shape) == 2
        and info.numel
        and is_embedding(name.removesuffix(".weight"))
    ]


def _warnings(inventory: Inventory) -> Iterator[str]:
    """What a plain loader would do silently wrong, and configs that disagree with tensors."""
    if inventory.layout in _UNIFORM_WARNINGS:
        yield _UNIFORM_WARNINGS[inventory.layout]
    for row in FACTORS:
        ranks = inventory.config.get(row.rank_key, {})
        if row.layout == inventory.layout and row.rank_key and isinstance(ranks, Mapping):
            yield _RANDOM
            for module in inventory.modules:
                stored = [dim.size for dim in inventory.ranks_of(module)]
                if stored and ranks.get(module.name) not in (stored, stored[0]):
                    yield f"{module.name}: the tensors have ranks {stored}, the config does not"
    for key in width_keys(inventory.config, inventory.dims):
        if key.value is not None and key.value_at({}) != key.value:
            widths = sorted({dim.size for dim in key.dims})[:6]
            yield (
                f"the widths are {', '.join(map(str, widths))}, the config says {key.name} "
                f"{key.value}: a plain transformers model refuses these weights, "
                "gacprof.load_model takes them"
            )


_ROLES = ("embedding", "q", "k", "v", "qkv", "o", "gate", "up", "gate_up", "down", "mlp")
_LAST = 1 << 30
_NUMBERS = re.compile(r"([0-9]+)")


def _order(layer: int | None, role: str, name: str) -> tuple[Any, ...]:
    """As the model runs: embedding, layers, the rest; within a layer by role, then by name."""
    place = _ROLES.index(role) if role in _ROLES else len(_ROLES)
    if layer is None:
        layer = -1 if role == "embedding" else _LAST
    return layer, place, *map(_numbered, name.split("."))


@lru_cache(1 << 12)
def _numbered(part: str) -> tuple[tuple[int, str], ...]:
    """Numbers compare by length first: 9 before 10."""
    return tuple((len(p) if p[:1].isdecimal() else 0, p) for p in _NUMBERS.split(part))


def rank_names(module: str, groups: int) -> list[str]:
    """Return the names of the rank dims of a factored module."""
    if groups == 1:
        return [f"{module}:rank"]
    return [f"{module}:rank.{i}" for i in range(groups)]


def _ranks(contents: Contents, linear: Linear, ordered: bool) -> Iterator[Dim]:
    """One rank for each outer factor, at its offset in the inner one's output."""
    if linear.inner is None:
        return
    start, n_in = 0, linear.in_features
    for name, outer in zip(rank_names(linear.name, len(linear.outer)), linear.outer, strict=True):
        n_out, size = contents.shape(outer)
        full = min(n_in, n_out)
        yield Dim(
            name=name,
            kind="rank",
            size=size,
            places=(Place(linear.inner, 0, start), Place(outer, 1)),
            feeds=(Feed(linear.inner, "N"), Feed(outer, "K")),
            params_per_unit=n_in + n_out,
            layer=layer_of(linear.name),
            role=role_of(linear.name),
            dense_size=full if size < full else None,
            padding="refused" if linear.why else "exact",
            why=linear.why,
            ordered=ordered and not linear.why,
        )
        start += size


def _module(contents: Contents, linear: Linear, by_weight: Mapping[str, Sequence[Dim]]) -> Module:
    is_biased = bool(linear.biases)
    gemms = [Gemm(linear.outer[0], linear.out_features, linear.in_features, is_biased)]
    kind = "dense"
    if linear.inner:
        kind = "grouped" if len(linear.outer) > 1 else "factored"
        gemms = [Gemm(linear.inner, contents.shape(linear.inner)[0], linear.in_features)]
        gemms += [Gemm(name, *contents.shape(name), is_biased) for name in linear.outer]
    dims = [dim.name for gemm in gemms for dim in by_weight.get(gemm.weight, ())]
    return Module(
        name=linear.name,
        role=role_of(linear.name),
        layer=layer_of(linear.name),
        kind=kind,  # type: ignore[arg-type]
        in_features=linear.in_features,
        out_features=linear.out_features,
        dtype=linear.dtype,
        gemms=tuple(gemms),
        dims=tuple(dict.fromkeys(dims)),
    )


def _embedding(contents: Contents, table: str) -> Module:
    info, name = contents.tensors[table], table.removesuffix(".weight")
    rows, width = info.shape
    return Module(name, "embedding", layer_of(name), "embedding", rows, width, info.dtype, ())


def _tied_head(
    contents: Contents, modules: Iterable[Module], by_weight: Mapping[str, Sequence[Dim]]
) -> list[Module]:
    """The head's product with the embedding's weight, where the head has none of its own."""
    words = ("embed_tokens", "wte", "word_embeddings")
    tables = [m for m in modules if m.kind == "embedding" and last_of(m.name) in words]
    has_head = any(module.role == "head" for module in modules)
    if not contents.ties_head or has_head or not tables:
        return []
    rows, width = tables[0].in_features, tables[0].out_features
    gemm = Gemm(f"{tables[0].name}.weight", rows, width)
    dims = tuple(dim.name for dim in by_weight.get(gemm.weight, ()))
    return [Module("lm_head", "head", None, "dense", width, rows, tables[0].dtype, (gemm,), dims)]
