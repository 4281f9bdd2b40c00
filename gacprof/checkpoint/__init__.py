"""Checkpoints: read safely from headers, recognised by structure, described by an inventory."""

from __future__ import annotations

from gacprof.checkpoint.inventory import Attention, Inventory, Module, Place
from gacprof.checkpoint.layouts import mirrored_files
from gacprof.checkpoint.scanning import inventory_for, inventory_of_model, scan
from gacprof.checkpoint.tensors import TensorReader, open_tensors

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
