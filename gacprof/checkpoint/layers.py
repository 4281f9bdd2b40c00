"""Layers of torch models: chains of factors, experts, SliceGPT's, and the sizes that layers keep.

Compressed experts have ranks or widths of their own, which no common tensor holds. So a layer's
experts become a list of small MLPs under the names that the file has, called as the model's router
calls the common one. All models of a checkpoint are built so, compressed or not: they compare.
SliceGPT's norms have no weights, and each of its shortcuts has a matrix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn

from gacprof.checkpoint.inventory import Gemm, Inventory, Module
from gacprof.core.errors import CheckpointError


class FactorPair(nn.Module):
    """``y = outer(inner(x))`` with inner [r, in] and outer [out, r]; a bias belongs to outer."""

    def __init__(self, inner: Gemm, outer: Gemm) -> None:
        super().__init__()
        self.in_features, self.out_features, self.rank = inner.K, outer.N, inner.N
        self.inner = nn.Linear(inner.K, inner.N, bias=inner.bias)
        self.outer = nn.Linear(outer.K, outer.N, bias=outer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(x))


class GroupedFactors(nn.Module):
    """One inner [Σrᵢ, in] for all groups; outer ``i`` [out/G, rᵢ] reads its own section.

    The groups' outputs stand one after the other, so the result has the full width.
    """

    def __init__(self, inner: Gemm, outer: Sequence[Gemm]) -> None:
        super().__init__()
        self.ranks = [gemm.K for gemm in outer]
        self.in_features, self.out_features = inner.K, sum(gemm.N for gemm in outer)
        self.inner = nn.Linear(inner.K, inner.N, bias=inner.bias)
        self.outer = nn.ModuleList(nn.Linear(g.K, g.N, bias=g.bias) for g in outer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        latents = self.inner(x).split(self.ranks, dim=-1)
        return torch.cat([u(z) for u, z in zip(self.outer, latents, strict=True)], dim=-1)


def factors_of(module: Module) -> FactorPair | GroupedFactors:
    """The layer for a factored or grouped module of an inventory, on the current device."""
    inner, *outer = module.gemms
    if len(outer) == 1:
        return FactorPair(inner, outer[0])
    return GroupedFactors(inner, outer)


def parameter_names(module: Module) -> dict[str, str]:
    """File tensor name → parameter name, for the weights and biases of a factored module."""
    inner, *outer = module.gemms
    places = {inner.weight: f"{module.name}.inner"}
    for i, gemm in enumerate(outer):
        places[gemm.weight] = f"{module.name}.outer" + (f".{i}" if len(outer) > 1 else "")
    names = {}
    for gemm in module.gemms:
        names[gemm.weight] = f"{places[gemm.weight]}.weight"
        if gemm.bias:
            names[gemm.weight.removesuffix(".weight") + ".bias"] = f"{places[gemm.weight]}.bias"
    return names


def is_conv1d(module: nn.Module) -> bool:
    """Whether this is GPT-2's linear layer, which keeps [in, out] (transformers/pytorch_utils)."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def set_sizes(module: nn.Module) -> bool:
    """Set the sizes that the layer keeps beside its weight to the shape of its weight. Returns
    whether this kind of layer is known."""
    layer: Any = module
    if isinstance(module, nn.Linear):
        layer.out_features, layer.in_features = module.weight.shape
    elif isinstance(module, nn.Embedding):
        layer.num_embeddings, layer.embedding_dim = module.weight.shape
    elif is_conv1d(module):
        layer.nx, layer.nf = layer.weight.shape
    else:
        return False
    return True


def find_submodule(model: nn.Module, name: str) -> Any:
    """The module of that name; None where the model has none."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def submodule(model: nn.Module, name: str, inventory: Inventory) -> nn.Module:
    found: nn.Module | None = find_submodule(model, name)
    if found is None:
        raise CheckpointError(
            f"{inventory.path}: {name} is in the file but not in {type(model).__name__}"
        )
    return found


def put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


def set_ranks(model: nn.Module, name: str, before: Sequence[int], after: Sequence[int]) -> None:
    """Set the ranks that the factored module ``name`` keeps, if there is one of that name.

    Ours keep ``rank`` and ``ranks``, ASVD's ``truncation_rank``, PaLU's ``ranks``; factors that
    stand beside each other, as SVD-LLM's, have no module of their own.
    """
    module = find_submodule(model, name)
    for attribute in ("rank", "truncation_rank"):
        if len(before) == 1 and getattr(module, attribute, None) == before[0]:
            setattr(module, attribute, after[0])
    if module is not None and list(getattr(module, "ranks", None) or ()) == list(before):
        module.ranks = list(after)


_STORED = re.compile(r"(.*)\.experts\.(\d{1,6})\.(w1|gate_proj)", re.DOTALL)
_NAMES = {"w1": ("w1", "w3", "w2"), "gate_proj": ("gate_proj", "up_proj", "down_proj")}
"""Gate, up and down of Mixtral, and of Qwen, OLMoE and DeepSeek."""


class Expert(nn.Module):
    """``down(act(gate(x), up(x)))``; ``names`` are those of its three layers in the file."""

    def __init__(self, names: tuple[str, ...], hidden: int, width: int, activate: Any) -> None:
        super().__init__()
        shapes = ((hidden, width), (hidden, width), (width, hidden))
        for name, (n_in, n_out) in zip(names, shapes, strict=True):
            self.add_module(name, nn.Linear(n_in, n_out, bias=False))
        self._names = names
        self._activate = activate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up, down = (getattr(self, name) for name in self._names)
        return torch.as_tensor(down(self._activate(torch.cat((gate(x), up(x)), dim=-1))))


class ExpertModules(nn.ModuleList):
    """A layer's experts; called with tokens [n, hidden], and the experts [n, k] that the router
    sends each to with their weights [n, k]."""

    def forward(
        self, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        out = torch.zeros_like(hidden)
        for index in chosen.unique().tolist():
            if index >= len(self):  # a slot that the router left empty
                continue
            token, place = torch.where(chosen == index)
            given = self[index](hidden[token]) * weights[token, place, None]
            out.index_add_(0, token, given.to(out.dtype))
        return out


def split_experts(model: nn.Module, inventory: Inventory) -> None:
    """Give ``model`` the experts that the file has, each by itself, where it holds them together
    and the file does not."""
    for stored, (names, count) in _stored(inventory).items():
        block, fused = _fused(model, stored)
        if fused is None:
            continue
        hidden, width = fused.down_proj.shape[1:]
        activate: Callable[[torch.Tensor], torch.Tensor] = fused._apply_gate
        made = [Expert(names, hidden, width, activate) for _ in range(count)]
        model.get_submodule(block).experts = ExpertModules(made)
        if block != stored:
            _rename(model, block, stored)


def _stored(inventory: Inventory) -> dict[str, tuple[tuple[str, ...], int]]:
    """By the module that holds experts in the file: their layers' names, and how many they are."""
    found: dict[str, tuple[tuple[str, ...], int]] = {}
    for module in inventory.modules:
        match = _STORED.fullmatch(module.name)
        if match:
            _, count = found.get(match[1], ((), 0))
            found[match[1]] = _NAMES[match[3]], max(count, int(match[2]) + 1)
    return found


def _fused(model: nn.Module, stored: str) -> tuple[str, Any]:
    """Where the model has these experts, and its module for all of them; None where that is none
    whose layers are known: gate and up one after the other, without biases."""
    for block in (stored, stored.replace(".block_sparse_moe", ".mlp")):
        experts = find_submodule(model, f"{block}.experts")
        known = getattr(experts, "has_gate", False) and getattr(experts, "is_concatenated", False)
        odd = ("has_bias", "has_post_expert_norm", "is_transposed")
        if known and not any(getattr(experts, name, True) for name in odd):
            return block, experts
    return stored, None


def _rename(model: nn.Module, block: str, stored: str) -> None:
    """The block under the name that the file has for it; its layer's own code still finds it."""
    parent, _, name = block.rpartition(".")
    layer = model.get_submodule(parent)
    moved = layer._modules.pop(name)
    layer.add_module(stored.rpartition(".")[2], moved)
    object.__setattr__(layer, name, moved)


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
