"""A weight's product: what nearly all of a transformer's time goes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gacprof.core.dtypes import ITEMSIZE, RESULTS
from gacprof.core.points import Flag, Point
from gacprof.operators.base import CACHE, Operand, Operator, register

if TYPE_CHECKING:
    import torch


class Linear(Operator):
    """``y[M, N] = x[M, K] · W[N, K]ᵀ (+ b[N])``, where M counts tokens.

    ``layout`` is ``tn`` for a stored Wᵀ as in ``torch.nn.Linear``, ``nn`` for ``x @ W`` with W[K,
    N]. ``offset`` moves x and W by this many elements past an aligned address.
    """

    name = "linear"
    dims = ("M", "N", "K")
    flags: Mapping[str, tuple[Flag, ...]] = {
        "bias": (False, True),  # addmm may go to cuBLASLt where a product without goes to cuBLAS
        "cache": CACHE,
        "layout": ("tn", "nn"),
        "offset": (0, 1, 2, 4, 8),  # kernels choose their load width by the address too
    }

    def flops(self, point: Point) -> int:
        return 2 * point.dims["M"] * point.dims["N"] * point.dims["K"]

    def result_bytes(self, point: Point) -> int:
        return point.dims["M"] * point.dims["N"] * ITEMSIZE[RESULTS[point.dtype]]

    def operands(self, point: Point) -> tuple[Operand, ...]:
        M, N, K = (point.dims[name] for name in self.dims)
        offset = int(point.flags.get("offset", 0))
        stored = (K, N) if point.flags.get("layout") == "nn" else (N, K)
        x = Operand("input", (M, K), point.dtype, offset)
        weight = Operand("weight", stored, point.dtype, offset)
        bias = Operand("input", (N,), point.dtype)
        return (x, weight, bias) if point.flags.get("bias") else (x, weight)

    def call(self, point: Point, device: torch.device) -> Callable[..., Any]:
        import torch

        if point.flags["layout"] == "tn":
            return torch.nn.functional.linear
        if point.flags["bias"]:
            return lambda x, weight, bias: torch.addmm(bias, x, weight)
        return torch.mm


register(Linear())


class Quantised(Linear):
    """``x[M, K] · W[N, K]ᵀ`` of 8-bit operands: ``torch._int_mm`` (int8 → int32) and
    ``torch._scaled_mm`` (fp8, one scale an operand, → bfloat16). ``fast_accum`` lets Hopper's fp8
    tensor cores add up in fewer bits, as inference engines do."""

    name = "quantised"
    flags: Mapping[str, tuple[Flag, ...]] = {"cache": CACHE, "fast_accum": (False, True)}
    dtypes = ("int8", "float8_e4m3")

    def problem(self, point: Point) -> str:
        if point.flags["fast_accum"] and point.dtype == "int8":
            return "int8 products are exact: fast_accum is for float8"
        return ""

    def call(self, point: Point, device: torch.device) -> Callable[..., Any]:
        import torch

        if point.dtype == "int8":
            return lambda x, w: torch._int_mm(x, w.t())
        scale = torch.ones((), device=device)
        fast = bool(point.flags["fast_accum"])
        options: dict[str, Any] = {"out_dtype": torch.bfloat16, "use_fast_accum": fast}
        return lambda x, w: torch._scaled_mm(x, w.t(), scale, scale, **options)


register(Quantised())
