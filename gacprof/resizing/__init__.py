"""Plan → new weights, streamed tensor by tensor. Needs numpy only."""

from __future__ import annotations

from gacprof.resizing.result import RealignResult, Resized
from gacprof.resizing.run import fuse, realign, realign_by_strategy, realign_uniform

__all__ = [
    "RealignResult",
    "Resized",
    "fuse",
    "realign",
    "realign_by_strategy",
    "realign_uniform",
]
