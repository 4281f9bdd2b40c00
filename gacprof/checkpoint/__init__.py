"""Checkpoints: read safely from headers, recognised by structure, described by an inventory.

Names are imported on first use: a config is read without numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gacprof.checkpoint.foreign import mirrored_files
    from gacprof.checkpoint.inventory import Attention, Inventory, Module, Place
    from gacprof.checkpoint.scanning import inventory_for, inventory_of_model, scan
    from gacprof.checkpoint.tensors import TensorReader, open_tensors

_WHERE = {
    "Attention": "inventory", "Inventory": "inventory", "Module": "inventory", "Place": "inventory",
    "mirrored_files": "foreign", "inventory_for": "scanning", "inventory_of_model": "scanning",
    "scan": "scanning", "TensorReader": "tensors", "open_tensors": "tensors",
}  # fmt: skip

__all__ = [
    "Attention",
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
    if name not in _WHERE:
        raise AttributeError(f"module 'gacprof.checkpoint' has no attribute '{name}'")
    return getattr(import_module(f"gacprof.checkpoint.{_WHERE[name]}"), name)
