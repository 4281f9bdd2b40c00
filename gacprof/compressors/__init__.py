"""The compressors whose checkpoints are known by name: one file each, and one line here."""

from __future__ import annotations

from gacprof.compressors.asvd import Asvd
from gacprof.compressors.compressor import Compressor
from gacprof.compressors.llmpruner import LlmPruner
from gacprof.compressors.palu import Palu
from gacprof.compressors.slicegpt import SliceGpt
from gacprof.compressors.svdllm import SvdLlm

__all__ = ["COMPRESSORS", "Compressor"]

COMPRESSORS: tuple[Compressor, ...] = (
    Palu(),
    Asvd(),
    SvdLlm(),
    SliceGpt(),
    LlmPruner(),
)
"""In order of asking."""
