"""Mixtures of experts whose layers hold all experts in one tensor.

Llama 4, gpt-oss     ``experts.gate_up_proj`` [experts, in, 2·width], ``experts.down_proj``
                     [experts, width, out]; newer families as [experts, out, in]
Aria                 ``experts.fc1.weight``, ``experts.fc2.weight``, as Llama 4
GraniteMoE, JetMoE   ``input_linear.weight`` [experts, 2·width, in], ``output_linear.weight``
DBRX                 ``experts.mlp.w1``, ``v1``, ``w2`` [experts·width, hidden]

Their experts share one width. Gate and up lie one after the other; in gpt-oss they alternate; of a
model type that is not listed they are left alone. In memory transformers holds the experts of all
families so, and its modules say how. Experts stored each by itself are plain layers.
"""

from __future__ import annotations

from gacprof.checkpoint.inventory import Contents
from gacprof.checkpoint.layouts.configs import count, part_of
from gacprof.checkpoint.layouts.linear import Linear, stored_linear
from gacprof.checkpoint.layouts.names import role_of
from gacprof.core.dtypes import FLOATING

IN_HALVES = "is_concatenated"
"""Attribute of transformers' modules of experts: true where gate and up do not alternate."""

_IN_HALVES_BY_TYPE = {"gpt_oss": False} | dict.fromkeys(
    (
        *("aria", "aria_text", "granitemoe", "granitemoe_swa", "granitemoehybrid"),
        *("granitemoeshared", "hy_v4", "jetmoe", "llama4", "llama4_text", "minimax_m3_vl"),
        *("minimax_m3_vl_text", "zaya"),
    ),
    True,
)
"""True where they do not alternate, by model type (their modeling files in transformers)."""

_JOINED = (".experts.mlp.w1", ".experts.mlp.v1", ".experts.mlp.w2")
_UNKNOWN = (
    "all experts are stored in one tensor, and how gate and up lie in it (one after the other or "
    "alternating) is not known for this model type"
)


def stacked_experts(contents: Contents) -> list[Linear]:
    """The layers whose experts are all in one tensor."""
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
    """Gate and up together, and down, with an axis for the experts."""
    _, rows, columns = contents.shape(down)
    sides = {(2 * columns, rows): (1, 2), (columns, 2 * rows): (2, 1)}
    axes = next((axes for shape, axes in sides.items() if contents.shape(fused)[1:] == shape), None)
    if axes is None:  # JetMoE's attention, whose experts are no MLPs
        return []
    _, config = part_of(contents.config)
    kind = str(config.get("model_type") or contents.config.get("model_type"))
    in_halves = contents.attributes.get(block, {}).get(IN_HALVES, _IN_HALVES_BY_TYPE.get(kind))
    return [
        stored_linear(
            contents,
            name.removesuffix(".weight"),
            name,
            axes=axes,
            alternating=in_halves is False,
            why=_UNKNOWN if in_halves is None else "",
        )
        for name in (fused, down)
    ]


def _joined(contents: Contents, parts: dict[str, str]) -> list[Linear]:
    """DBRX's, whose experts follow each other along axis 0."""
    _, config = part_of(contents.config)
    experts = count(config.get("ffn_config") or {}, "moe_num_experts")
    return [
        stored_linear(
            contents,
            name.removesuffix(".weight"),
            name,
            axes=(1, 0) if role == "down" else (0, 1),
            joined=experts,
        )
        for role, name in parts.items()
        if experts and contents.shape(name)[0] % experts == 0
    ]
