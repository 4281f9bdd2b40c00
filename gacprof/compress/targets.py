"""The dense layers that low-rank methods factor."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from gacprof.checkpoint.inventory import Inventory, Module
from gacprof.checkpoint.layouts.names import tower_of
from gacprof.core.errors import CheckpointError
from gacprof.diagnosing.safe_ranks import break_even_rank

PROJECTIONS = frozenset(
    ("q", "k", "v", "o", "qkv", "gate", "up", "gate_up", "down", "gdn_out", "mamba_out")
)
"""Roles of the layers that the publications factor, experts' too."""

_NAMED = re.compile(
    r"(?P<stem>.+\.(q|k|v|o|out|gate|up|down))_proj|(?P<short>.+\.(fc1|fc2|w1|w2|w3))", re.DOTALL
)
"""Modules whose factors SVD-LLM's layout can name."""


@dataclass(frozen=True)
class Target:
    """A dense layer to be factored: ``weight`` of ``shape`` (out, in) becomes ``outer`` [out, r] ·
    ``inner`` [r, in]; these are tensor names. ``bias`` is empty where there is none."""

    name: str
    layer: int
    weight: str
    bias: str
    inner: str
    outer: str
    shape: tuple[int, int]

    @property
    def parameters(self) -> int:
        return prod(self.shape)

    @property
    def unit(self) -> int:
        """Parameters of one more rank."""
        return sum(self.shape)

    @property
    def max_rank(self) -> int:
        """The largest rank at which the factors are smaller than the weight."""
        return break_even_rank(*self.shape)

    def own_rank(self, ratio: float) -> int:
        """ASVD's and SVD-LLM's rank at one ratio for all: int(out · in · kept) // (in + out)."""
        rank = int(self.parameters * (1 - ratio)) // self.unit
        return max(1, min(rank, self.max_rank))


def targets_of(inventory: Inventory) -> list[Target]:
    """Return the layers to factor, in the order of the model."""
    targets = []
    for module in inventory.modules:
        match = _NAMED.fullmatch(module.name)
        if match and module.layer is not None and _is_plain(inventory, module):
            gemm = module.gemms[0]
            stem = match["stem"] or match["short"]
            bias = f"{module.name}.bias" if gemm.bias else ""
            inner, outer = f"{stem}_v_proj.weight", f"{stem}_u_proj.weight"
            names = (module.name, module.layer, gemm.weight, bias, inner, outer)
            targets.append(Target(*names, shape=(gemm.N, gemm.K)))
    if not targets:
        raise CheckpointError(
            f"{inventory.path}: no dense projection is stored in a way that can be factored"
        )
    return targets


def _is_plain(inventory: Inventory, module: Module) -> bool:
    """Tell whether a module is a projection of the decoder, with a weight [out, in] of its own."""
    is_projection = module.role.removeprefix("expert_") in PROJECTIONS
    if not is_projection or module.kind != "dense" or tower_of(module.name):
        return False
    shape = (module.out_features, module.in_features)
    return inventory.tensors[module.gemms[0].weight].shape == shape
