"""The width of an MLP: one dim that couples gate, up and down.

Padding a width with zeros is exact for every activation that is finite at zero: the new hidden
units are multiplied by down's zero columns.
"""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from math import lcm
from typing import Any

from gacprof.checkpoint.inventory import Contents, Dim, Feed, Place
from gacprof.checkpoint.layouts.configs import count, part_of, width_keys
from gacprof.checkpoint.layouts.linear import Linear, stored_linear, unknown_tensor
from gacprof.checkpoint.layouts.names import WORDS, parent_of, role_of, tower_of
from gacprof.core.dtypes import FLOATING, MULTIPLIED

_OF_THE_STREAM = re.compile(  # norms of the residual stream: OPT's stand beside fc1 and fc2
    r"(.*\.)?((input|post_attention|(pre|post)_feedforward)_layernorm|ln_[12]|LayerNorm|norm[12]"
    r"|(self_attn|encoder_attn|final)_layer_norm)\.(weight|bias)"
)
_COPIES = {"gate": 1, "up": 1, "gate_up": 2, "down": 1}
"""Number of times that a width stands in a weight of an MLP, by the weight's role."""
_SHARED = "many weights share its entries, which have no order"
_QUANTISED = "its weights are quantised, so cut before that"


def find_widths(contents: Contents, linears: Sequence[Linear]) -> list[Dim]:
    """Return one dim for each MLP whose parts fit each other."""
    mlps: dict[str, dict[str, Linear]] = {}
    attention: set[str] = set()
    for linear in linears:
        role = linear.role.removeprefix("expert_")
        if role in _COPIES:  # BERT has intermediate.dense and output.dense
            mlp = parent_of(linear.name).removesuffix(".intermediate").removesuffix(".output")
            mlps.setdefault(mlp, {})[role] = linear
        elif role in ("q", "k", "v", "qkv", "o"):
            attention.update(linear.weights, linear.biases)
    dims: list[Dim] = []
    incomplete: set[float] = set()
    for mlp, parts in mlps.items():
        down = parts.pop("down", None)
        sizes = {x.out_features / _COPIES[role] for role, x in parts.items()}
        is_whole = all(len(linear.weights) < 3 for linear in parts.values())
        if down and is_whole and sizes == {down.in_features}:
            beside = set(contents.below(mlp)) - attention
            in_order = dict(sorted(parts.items(), key=lambda part: part[1].name))
            dims.append(_width(contents, mlp, {**in_order, "down": down}, beside))
        else:
            incomplete |= sizes
    model_type = contents.config.get("model_type")
    stated = set().union(*(key.times for key in width_keys(contents.config, dims)))
    for i, dim in enumerate(dims):
        # LongCat's zero experts have gate and up only, and the experts' number says theirs too
        if model_type and (dim.name not in stated or dim.size in incomplete):
            why = f"the config of a {model_type} has no number for this width alone"
            dims[i] = replace(dim, padding="refused", why=dim.why or why)
    return dims


def _width(contents: Contents, mlp: str, parts: Mapping[str, Linear], others: Set[str]) -> Dim:
    """Return the width of an MLP of these parts, by role; ``others`` are its other tensors."""
    down = parts["down"]
    size, cost = down.in_features, down.per_input
    places: list[Place] = []
    feeds: list[Feed] = []
    steps = [1]
    why = _refusal(contents, parts, others)
    for part, linear in parts.items():
        copies = _COPIES[part]
        stored = linear.sides.K
        if part == "down":
            feeds.append(Feed(down.weights[0], "K"))
        else:
            stored = linear.sides.N
            feeds += [Feed(linear.weights[-1], "N")] * copies
            cost += copies * linear.per_output
        steps.append(linear.sides.step)
        for place in stored:
            is_split = linear.alternating and copies > 1
            if is_split or place.fill == "size":
                places.append(replace(place, unit=place.unit * copies))
                continue
            repeats = max(copies, linear.joined)
            if repeats > 1:  # each begins with an entry of its own
                steps.append(place.unit.denominator)
                if size % place.unit.denominator:
                    why = f"gate and up share an entry of {place.tensor}"
            starts = range(0, repeats * place.entries(size), place.entries(size))
            places += [replace(place, start=start) for start in starts]
    role = "expert" if down.role.startswith("expert_") else "mlp"
    if tower_of(mlp):
        role = "tower"
    elif mlp.endswith(("shared_expert", "shared_experts", "shared_mlp")):
        role = "shared_expert"
    elif down.joined > 1 or len(contents.tensors[down.weights[0]].shape) > 2:
        role = "experts"  # one tensor holds them all, and they share the width
    never_cut = _SHARED if role == "experts" else ""
    if any(linear.is_quantised for linear in parts.values()):
        never_cut = _QUANTISED
    return Dim(
        name=f"{mlp}:width",
        kind="width",
        size=size,
        places=tuple(places),
        feeds=tuple(feeds),
        params_per_unit=cost,
        layer=down.layer,
        role=role,
        padding="refused" if why else "exact",
        why=why,
        never_cut=never_cut,
        step=lcm(*steps),
    )


def _refusal(contents: Contents, parts: Mapping[str, Linear], others: Set[str]) -> str:
    """Return why a width may not change: a packed weight, or an unknown tensor of its size."""
    tensors: set[str] = set()
    for linear in parts.values():
        if linear.why:
            return linear.why
        tensors |= linear.tensors
    size, hidden = parts["down"].in_features, parts["down"].out_features
    sizes = {size, *(x.out_features for role, x in parts.items() if role != "down")}
    # A norm of the stream then has a width's size without belonging to it
    if hidden == size:
        tensors |= set(filter(_OF_THE_STREAM.fullmatch, others))
    else:
        sizes.discard(hidden)
    return unknown_tensor(contents, others - tensors, sizes)


IN_HALVES = "is_concatenated"  # of transformers' experts: true where gate and up do not alternate
_IN_HALVES_BY_TYPE = dict.fromkeys(WORDS["experts"]["alternating"], False)
_IN_HALVES_BY_TYPE |= dict.fromkeys(WORDS["experts"]["in_halves"], True)
_JOINED = (".experts.mlp.w1", ".experts.mlp.v1", ".experts.mlp.w2")
_UNKNOWN = "how gate and up of all experts lie in one tensor is not known for this model type"


def stacked_experts(contents: Contents) -> list[Linear]:
    """Return the layers whose experts are all in one tensor."""
    blocks: dict[str, dict[str, str]] = {}
    for name, info in contents.tensors.items():
        module = name.removesuffix(".weight")
        is_stack = len(info.shape) == 3 or module.endswith(_JOINED)
        if is_stack and info.numel and info.dtype in FLOATING:
            role = role_of(module).removeprefix("expert_")
            blocks.setdefault(module.rpartition(".")[0], {})[role] = name
    linears: list[Linear] = []
    for block, parts in blocks.items():
        if {"gate_up", "down"} <= parts.keys():
            linears += _in_three(contents, block, parts["gate_up"], parts["down"])
        elif parts.keys() == {"gate", "up", "down"}:
            linears += _joined(contents, parts)
    return linears


def _in_three(contents: Contents, block: str, fused: str, down: str) -> list[Linear]:
    """Return gate and up together, and down, with an axis for the experts."""
    _, rows, columns = contents.shape(down)
    sides = {(2 * columns, rows): (1, 2), (columns, 2 * rows): (2, 1)}
    axes = next((axes for shape, axes in sides.items() if contents.shape(fused)[1:] == shape), None)
    if axes is None:  # JetMoE's attention, whose experts are no MLPs
        return []
    _, config = part_of(contents.config)
    kind = str(config.get("model_type") or contents.config.get("model_type"))
    in_halves = contents.attributes.get(block, {}).get(IN_HALVES, _IN_HALVES_BY_TYPE.get(kind))
    why = _UNKNOWN if in_halves is None else ""
    if contents.tensors[down].dtype not in MULTIPLIED:
        why = "how the scales of all experts in one tensor lie is not known"
    facts: dict[str, Any] = {"axes": axes, "alternating": in_halves is False, "why": why}
    names = (fused, down)
    return [stored_linear(contents, name.removesuffix(".weight"), name, **facts) for name in names]


def _joined(contents: Contents, parts: dict[str, str]) -> list[Linear]:
    """Return DBRX's layers, whose experts follow each other along axis 0."""
    _, config = part_of(contents.config)
    experts = count(config.get("ffn_config") or {}, "moe_num_experts")
    linears = []
    for role, name in parts.items():
        if experts and contents.shape(name)[0] % experts == 0:
            axes = (1, 0) if role == "down" else (0, 1)
            module = name.removesuffix(".weight")
            linears.append(stored_linear(contents, module, name, axes=axes, joined=experts))
    return linears
