"""The compression methods that can be run: one file each, and one line here.

How the tools lay out their checkpoints is known to :mod:`gacprof.checkpoint.layouts`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gacprof.checkpoint.layouts.layout import Compressor
from gacprof.core.errors import CompressionError
from gacprof.extras.compress.depth import DropLayers
from gacprof.extras.compress.methods.asvd import ActivationAware
from gacprof.extras.compress.methods.llmpruner import TaylorPruning
from gacprof.extras.compress.methods.method import LowRank, PlainSvd, TwoSided, Whitened
from gacprof.extras.compress.methods.palu import GroupedHeads

__all__ = ["METHODS", "Compressor", "Method", "method_named"]

Method = LowRank | TaylorPruning | DropLayers

METHODS: dict[str, Callable[..., Method]] = {
    "asvd": ActivationAware,
    "svd-llm": Whitened,
    "kfac-svd": TwoSided,
    "palu": GroupedHeads,
    "llm-pruner": TaylorPruning,
    "drop-layers": DropLayers,
    "svd": PlainSvd,
}


def method_named(name: str, options: dict[str, Any]) -> Method:
    """The method of that name with its own options. Raises :class:`CompressionError`."""
    if name not in METHODS:
        raise CompressionError(f"unknown method '{name}' (there are {', '.join(METHODS)})")
    try:
        return METHODS[name](**options)
    except TypeError:
        raise CompressionError(f"{name} does not take {', '.join(options)}") from None
