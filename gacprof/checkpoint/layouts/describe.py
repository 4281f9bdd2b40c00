"""From tensors by name to modules, dims and attentions.

The first layout that recognises a checkpoint by its structure wins; the user's factor patterns go
before all. Every other matrix is a dense layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
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
from gacprof.checkpoint.layouts.factors import FACTORS, users_row
from gacprof.checkpoint.layouts.heads import find_attentions
from gacprof.checkpoint.layouts.linear import Linear, dense_linears, packed_linears
from gacprof.checkpoint.layouts.names import is_embedding, is_expert, last_of, layer_of, role_of
from gacprof.checkpoint.layouts.slicegpt import shortcut_linears, stretches
from gacprof.checkpoint.layouts.widths import find_widths
from gacprof.core.errors import CheckpointError
from gacprof.core.sizes import Gemm


def describe(contents: Contents, path: str, side_files: tuple[str, ...] = ()) -> Inventory:
    """Return the inventory of tensors whose meaning is not known yet.

    Raises :class:`CheckpointError` for factors or stretches that do not fit each other.
    """
    layout, special = recognise(contents)
    linears = [*special, *dense_linears(contents, special)]
    tables = [name for name, info in contents.tensors.items() if _is_table(name, info.shape)]
    widths = find_widths(contents, linears)
    if layout == "plain" and len({dim.size for dim in widths if dim.role == "mlp"}) > 1:
        layout = "per-layer-widths"
    is_ordered = all(row.ordered for row in FACTORS if row.layout == layout)
    dims = [dim for linear in linears for dim in _ranks(contents, linear, is_ordered)]
    dims += widths
    dims += [stretch.dim(contents) for stretch in stretches(contents, linears, tables)]
    dims.sort(key=lambda dim: _order(dim.layer, dim.role, dim.name))
    by_weight = dims_by_weight(dims)
    modules = [_embedding(contents, name) for name in tables]
    modules += [_module(contents, linear, by_weight) for linear in linears]
    modules += _tied_head(contents, modules, by_weight)
    modules.sort(key=lambda module: _order(module.layer, module.role, module.name))
    inventory = Inventory(
        **{field.name: getattr(contents, field.name) for field in fields(Contents)},
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
    rows = FACTORS
    if contents.factors:
        rows = [users_row(*contents.factors)]
    for layout in dict.fromkeys(row.layout for row in rows):
        linears = [x for row in rows if row.layout == layout for x in row.pairs(contents)]
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
    finders = {
        "slicegpt": shortcut_linears,
        "quantised": packed_linears,
        "moe": stacked_experts,
    }
    for layout, find in finders.items():
        linears = find(contents)
        if linears:
            return layout, linears
    has_experts = any(is_expert(name.removesuffix(".weight")) for name in contents.tensors)
    return ("moe" if has_experts else "plain"), []


def _is_table(name: str, shape: tuple[int, ...]) -> bool:
    """Tell whether a tensor is looked up in rather than multiplied by."""
    module = name.removesuffix(".weight")
    return module != name and len(shape) == 2 and 0 not in shape and is_embedding(module)


def _warnings(inventory: Inventory) -> Iterator[str]:
    """Faults that a plain loader would pass over, and configs that disagree with tensors."""
    if any(dim.kind != "width" for dim in inventory.dims):
        yield (
            f"a plain transformers model leaves weights of this layout ({inventory.layout}) random "
            "or unused: use gacprof.load_model or the tool's own class"
        )
    for key in width_keys(inventory.config, inventory.dims):
        if key.value is not None and key.value_at({}) != key.value:
            widths = sorted({dim.size for dim in key.dims})
            yield (
                f"the widths are {', '.join(map(str, widths[:6]))}, the config says {key.name} "
                f"{key.value}: a plain transformers model refuses these weights, "
                "gacprof.load_model takes them"
            )


_ROLES = ("embedding", "q", "k", "v", "qkv", "o", "gate", "up", "gate_up", "down", "mlp")


def _order(layer: int | None, role: str, name: str) -> tuple[Any, ...]:
    """As the model runs: embedding, layers, the rest; within a layer by role, then by name."""
    is_last = layer is None and role != "embedding"
    place = _ROLES.index(role) if role in _ROLES else len(_ROLES)
    numbers = [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", name)]
    return is_last, -1 if layer is None else layer, place, numbers


def rank_names(module: str, groups: int) -> list[str]:
    """Return the names of the rank dims of a factored module."""
    if groups == 1:
        return [f"{module}:rank"]
    return [f"{module}:rank.{i}" for i in range(groups)]


def _ranks(contents: Contents, linear: Linear, is_ordered: bool) -> Iterator[Dim]:
    """One rank for each outer factor, at its offset in the inner one's output."""
    start, n_in = 0, linear.in_features
    outer_of = dict(zip(rank_names(linear.name, len(linear.outer)), linear.outer, strict=True))
    for name, outer in outer_of.items() if linear.inner else ():
        n_out, size = contents.shape(outer)
        full = min(n_in, n_out)
        yield Dim(
            name=name,
            kind="rank",
            size=size,
            places=(Place(linear.reads, 0, start), Place(outer, 1)),
            feeds=(Feed(linear.reads, "N"), Feed(outer, "K")),
            params_per_unit=n_in + n_out,
            layer=layer_of(linear.name),
            role=role_of(linear.name),
            dense_size=full if size < full else None,
            ordered=is_ordered,
        )
        start += size


def _module(contents: Contents, linear: Linear, by_weight: Mapping[str, Sequence[Dim]]) -> Module:
    is_biased = bool(linear.biases)
    gemms = [Gemm(linear.outer[0], linear.out_features, linear.in_features, is_biased)]
    if linear.inner:
        gemms = [Gemm(linear.inner, contents.shape(linear.inner)[0], linear.in_features)]
        for outer in linear.outer:
            n_out, rank = contents.shape(outer)
            gemms.append(Gemm(outer, n_out, rank, is_biased))
    dims = [dim.name for gemm in gemms for dim in by_weight.get(gemm.weight, ())]
    return Module(
        name=linear.name,
        role=role_of(linear.name),
        layer=layer_of(linear.name),
        kind=("dense", "dense", "factored", "grouped")[min(3, len(gemms))],
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
    tables = [module for module in modules if last_of(module.name) in words]
    has_head = any(module.role == "head" for module in modules)
    if not contents.ties_head or has_head or not tables:
        return []
    rows, width = tables[0].in_features, tables[0].out_features
    gemm = Gemm(f"{tables[0].name}.weight", rows, width)
    dims = tuple(dim.name for dim in by_weight.get(gemm.weight, ()))
    return [Module("lm_head", "head", None, "dense", width, rows, tables[0].dtype, (gemm,), dims)]
