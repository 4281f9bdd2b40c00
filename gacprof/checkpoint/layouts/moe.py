"""Mixture of experts: ``experts.{e}.w1/w3/w2`` (Mixtral), ``experts.{e}.gate_proj`` … (Qwen-MoE,
DeepSeek), shared experts, and all experts in one three-dimensional tensor.

Each expert's width is a dim of its own. Kernels that run all experts in one grouped GEMM need
equal widths; ``mirror`` writes the width only where it is uniform.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gacprof.checkpoint.dtypes import FLOATING
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.assemble import assemble
from gacprof.checkpoint.layouts.attention import config_of_part
from gacprof.checkpoint.layouts.base import Contents, Findings, Sizes
from gacprof.checkpoint.layouts.linear import Linear, Packed, dense_linears
from gacprof.checkpoint.layouts.names import is_expert
from gacprof.checkpoint.layouts.plain import mirror_config

_BATCHED = (".experts.gate_up_proj", ".experts.down_proj")
_WHY = (
    "all experts are stored in one tensor, and models differ in how gate and up lie in it "
    "(halves or interleaved)"
)


class Moe:
    name = "moe"

    def recognise(self, contents: Contents) -> bool:
        return any(
            is_expert(name) or name.removesuffix(".weight").endswith(_BATCHED)
            for name in contents.tensors
        )

    def describe(self, contents: Contents) -> Findings:
        batched = list(_batched(contents))
        linears = [*batched, *dense_linears(contents, batched)]
        notes = [
            "experts see only the tokens routed to them: their M is smaller than that of the "
            "other layers"
        ]
        return assemble(contents, linears, notes=notes)

    def mirror(self, inventory: Inventory, sizes: Sizes) -> dict[str, dict[str, Any]]:
        return mirror_config(inventory, sizes)


def _batched(contents: Contents) -> Iterator[Linear]:
    """Experts stored as [experts, in, out] or [experts, out, in]; hidden tells which."""
    hidden = config_of_part(contents.config).get("hidden_size")
    for name, info in contents.tensors.items():
        module = name.removesuffix(".weight")
        if not module.endswith(_BATCHED) or len(info.shape) != 3 or info.dtype not in FLOATING:
            continue
        first, second = info.shape[1:]
        reads_hidden = module.endswith("gate_up_proj")
        inputs_first = (first == hidden) if reads_hidden else (second == hidden)
        n_in, n_out = (first, second) if inputs_first else (second, first)
        yield Linear(module, (name,), packed=Packed(n_out, n_in, info.dtype), frozen=_WHY)
