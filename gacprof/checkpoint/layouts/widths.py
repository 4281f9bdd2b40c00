"""The width of an MLP: one dim that couples gate, up and down.

Padding a width with zeros is exact for every activation that is finite at zero: the new hidden
units are multiplied by down's zero columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gacprof.checkpoint.inventory import Contents, Dim, Feed, NewSizes, Place
from gacprof.checkpoint.layouts.declared import in_tower, width_keys, without_key
from gacprof.checkpoint.layouts.linear import Linear
from gacprof.checkpoint.layouts.names import is_expert, layer_of, names_below, parent_of, role_of

STACKED = "experts"
"""The role of a width that all experts of a layer share, since one tensor holds them all."""


def find_widths(contents: Contents, linears: Sequence[Linear]) -> tuple[list[Dim], list[str]]:
    """One dim per MLP, and notes on those whose sizes disagree."""
    mlps: dict[str, dict[str, Linear]] = {}
    for linear in linears:
        role = role_of(linear.name).removeprefix("expert_")
        if role in ("gate", "up", "gate_up", "down"):
            mlps.setdefault(_mlp_of(linear.name), {})[role] = linear
    below = names_below(mlps, contents.tensors)
    around = [x for x in linears if role_of(x.name) in ("q", "k", "v", "qkv", "o")]
    attention = {tensor for linear in around for tensor in linear.tensors}
    dims, notes = [], []
    for mlp, parts in mlps.items():
        if "down" not in parts or not parts.keys() & {"up", "gate_up", "gate"}:
            continue
        others = [name for name in below.get(mlp, ()) if name not in attention]
        dim = _width(contents, mlp, parts, others)
        if dim is None:
            notes.append(f"{mlp}: widths of {', '.join(sorted(parts))} do not fit each other")
        else:
            dims.append(dim)
    notes += config_disagrees(contents.config, dims, {})
    unknown = without_key(contents.config, dims)
    for i, dim in enumerate(dims):
        if dim.name in unknown and dim.padding != "refused":
            dims[i] = replace(dim, padding="refused", why=unknown[dim.name])
    return dims, notes


def config_disagrees(
    config: Mapping[str, object], dims: Iterable[Dim], sizes: NewSizes
) -> Iterator[str]:
    """Where ``config`` says something else than widths have, once dims have ``sizes``."""
    for key in width_keys(config, dims):
        if key.value is not None and key.value_with(sizes) != key.value:
            widths = sorted(key.widths(sizes))
            reason = " (it has one for all layers)" if len(widths) > 1 else ""
            yield (
                f"the {key.kinds} widths are {', '.join(map(str, widths[:6]))}, the config says "
                f"{key.name} {key.value}{reason}: a plain transformers model refuses these "
                "weights, gacprof.load_model takes them"
            )


def _mlp_of(module: str) -> str:
    parent = parent_of(module)
    if parent.endswith((".intermediate", ".output")):  # BERT: intermediate.dense, output.dense
        return parent_of(parent)
    return parent


def _width(
    contents: Contents,
    mlp: str,
    parts: Mapping[str, Linear],
    others: Sequence[str],
) -> Dim | None:
    down = parts["down"]
    size = down.in_features(contents)
    places, feeds, cost = [], [], down.parameters_per_input(contents)
    for role, linear in parts.items():
        if role == "down":
            continue
        copies = 2 if role == "gate_up" else 1
        if linear.out_features(contents) != size * copies or len(linear.outer) != 1:
            return None
        cost += copies * linear.parameters_per_output(contents)
        places += _places(linear, linear.outer[0], linear.axes[0], size, copies)
        for bias in linear.biases:
            places += _places(linear, bias, len(contents.shape(bias)) - 1, size, copies)
        feeds += [Feed(linear.outer[0], "N")] * copies
    places += _places(down, down.reads, down.axes[1], size, 1)
    feeds.append(Feed(down.reads, "K"))
    why = _refusal(contents, size, parts, others)
    return Dim(
        name=f"{mlp}:width",
        kind="width",
        size=size,
        places=tuple(places),
        feeds=tuple(feeds),
        params_per_unit=cost,
        layer=layer_of(mlp),
        role=_kind_of(mlp, down),
        padding="refused" if why else "exact",
        why=why,
    )


def _places(linear: Linear, tensor: str, axis: int, size: int, copies: int) -> list[Place]:
    """Where a tensor of the layer has a width of ``size``, ``copies`` times (gate and up)."""
    if linear.stack and linear.stack.interleaved:
        return [Place(tensor, axis, per=copies)]
    if linear.stack and linear.stack.joined:
        copies = linear.stack.count
    return [Place(tensor, axis, i * size) for i in range(copies)]


def _kind_of(mlp: str, down: Linear) -> str:
    if in_tower(mlp):
        return "tower"
    if mlp.endswith(("shared_expert", "shared_experts", "shared_mlp")):
        return "shared_expert"
    if down.stack or (down.packed and is_expert(down.name)):
        return STACKED
    return "expert" if is_expert(f"{mlp}.") else "mlp"


_OF_THE_STREAM = re.compile(
    r"((input|post_attention|(pre|post)_feedforward)_layernorm|ln_[12]|LayerNorm|norm[12]"
    r"|(self_attn|encoder_attn|final)_layer_norm)\.(weight|bias)"
)
"""Norms of the residual stream. In OPT they stand beside fc1 and fc2; where the MLP is as wide as
the stream, only their names tell them from a norm between the two."""


def _refusal(
    contents: Contents, size: int, parts: Mapping[str, Linear], others: Sequence[str]
) -> str:
    """Why this width may not change: a packed weight, or an unknown tensor of its size."""
    for linear in parts.values():
        if linear.frozen:
            return linear.frozen
    known = {tensor for linear in parts.values() for tensor in linear.tensors}
    hidden = parts["down"].out_features(contents)
    sizes = {size, 2 * size} if "gate_up" in parts and hidden != 2 * size else {size}
    for name in others:
        if name in known or not sizes.intersection(contents.shape(name)):
            continue
        if hidden != size or not _OF_THE_STREAM.fullmatch(".".join(name.split(".")[-2:])):
            return f"{name} has the same width and is not known to allow zeros"
    return ""
