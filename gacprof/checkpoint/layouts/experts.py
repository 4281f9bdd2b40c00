"""Mixtures of experts: each expert by itself, or all experts of a layer in one tensor.

``experts.{e}.w1/w3/w2`` (Mixtral), ``experts.{e}.gate_proj`` … (Qwen, DeepSeek) are plain layers;
each expert's width is a dim of its own. One tensor for all:

Llama 4, gpt-oss     ``experts.gate_up_proj`` [experts, in, 2·width], ``experts.down_proj``
                     [experts, width, out]; newer families as [experts, out, in]
Aria                 ``experts.fc1.weight``, ``experts.fc2.weight``, as Llama 4
GraniteMoE, JetMoE   ``input_linear.weight`` [experts, 2·width, in], ``output_linear.weight``
DBRX                 ``experts.mlp.w1``, ``v1``, ``w2`` [experts·width, hidden]

Their experts share one width. Gate and up lie one after the other, in gpt-oss they alternate; of a
model type that is not known here they are left alone. In memory transformers holds the experts of
all families so, and its modules say how.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gacprof.checkpoint.inventory import Contents, TensorInfo
from gacprof.checkpoint.layouts.declared import config_of_part
from gacprof.checkpoint.layouts.layout import Layout
from gacprof.checkpoint.layouts.linear import Linear, Stack
from gacprof.checkpoint.layouts.names import is_expert, parent_of, role_of
from gacprof.core.dtypes import FLOATING

_INTERLEAVED = frozenset({"gpt_oss"})
_HALVES = frozenset(
    {
        *("aria", "aria_text", "granitemoe", "granitemoe_swa", "granitemoehybrid"),
        *("granitemoeshared", "hy_v4", "jetmoe", "llama4", "llama4_text"),
        *("minimax_m3_vl", "minimax_m3_vl_text", "zaya"),
    }
)
"""How gate and up lie in one tensor, by model type (their modeling files in transformers)."""

_JOINED = ".experts.mlp."
_UNKNOWN = (
    "all experts are stored in one tensor, and how gate and up lie in it (one after the other or "
    "alternating) is not known for this model type"
)


class Moe(Layout):
    """Kernels that run all experts in one grouped GEMM need equal widths; ``mirror`` writes the
    width only where it is uniform."""

    name = "moe"

    def recognise(self, contents: Contents) -> bool:
        named = any(is_expert(name.removesuffix(".weight")) for name in contents.tensors)
        return named or super().recognise(contents)

    def found(self, contents: Contents) -> Iterator[Linear]:
        """The layers whose experts are all in one tensor."""
        for layer in _stacked(contents).values():
            yield from _in_three(contents, layer) or _joined(contents, layer)

    def notes(self, contents: Contents, found: Sequence[Linear]) -> Iterator[str]:
        yield (
            "experts see only the tokens routed to them: their M is smaller than that of the "
            "other layers"
        )


def _stacked(contents: Contents) -> dict[str, dict[str, TensorInfo]]:
    """The tensors that hold all experts of a layer: by their layer, then by role."""
    found: dict[str, dict[str, TensorInfo]] = {}
    for name, info in contents.tensors.items():
        is_stack = len(info.shape) == 3 or (_JOINED in name and len(info.shape) == 2)
        if not is_stack or not info.numel or info.dtype not in FLOATING:
            continue
        module = name.removesuffix(".weight")
        role = role_of(module).removeprefix("expert_")
        if role in ("gate", "up", "gate_up", "down"):
            found.setdefault(parent_of(module), {})[role] = info
    return found


def _in_three(contents: Contents, layer: Mapping[str, TensorInfo]) -> list[Linear]:
    """Gate and up together, and down, with an axis for the experts."""
    fused, down = layer.get("gate_up"), layer.get("down")
    if fused is None or down is None or not len(fused.shape) == len(down.shape) == 3:
        return []
    (count, first, second), (others, rows, columns) = fused.shape, down.shape
    if count == others and (first, second) == (2 * columns, rows):
        axes = 1, 2
    elif count == others and (first, second) == (columns, 2 * rows):
        axes = 2, 1
    else:
        return []  # JetMoE's attention, whose experts are no MLPs
    kind = _model_type(contents)
    halves: Any = contents.attributes.get(parent_of(fused.name), {}).get("is_concatenated")
    if type(halves) is not bool:
        halves = kind in _HALVES if kind in _INTERLEAVED | _HALVES else None
    stack = Stack(count, interleaved=halves is False)
    frozen = _UNKNOWN if halves is None else ""
    return [_linear(contents, info, axes, stack, frozen) for info in (fused, down)]


def _joined(contents: Contents, layer: Mapping[str, TensorInfo]) -> list[Linear]:
    """DBRX's, whose experts follow each other along axis 0."""
    experts = config_of_part(contents.config).get("ffn_config")
    count = experts.get("moe_num_experts") if isinstance(experts, Mapping) else None
    shapes = {info.shape for info in layer.values()}
    if layer.keys() != {"gate", "up", "down"} or len(shapes) != 1 or type(count) is not int:
        return []
    (shape,) = shapes
    if len(shape) != 2 or count < 1 or shape[0] % count:
        return []
    stack = Stack(count, joined=True)
    return [
        _linear(contents, info, (1, 0) if role == "down" else (0, 1), stack)
        for role, info in layer.items()
    ]


def _linear(
    contents: Contents, info: TensorInfo, axes: tuple[int, int], stack: Stack, frozen: str = ""
) -> Linear:
    module = info.name.removesuffix(".weight")
    bias = contents.tensors.get(f"{module}_bias")
    n_out = info.shape[axes[0]]
    biases = () if bias is None or bias.shape != (stack.count, n_out) else (bias.name,)
    return Linear(module, (info.name,), biases=biases, axes=axes, stack=stack, frozen=frozen)


def _model_type(contents: Contents) -> str:
    whole = contents.config
    return str(config_of_part(whole).get("model_type") or whole.get("model_type"))
