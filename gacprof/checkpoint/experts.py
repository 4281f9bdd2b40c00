"""Experts one by one, as files store them: transformers 5 holds a layer's in one tensor.

Compressed experts have ranks or widths of their own, which no common tensor holds. So a layer's
experts become a list of small MLPs under the names that the file has, called as the model's router
calls the common one. All models of a checkpoint are built so, compressed or not: they compare.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gacprof.checkpoint.inventory import Inventory

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


class Experts(nn.ModuleList):
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
        model.get_submodule(block).experts = Experts(made)
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
        try:
            experts: Any = model.get_submodule(f"{block}.experts")
        except AttributeError:
            continue
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
