"""Reading rows from L2 or DRAM with kernels of our own, to see what width loads have.

A row-major matrix of ``rows`` by ``K`` is summed by rows (``row_sum``, as in the papers'
Figure 8c) or copied (``row_copy``). Their product is the working set, inside the L2 or beyond
it. Rows lie one after another, so K is the stride too, and decides where a row starts.

Triton marks an integer argument divisible by 16 if it is, and only then dares wide loads.
``specialise`` = False withholds the mark: what then still differs between sizes is the
memory's doing, not the compiler's. Needs Triton and a GPU (or Triton's interpreter).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Flag, Point
from gacprof.operators.base import Operator, Prepared, itemsize, random_tensor, written_tensor

if TYPE_CHECKING:
    import torch


class Stream(Operator):
    """``row_sum`` or ``row_copy``: the same dims and flags, another kernel."""

    dims = ("rows", "K")
    flags: Mapping[str, tuple[Flag, ...]] = {
        "specialise": (True, False),
        "cache": ("warm", "cold"),
    }
    dtypes = ("float16", "bfloat16", "float32")

    def __init__(self, name: str) -> None:
        self.name = name

    def flops(self, point: Point) -> int:
        """One addition an element for a sum; none for a copy."""
        return _elements(point) if self.name == "row_sum" else 0

    def bytes_moved(self, point: Point) -> int:
        read = _elements(point) * itemsize(point)
        written = read if self.name == "row_copy" else 4 * point.dim["rows"]  # float32 sums
        return read + written

    def prepare(self, point: Point, device: torch.device) -> Prepared:
        import torch

        if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise MeasurementError(f"{self.name} is a Triton kernel: it needs a CUDA device")
        try:
            from gacprof.operators import stream_triton
        except ImportError:
            raise MeasurementError(
                f"{self.name} is a Triton kernel and Triton is not installed: "
                "pip install gacprof[triton]"
            ) from None
        rows, K = point.dim["rows"], point.dim["K"]
        matrix = random_tensor((rows, K), point, device, seed=1)
        copies = self.name == "row_copy"
        shape, dtype = ((rows, K), matrix.dtype) if copies else ((rows,), torch.float32)
        target = written_tensor(shape, dtype, device, number=2)
        call = stream_triton.launching(self.name, bool(point.flag["specialise"]))
        return Prepared(call, (matrix, target), weights=(0,), outputs=(1,))


def _elements(point: Point) -> int:
    return point.dim["rows"] * point.dim["K"]
