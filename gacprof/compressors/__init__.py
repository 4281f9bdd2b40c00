"""The compressors whose checkpoints are known by name: one file each, and one line here.
Other packages bring theirs by entry points."""

from __future__ import annotations

from functools import cache

from gacprof.compressors.asvd import Asvd
from gacprof.compressors.compressor import Compressor
from gacprof.compressors.llmpruner import LlmPruner
from gacprof.compressors.palu import Palu
from gacprof.compressors.slicegpt import SliceGpt
from gacprof.compressors.svdllm import SvdLlm
from gacprof.core.plugins import brought

__all__ = ["Compressor", "compressors"]

_OWN: tuple[Compressor, ...] = (
    Palu(),
    Asvd(),
    SvdLlm(),
    SliceGpt(),
    LlmPruner(),
)


@cache
def compressors() -> tuple[Compressor, ...]:
    """In order of asking; those of other packages, classes by entry points, come last."""
    return (*_OWN, *(found() for found in brought("compressors").values()))
