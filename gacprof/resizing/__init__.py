"""Plan → new weights, streamed tensor by tensor. Needs numpy only, but for GGUF."""

from __future__ import annotations

from gacprof.resizing.from_gguf import ImportResult, import_gguf
from gacprof.resizing.result import RealignResult, Resized
from gacprof.resizing.run import fuse, realign, realign_by_strategy, realign_uniform

__all__ = [
    "ImportResult",
    "RealignResult",
    "Resized",
    "fuse",
    "import_gguf",
    "realign",
    "realign_by_strategy",
    "realign_uniform",
]
