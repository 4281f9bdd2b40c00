"""Checkpoints: read safely from headers, recognised by structure, described by an inventory.

Names are imported on first use: a config is read without numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gacprof.checkpoint.config import mirrored_files
    from gacprof.checkpoint.inventory import AttentionHeads, Inventory, Module, Place
    from gacprof.checkpoint.scanning import (
        TensorReader,
        inventory_for,
        inventory_of_model,
        open_tensors,
        scan,
    )

__all__ = [
    "AttentionHeads",
    "Inventory",
    "Module",
    "Place",
    "TensorReader",
    "inventory_for",
    "inventory_of_model",
    "mirrored_files",
    "open_tensors",
    "scan",
]


def __getattr__(name: str) -> Any:
    for module in ("inventory", "config", "scanning") if name in __all__ else ():
        found = getattr(import_module(f"gacprof.checkpoint.{module}"), name, None)
        if found is not None:
            return found
    raise AttributeError(f"module 'gacprof.checkpoint' has no attribute '{name}'")
