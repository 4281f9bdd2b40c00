"""The width of an MLP: one dim that couples gate, up and down.

Padding a width with zeros is exact for every activation that is finite at zero: the new hidden
units are multiplied by down's zero columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gacprof.checkpoint.inventory import Contents, Dim, Feed, Place
from gacprof.checkpoint.layouts.configs import widths_without_key
from gacprof.checkpoint.layouts.linear import Linear
from gacprof.checkpoint.layouts.names import (
    is_expert,
    layer_of,
    names_below,
    parent_of,
    role_of,
    tower_of,
)

STACKED = "experts"
"""The role of a width that all experts of a layer share, since one tensor holds them all."""

_OF_THE_STREAM = re.compile(
    r"(.*\.)?((input|post_attention|(pre|post)_feedforward)_layernorm|ln_[12]|LayerNorm|norm[12]"
    r"|(self_attn|encoder_attn|final)_layer_norm)\.(weight|bias)"
)
"""Norms of the residual stream. In OPT they stand beside fc1 and fc2; where the MLP is as wide as
the stream, only their names tell them from a norm between the two."""

_COPIES = {"gate": 1, "up": 1, "gate_up": 2}
"""Number of times that a width stands in the rows of a weight."""


def find_widths(contents: Contents, linears: Sequence[Linear]) -> list[Dim]:
    """Return one dim for each MLP whose parts fit each other."""
    mlps: dict[str, dict[str, Linear]] = {}
    attention: set[str] = set()
    for linear in linears:
        role = role_of(linear.name).removeprefix("expert_")
        if role == "down" or role in _COPIES:
            mlps.setdefault(_mlp_of(linear.name), {})[role] = linear
        elif role in ("q", "k", "v", "qkv", "o"):
            attention.update(linear.tensors)
    below = names_below(mlps, contents.tensors)
    dims = []
    for mlp, parts in mlps.items():
        down = parts.pop("down", None)
        sizes = {x.out_features / _COPIES[role] for role, x in parts.items()}
        is_whole = all(len(linear.outer) == 1 for linear in parts.values())
        if down and is_whole and sizes == {down.in_features}:
            others = [name for name in below[mlp] if name not in attention]
            dims.append(_width(contents, mlp, parts, down, others))
    why = f"the config of a {contents.config.get('model_type')} has no number for this width"
    unsaid = widths_without_key(contents.config, dims)
    return [
        replace(dim, padding="refused", why=dim.why or why) if dim.name in unsaid else dim
        for dim in dims
    ]


def _mlp_of(module: str) -> str:
    """The module of an MLP's layer; BERT has intermediate.dense and output.dense."""
    return re.sub(r"\.(intermediate|output)$", "", parent_of(module))


def _width(
    contents: Contents,
    mlp: str,
    parts: Mapping[str, Linear],
    down: Linear,
    others: Iterable[str],
) -> Dim:
    size, cost = down.in_features, down.per_input
    places: list[Place] = []
    feeds: list[Feed] = []
    for role, linear in parts.items():
        copies = _COPIES[role]
        cost += copies * linear.per_output
        feeds += [Feed(linear.outer[0], "N")] * copies
        places += _places(linear, linear.outer[0], linear.axes[0], size, copies)
        for bias in linear.biases:
            places += _places(linear, bias, len(contents.shape(bias)) - 1, size, copies)
    places += _places(down, down.reads, down.axes[1], size, 1)
    feeds.append(Feed(down.reads, "K"))
    why = _refusal(contents, size, [*parts.values(), down], others)
    return Dim(
        name=f"{mlp}:width",
        kind="width",
        size=size,
        places=tuple(places),
        feeds=tuple(feeds),
        params_per_unit=cost,
        layer=layer_of(mlp),
        role=_kind_of(contents, mlp, down),
        padding="refused" if why else "exact",
        why=why,
    )


def _places(linear: Linear, tensor: str, axis: int, size: int, copies: int) -> list[Place]:
    """Places where a tensor of the layer has a width of ``size``, ``copies`` times."""
    if linear.alternating:
        return [Place(tensor, axis, per=copies)]
    return [Place(tensor, axis, i * size) for i in range(max(copies, linear.joined))]


def _kind_of(contents: Contents, mlp: str, down: Linear) -> str:
    if tower_of(mlp):
        return "tower"
    if mlp.endswith(("shared_expert", "shared_experts", "shared_mlp")):
        return "shared_expert"
    if down.joined > 1 or len(contents.shape(down.reads)) > 2:
        return STACKED
    return "expert" if is_expert(f"{mlp}.") else "mlp"


def _refusal(
    contents: Contents, size: int, linears: Sequence[Linear], others: Iterable[str]
) -> str:
    """Reason why this width may not change: a packed weight, or an unknown tensor of its size."""
    tensors = {tensor for linear in linears for tensor in linear.tensors}
    hidden = linears[-1].out_features
    sizes = {size} | {linear.out_features for linear in linears[:-1]} - {hidden}
    for name in others:
        is_norm = hidden == size and _OF_THE_STREAM.fullmatch(name)
        if name not in tensors and not is_norm and sizes.intersection(contents.shape(name)):
            return f"{name} has the same width and is not known to allow zeros"
    return next((linear.why for linear in linears if linear.why), "")
