"""Triton kernels that read rows: how wide a load the compiler dares.

Triton's JIT tells its compiler of an integer argument only whether 16 divides it. Compiled for
every architecture of the data sheet, with no GPU (:mod:`gacprof.kernels.static`), a row copy loads
16 bytes at once where it does and single elements where it does not.
"""

from __future__ import annotations

from gacprof.core.points import Point
from gacprof.rules.target import Rule, Served, Target

PTX = "PTX of our row copy compiled for the architecture, Triton 3.7.1 (gacprof/kernels/static.py)"
WIDE = Rule("rows of a multiple of 16: ld.global.v4, 16 bytes a load", PTX, "binary")
NARROW = Rule(
    "Triton is told of divisibility by 16 only: single elements are loaded", PTX, "binary"
)


def serve(point: Point, target: Target) -> Served:
    if point.dim["K"] % 16 == 0 and point.flag.get("specialise", True):
        return Served(1, "16-byte loads", (WIDE,))
    return Served(2, "single-element loads", (NARROW,))
