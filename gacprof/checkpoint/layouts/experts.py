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

from collections.abc import Mapping

from gacprof.checkpoint.inventory import Contents, TensorInfo
from gacprof.checkpoint.layouts.configs import config_of_part
from gacprof.checkpoint.layouts.linear import Linear
from gacprof.checkpoint.layouts.names import parent_of, role_of
from gacprof.core.dtypes import FLOATING

IN_HALVES = "is_concatenated"
"""What transformers' modules of experts say: gate and up one after the other, or alternating."""

_ALTERNATING = frozenset({"gpt_oss"})
_HALVES = frozenset(
    "aria aria_text granitemoe granitemoe_swa granitemoehybrid granitemoeshared hy_v4 jetmoe llama4"
    " llama4_text minimax_m3_vl minimax_m3_vl_text zaya".split()
)
"""How gate and up lie in one tensor, by model type (their modeling files in transformers)."""

_JOINED = ".experts.mlp."
_UNKNOWN = (
    "all experts are stored in one tensor, and how gate and up lie in it (one after the other or "
    "alternating) is not known for this model type"
)


def stacked_experts(contents: Contents) -> list[Linear]:
    """The layers whose experts are all in one tensor."""
    blocks: dict[str, dict[str, TensorInfo]] = {}
    for name, info in contents.tensors.items():
        is_stack = len(info.shape) == 3 or (_JOINED in name and len(info.shape) == 2)
        if is_stack and info.numel and info.dtype in FLOATING:
            module = name.removesuffix(".weight")
            role = role_of(module).removeprefix("expert_")
            blocks.setdefault(parent_of(module), {})[role] = info
    linears: list[Linear] = []
    for block, parts in blocks.items():
        if {"gate_up", "down"} <= parts.keys():
            linears += _in_three(contents, block, parts["gate_up"], parts["down"])
        elif parts.keys() == {"gate", "up", "down"}:
            linears += _joined(contents, parts)
    return linears


def _in_three(contents: Contents, block: str, fused: TensorInfo, down: TensorInfo) -> list[Linear]:
    """Gate and up together, and down, with an axis for the experts."""
    (experts, first, second), (others, rows, columns) = fused.shape, down.shape
    if experts == others and (first, second) == (2 * columns, rows):
        axes = 1, 2
    elif experts == others and (first, second) == (columns, 2 * rows):
        axes = 2, 1
    else:
        return []  # JetMoE's attention, whose experts are no MLPs
    config = config_of_part(contents.config)
    kind = config.get("model_type") or contents.config.get("model_type")
    in_halves = contents.attributes.get(block, {}).get(IN_HALVES, kind in _HALVES)
    alternating = not in_halves and (
        kind in _ALTERNATING or IN_HALVES in contents.attributes[block]
    )
    why = "" if in_halves or alternating else _UNKNOWN
    return [_layer(contents, info, axes, experts, alternating, why) for info in (fused, down)]


def _layer(
    contents: Contents,
    info: TensorInfo,
    axes: tuple[int, int],
    experts: int,
    alternating: bool,
    why: str,
) -> Linear:
    module = info.name.removesuffix(".weight")
    n_out, n_in = info.shape[axes[0]], info.shape[axes[1]]
    bias = contents.tensors.get(f"{module}_bias")
    is_biased = bias is not None and bias.shape == (experts, n_out)
    return Linear(
        module,
        (info.name,),
        n_out,
        n_in,
        info.dtype,
        per_output=experts * (n_in + is_biased),
        per_input=experts * n_out,
        biases=(f"{module}_bias",) if is_biased else (),
        axes=axes,
        alternating=alternating,
        why=why,
    )


def _joined(contents: Contents, parts: Mapping[str, TensorInfo]) -> list[Linear]:
    """DBRX's, whose experts follow each other along axis 0."""
    settings = config_of_part(contents.config).get("ffn_config")
    experts = settings.get("moe_num_experts") if isinstance(settings, Mapping) else None
    shapes = {info.shape for info in parts.values()}
    rows, hidden = shapes.pop()
    if shapes or type(experts) is not int or experts < 1 or rows % experts:
        return []
    linears = []
    for role, info in parts.items():
        n_out, n_in, axes = rows // experts, hidden, (0, 1)
        if role == "down":
            n_out, n_in, axes = hidden, rows // experts, (1, 0)
        linears.append(
            Linear(
                info.name.removesuffix(".weight"),
                (info.name,),
                n_out,
                n_in,
                info.dtype,
                per_output=info.numel // n_out,
                per_input=info.numel // n_in,
                axes=axes,
                joined=experts,
            )
        )
    return linears
