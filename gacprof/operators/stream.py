"""Rows read from L2 or DRAM by kernels of our own, to see what width loads have.

A matrix of ``rows`` by ``K`` is summed by rows (``row_sum``) or copied (``row_copy``). Triton marks
an integer argument divisible by 16, and only then dares wide loads; without ``specialise`` it does
not: a step that remains is the memory's doing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Flag, Point
from gacprof.operators.base import CACHE, Operand, Operator, register

if TYPE_CHECKING:
    import torch


class Stream(Operator):
    """``row_sum`` or ``row_copy``: the same dims and flags, another kernel and result."""

    dims = ("rows", "K")
    flags: Mapping[str, tuple[Flag, ...]] = {"specialise": (True, False), "cache": CACHE}
    dtypes = ("float16", "bfloat16", "float32")

    def __init__(self, name: str) -> None:
        self.name = name

    def flops(self, point: Point) -> int:
        return point.dims["rows"] * point.dims["K"] if self.name == "row_sum" else 0

    def operands(self, point: Point) -> tuple[Operand, ...]:
        rows, K = point.dims["rows"], point.dims["K"]
        source = Operand("weight", (rows, K), point.dtype)
        if self.name == "row_sum":
            return source, Operand("output", (rows,), "float32")
        return source, Operand("output", (rows, K), point.dtype)

    def call(self, point: Point, device: torch.device) -> Callable[..., Any]:
        if device.type != "cuda":
            raise MeasurementError(f"{self.name} is a Triton kernel: it needs a CUDA device")
        from gacprof.operators import stream_triton

        return stream_triton.launcher(self.name, bool(point.flags["specialise"]))


register(Stream("row_sum"))
register(Stream("row_copy"))
