"""The compressors whose checkpoints are known by name, and the methods that can be run: one file
each, and one line here. Other packages bring their compressors by entry points."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from gacprof.compressors.asvd import ActivationAware, Asvd
from gacprof.compressors.compressor import Compressor
from gacprof.compressors.llmpruner import LlmPruner, TaylorPruning
from gacprof.compressors.method import LowRank
from gacprof.compressors.palu import GroupedHeads, Palu
from gacprof.compressors.slicegpt import SliceGpt
from gacprof.compressors.svdllm import PlainSvd, SvdLlm, Whitened
from gacprof.core.errors import CompressionError
from gacprof.core.plugins import brought

__all__ = ["METHODS", "Compressor", "compressors", "method_named"]

_OWN: tuple[Compressor, ...] = (Palu(), Asvd(), SvdLlm(), SliceGpt(), LlmPruner())

METHODS: dict[str, Callable[..., LowRank | TaylorPruning]] = {
    "asvd": ActivationAware,
    "svd-llm": Whitened,
    "palu": GroupedHeads,
    "llm-pruner": TaylorPruning,
    "svd": PlainSvd,
}


@cache
def compressors() -> tuple[Compressor, ...]:
    """In order of asking; those of other packages, classes by entry points, come last."""
    return (*_OWN, *(found() for found in brought("compressors").values()))


def method_named(name: str, options: dict[str, Any]) -> LowRank | TaylorPruning:
    """The method of that name with its own options. Raises :class:`CompressionError`."""
    if name not in METHODS:
        raise CompressionError(f"unknown method '{name}' (there are {', '.join(METHODS)})")
    try:
        return METHODS[name](**options)
    except TypeError:
        raise CompressionError(f"{name} does not take {', '.join(options)}") from None
