"""Checkpoints: read safely from headers, recognised by structure, told as an inventory."""

from __future__ import annotations

from .inventory import Attention, Dim, Feed, Gemm, Inventory, Module, Place, TensorInfo
from .layouts import mirrored_files
from .memory import inventory_of_model
from .scanning import scan
from .tensors import TensorReader, open_tensors

__all__ = [
    "Attention",
    "Dim",
    "Feed",
    "Gemm",
    "Inventory",
    "Module",
    "Place",
    "TensorInfo",
    "TensorReader",
    "inventory_of_model",
    "mirrored_files",
    "open_tensors",
    "scan",
]
