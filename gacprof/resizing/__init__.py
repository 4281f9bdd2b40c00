"""Plan → new weights, streamed tensor by tensor. Needs numpy only, but for GGUF."""

from __future__ import annotations

from gacprof.resizing.from_gguf import ImportResult, import_gguf
from gacprof.resizing.request import RealignResult, Resized
from gacprof.resizing.run import realign
from gacprof.resizing.sizes import Fuse, Padding, Uniform

__all__ = [
    "Fuse",
    "ImportResult",
    "Padding",
    "RealignResult",
    "Resized",
    "Uniform",
    "import_gguf",
    "realign",
]
