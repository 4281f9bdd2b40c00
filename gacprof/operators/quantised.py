"""Products of 8-bit operands: ``torch._int_mm`` (int8 → int32), ``torch._scaled_mm`` (fp8).

``x[M, K] · W[N, K]ᵀ`` as in :mod:`gacprof.operators.linear`; fp8 operands carry one scale
each and the result is bfloat16. What a device asks of the dims (on CUDA, K and N in
multiples of 8 for int8 and 16 for fp8, M > 16 for int8) is PyTorch's to say: a point that it
refuses fails with its reason.

``fast_accum`` lets Hopper's fp8 tensor cores add up with fewer bits (``use_fast_accum``), as
inference engines do; without, cuBLASLt promotes partial sums to float32 in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gacprof.core.points import Flag, Point
from gacprof.operators.base import Prepared, random_tensor

if TYPE_CHECKING:
    import torch

RESULT_BYTES = {"int8": 4, "float8_e4m3": 2}
"""Bytes of one element of the result: int32, bfloat16."""


class Quantised:
    name = "quantised"
    dims: tuple[str, ...] = ("M", "N", "K")
    default_dims: Mapping[str, int | str] = {}
    flags: Mapping[str, tuple[Flag, ...]] = {
        "cache": ("warm", "cold"),
        "fast_accum": (False, True),
    }
    unspoken = ("fast_accum",)
    dtypes: tuple[str, ...] = ("int8", "float8_e4m3")

    def flops(self, point: Point) -> int:
        d = point.dim
        return 2 * d["M"] * d["N"] * d["K"]

    def bytes_moved(self, point: Point) -> int:
        d = point.dim
        result = d["M"] * d["N"] * RESULT_BYTES[point.dtype]
        return (d["M"] + d["N"]) * d["K"] + result

    def problem(self, point: Point) -> str | None:
        if point.flag.get("fast_accum") and point.dtype == "int8":
            return "int8 products are exact: fast_accum is for float8"
        return None

    def prepare(self, point: Point, device: torch.device) -> Prepared:
        import torch

        d = point.dim
        x = random_tensor((d["M"], d["K"]), point, device, seed=1)
        w = random_tensor((d["N"], d["K"]), point, device, seed=2)
        if point.dtype == "int8":
            return Prepared(lambda x, w: torch._int_mm(x, w.t()), (x, w), inputs=(0,), weights=(1,))
        one = torch.ones((), device=device)
        fast = bool(point.flag.get("fast_accum", False))

        def scaled(x: torch.Tensor, w: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
            return torch._scaled_mm(
                x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast
            )

        return Prepared(scaled, (x, w, one), inputs=(0,), weights=(1,))
