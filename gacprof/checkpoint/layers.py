"""Layers of torch models that transformers does not have: chains of factors, SliceGPT's layers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from gacprof.checkpoint.inventory import Inventory, Module
from gacprof.checkpoint.layouts.linear import bias_of
from gacprof.checkpoint.layouts.slicegpt import ATTENTION, MLP
from gacprof.core.errors import CheckpointError


class Factored(nn.Module):
    """A linear layer as factors: ``y = outer(inner(x))`` with inner [r, in] and outer [out, r]. A
    grouped one has an outer [out/G, rᵢ] for each group, reading its section of inner's [Σrᵢ]."""

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.in_features, self.out_features = module.in_features, module.out_features
        inner, *outer = (nn.Linear(gemm.K, gemm.N, bias=gemm.bias) for gemm in module.gemms)
        self.ranks = [layer.in_features for layer in outer]
        self.inner = inner
        self.outer: Any = nn.ModuleList(outer) if len(outer) > 1 else outer[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.ranks) == 1:
            return self.outer(self.inner(x))
        latents = self.inner(x).split(self.ranks, dim=-1)
        return torch.cat([u(z) for u, z in zip(self.outer, latents, strict=True)], dim=-1)


def parameter_names(inventory: Inventory) -> dict[str, str]:
    """Return the names of our layers' parameters by the names of the tensors that belong there."""
    names: dict[str, str] = {}
    for module in inventory.modules:
        if module.kind not in ("factored", "grouped"):
            continue
        for i, weight in enumerate(module.weights):
            place = "inner"
            if i > 0:
                place = "outer" if module.kind == "factored" else f"outer.{i - 1}"
            names[weight] = f"{module.name}.{place}.weight"
            names[bias_of(weight)] = f"{module.name}.{place}.bias"
    return names


def put(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module in the place of the one of that name."""
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


def set_parameter(model: nn.Module, name: str, tensor: torch.Tensor) -> bool:
    """Set a parameter and the sizes that its layer keeps beside it; False for unknown layers."""
    path, _, attribute = name.rpartition(".")
    layer: Any = model.get_submodule(path)
    former = getattr(layer, attribute)
    setattr(layer, attribute, nn.Parameter(tensor, requires_grad=former.requires_grad))
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = layer.weight.shape
    elif isinstance(layer, nn.Embedding):
        layer.num_embeddings, layer.embedding_dim = layer.weight.shape
    elif type(layer).__name__ == "Conv1D":  # GPT-2's, which keeps [in, out]
        layer.nx, layer.nf = layer.weight.shape
    else:
        return False
    return True


EPSILON = 1e-5  # SliceGPT's RMSN (slicegpt/modules.py) has it whatever the model's config says


class SlicedNorm(nn.Module):
    """RMSNorm without weights; the mean is over the *original* hidden size."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # As the tool computes it: a sum of squares overflows float16
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = wide.square().sum(-1, keepdim=True) / self.hidden_size
        return (wide * torch.rsqrt(mean + EPSILON)).to(x.dtype)


class SlicedLayer(nn.Module):
    """A pre-norm decoder layer with SliceGPT's shortcut matrices [in, out] on its residual."""

    def __init__(self, layer: Any, attention: Sequence[int], mlp: Sequence[int]) -> None:
        super().__init__()
        self.input_layernorm = layer.input_layernorm
        self.self_attn = layer.self_attn
        self.post_attention_layernorm = layer.post_attention_layernorm
        self.mlp = layer.mlp
        self.attention_type = getattr(layer, "attention_type", None)
        self.attn_shortcut_Q = nn.Parameter(torch.empty(*attention))
        self.mlp_shortcut_Q = nn.Parameter(torch.empty(*mlp))

    def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        x = self.input_layernorm(hidden_states)
        attended = self.self_attn(hidden_states=x, **kwargs)[0]
        hidden_states = hidden_states @ self.attn_shortcut_Q + attended
        x = self.post_attention_layernorm(hidden_states)
        return hidden_states @ self.mlp_shortcut_Q + self.mlp(x)


def put_own_layers(model: nn.Module, inventory: Inventory) -> None:
    """Put factors into a model, and into a Llama-like one SliceGPT's norms and layers."""
    for module in inventory.modules:
        if module.kind in ("factored", "grouped"):
            put(model, module.name, Factored(module))
    if inventory.layout != "slicegpt":
        return
    configs = (*inventory.side.values(), inventory.config)
    sizes = [config["hidden_size"] for config in configs if "hidden_size" in config]
    if not sizes:
        raise CheckpointError(f"{inventory.path}: no config has the original hidden_size")
    for name, layer in list(model.named_modules()):
        if type(layer).__name__.endswith("RMSNorm"):
            put(model, name, SlicedNorm(sizes[0]))
    for name in inventory.tensors:
        if name.endswith(MLP):
            block = name.removesuffix(MLP)
            shapes = [inventory.shape(block + ending) for ending in (ATTENTION, MLP)]
            put(model, block, SlicedLayer(model.get_submodule(block), *shapes))
