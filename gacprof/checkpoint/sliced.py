"""SliceGPT in a transformers model: norms without weights, and a matrix on each shortcut."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import nn

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layers import put, submodule
from gacprof.core.errors import CheckpointError

EPSILON = 1e-5
"""SliceGPT's RMSN (slicegpt/modules.py) uses this whatever the model's config says."""


def with_sliced_layers(
    model: nn.Module, inventory: Inventory, hidden_size: int, shortcuts: Sequence[str]
) -> None:
    """Replace the norms by ones over the original ``hidden_size``, and give the layers these
    ``shortcuts``, matrices of the file, without their data.

    Raises :class:`CheckpointError` for layers of an unknown kind.
    """
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            put(model, name, SlicedNorm(hidden_size))
    for tensor in shortcuts:
        path, _, attribute = tensor.rpartition(".")
        layer: Any = submodule(model, path, inventory)
        kind: Any = type(layer)
        if not getattr(kind, "is_sliced", False):
            layer.__class__ = _sliced_class(kind)
        shape = inventory.tensors[tensor].shape
        layer.register_parameter(attribute, nn.Parameter(torch.empty(shape)))


class SlicedNorm(nn.Module):
    """RMSNorm without weights; the mean is over the *original* hidden size."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        mean = wide.square().sum(-1, keepdim=True) / self.hidden_size
        return (wide * torch.rsqrt(mean + EPSILON)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"hidden_size={self.hidden_size}, epsilon={EPSILON}"


@cache
def _sliced_class(base: Any) -> Any:
    """``base`` (a pre-norm decoder layer of transformers) with SliceGPT's shortcut matrices.

    What the residual carries past attention and MLP is multiplied by ``attn_shortcut_Q`` and
    ``mlp_shortcut_Q``, [in, out] each.
    """
    returns_tuple = _returns_tuple(base)

    class SlicedLayer(base):
        is_sliced = True

        def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if args:
                raise TypeError("SlicedLayer takes hidden_states and keyword arguments")
            x = self.input_layernorm(hidden_states)
            attended = self.self_attn(hidden_states=x, **kwargs)[0]
            hidden_states = hidden_states @ self.attn_shortcut_Q + attended
            x = self.post_attention_layernorm(hidden_states)
            hidden_states = hidden_states @ self.mlp_shortcut_Q + self.mlp(x)
            return (hidden_states,) if returns_tuple else hidden_states

    return SlicedLayer


def _returns_tuple(base: Any) -> bool:
    """Whether this transformers' layer hands back a tuple (it did until 2025) or a tensor.

    Its forward is run on a layer whose parts do nothing. That also shows that it is the kind of
    layer whose parts we know.
    """

    class Nothing(nn.Module):
        def forward(self, x: torch.Tensor | None = None, **kwargs: Any) -> Any:
            return (kwargs["hidden_states"], None) if x is None else x

    probe = base.__new__(base)
    nn.Module.__init__(probe)
    for part in ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"):
        probe.add_module(part, Nothing())
    try:
        out = base.forward(probe, torch.ones(1, 1, 1, device="cpu"))
    except Exception:  # whatever a class of unknown make raises
        out = None
    value = out[0] if isinstance(out, tuple) else out
    if not isinstance(value, torch.Tensor) or float(value.sum()) != 4.0:
        raise CheckpointError(
            f"sliced layers of {base.__name__} are not known here: only Llama-like ones "
            "(norm, attention, add, norm, MLP, add) are"
        )
    return isinstance(out, tuple)
