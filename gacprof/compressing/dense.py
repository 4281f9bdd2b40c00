"""The dense model that is to be compressed: read, checked, and what of it can be compressed.

:func:`open_dense` is the only way in. Whatever else can be turned into a folder of Hugging Face's
or into a model in memory comes through it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gacprof.checkpoint.inventory import Inventory, Module, TensorInfo
from gacprof.checkpoint.layouts.names import in_tower
from gacprof.checkpoint.tensors import TensorReader, tensors_of
from gacprof.compressors.method import LowRank, Target
from gacprof.core.errors import CompressionError
from gacprof.core.factors import COMPUTABLE

if TYPE_CHECKING:
    import torch

COMPRESSED = ("factored", "grouped")


def open_dense(model: str | Path | Inventory | torch.nn.Module) -> TensorReader:
    """A reader for the tensors of a dense model: a folder, its inventory, or a model in memory.

    Raises :class:`CompressionError` for one that is compressed or packed already.
    """
    reader = tensors_of(model)
    inventory = reader.inventory
    done = next((m.name for m in inventory.modules if m.kind in COMPRESSED), None)
    if done is not None:
        raise CompressionError(
            f"{inventory.path} is compressed already ('{done}' is a factor pair, layout "
            f"{inventory.layout}): give the dense model that it was made from"
        )
    if inventory.layout == "quantised" or inventory.config.get("quantization_config"):
        raise CompressionError(
            f"{inventory.path} is quantised: compress the model before, then quantise it again"
        )
    if not inventory.config:
        raise CompressionError(
            f"{inventory.path} has no config.json: nothing says what it computes"
        )
    return reader


def targets_of(reader: TensorReader, method: LowRank) -> tuple[tuple[Target, ...], dict[str, str]]:
    """The layers that the method factors, and those that it leaves dense, with the reason.

    Raises :class:`CompressionError` where it factors none.
    """
    inventory = reader.inventory
    roles = method.roles(has_tied_head(inventory))
    found, left = [], {}
    for module in inventory.modules:
        if not module.gemms or module.kind == "embedding":
            continue
        target = _target(inventory, module, method)
        reason = _refusal(inventory, module, roles)
        if not reason and method.names(target) is None:
            reason = f"the layout of {method.layout} has no name for it"
        if reason:
            left[module.name] = reason
        else:
            found.append(target)
    if not found:
        why = next(iter(left.items()), ("", "it has no linear layers"))
        raise CompressionError(
            f"{inventory.path}: {method.name} finds nothing to compress: {': '.join(why)}"
        )
    return tuple(found), left


def _target(inventory: Inventory, module: Module, method: LowRank) -> Target:
    attention = next((a for a in inventory.attentions if a.layer == module.layer), None)
    groups = 1
    if attention is not None and module.role in ("k", "v"):
        groups = method.groups(module, attention.heads, attention.kv_heads)
    gemm = module.gemms[0]
    return Target(
        name=module.name,
        weight=gemm.weight,
        bias=f"{module.name}.bias" if gemm.bias else None,
        out_features=gemm.N,
        in_features=gemm.K,
        dtype=module.dtype,
        layer=module.layer,
        role=module.role,
        groups=groups,
    )


def _refusal(inventory: Inventory, module: Module, roles: Sequence[str]) -> str:
    """Why a layer stays dense; empty where it does not."""
    if in_tower(module.name):
        return "a vision or audio tower is left as it is"
    if module.role.removeprefix("expert_") not in roles:
        return "the method does not touch it"
    if module.layer is None and module.role != "head":
        return "it is in no decoder layer"
    info = inventory.tensors.get(module.gemms[0].weight)
    if info is not None and len(info.shape) == 3:
        return "all experts are stored in one tensor"
    if info is None or info.shape != (module.out_features, module.in_features):
        return "its weight is stored transposed"
    if info.dtype not in COMPUTABLE:
        return f"it is stored as {info.dtype}"
    return ""


def has_tied_head(inventory: Inventory) -> bool:
    """Whether the head is the embedding, or there is none."""
    heads = [module for module in inventory.modules if module.role == "head"]
    own = any(f"{head.name}.weight" in inventory.tensors for head in heads)
    return bool(inventory.config.get("tie_word_embeddings", False)) or not own


def unique(reader: TensorReader) -> list[TensorInfo]:
    """The tensors of the source, one that is stored under two names once."""
    seen: dict[object, TensorInfo] = {}
    for info in reader.inventory.tensors.values():
        place = (info.file, info.offset, info.shape) if info.offset is not None else info.name
        seen.setdefault(place, info)
    return list(seen.values())
