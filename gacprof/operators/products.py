"""Matrix products beside ``Linear``'s: batched, of 8-bit operands, and one per expert."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gacprof.core.points import Flag, Point
from gacprof.operators.base import Operator, Prepared, itemsize, random_tensor

if TYPE_CHECKING:
    import torch

RESULT_BYTES = {"int8": 4, "float8_e4m3": 2}
"""Bytes of one element of an 8-bit product's result: int32, bfloat16."""


def _product(
    call: Callable[..., Any], x: torch.Tensor, w: torch.Tensor, *others: torch.Tensor
) -> Prepared:
    return Prepared(call, (x, w, *others), inputs=(0,), weights=(1,))


class Bmm(Operator):
    """``y[B, M, N] = x[B, M, K] · w[B, K, N]``: as many equal products in one call.

    What attention's math path does, and what experts of equal load or adapters of a batch do.
    ``layout`` is ``nn`` for w as written here, ``tn`` for w stored as [B, N, K].
    """

    name = "bmm"
    dims = ("batch", "M", "N", "K")
    flags: Mapping[str, tuple[Flag, ...]] = {"cache": ("warm", "cold"), "layout": ("nn", "tn")}
    dtypes = ("float32", "tf32", "bfloat16", "float16")

    def flops(self, point: Point) -> int:
        d = point.dim
        return 2 * d["batch"] * d["M"] * d["N"] * d["K"]

    def bytes_moved(self, point: Point) -> int:
        d = point.dim
        each = d["M"] * d["K"] + d["K"] * d["N"] + d["M"] * d["N"]
        return d["batch"] * each * itemsize(point)

    def prepare(self, point: Point, device: torch.device) -> Prepared:
        import torch

        d = point.dim
        x = random_tensor((d["batch"], d["M"], d["K"]), point, device, seed=1)
        stored = (d["K"], d["N"]) if point.flag["layout"] == "nn" else (d["N"], d["K"])
        w = random_tensor((d["batch"], *stored), point, device, seed=2)
        if point.flag["layout"] == "nn":
            return _product(torch.bmm, x, w)
        return _product(lambda x, w: torch.bmm(x, w.transpose(1, 2)), x, w)


class Quantised(Operator):
    """``x[M, K] · W[N, K]ᵀ`` of 8-bit operands: ``torch._int_mm`` (int8 → int32),
    ``torch._scaled_mm`` (fp8, one scale an operand, → bfloat16).

    What a device asks of the dims (on CUDA, K and N in multiples of 8 for int8 and 16 for fp8,
    M > 16 for int8) is PyTorch's to say: a point that it refuses fails with its reason.
    ``fast_accum`` lets Hopper's fp8 tensor cores add up with fewer bits (``use_fast_accum``), as
    inference engines do; without, cuBLASLt promotes partial sums to float32 in between.
    """

    name = "quantised"
    dims = ("M", "N", "K")
    flags: Mapping[str, tuple[Flag, ...]] = {
        "cache": ("warm", "cold"),
        "fast_accum": (False, True),
    }
    unspoken = ("fast_accum",)
    dtypes = ("int8", "float8_e4m3")

    def flops(self, point: Point) -> int:
        d = point.dim
        return 2 * d["M"] * d["N"] * d["K"]

    def bytes_moved(self, point: Point) -> int:
        d = point.dim
        return (d["M"] + d["N"]) * d["K"] + d["M"] * d["N"] * RESULT_BYTES[point.dtype]

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
            return _product(lambda x, w: torch._int_mm(x, w.t()), x, w)
        one = torch.ones((), device=device)
        fast = bool(point.flag.get("fast_accum", False))

        def scaled(x: torch.Tensor, w: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
            return torch._scaled_mm(
                x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast
            )

        return _product(scaled, x, w, one)


class Experts(Operator):
    """One layer of a mixture of experts: rows of ``x[T, K]`` are sorted by expert, and expert e
    multiplies its rows by ``w[e, K, N]``.

    ``call`` is ``grouped`` for PyTorch's grouped product (one launch; bfloat16), or ``loop`` for
    one product an expert, as models without it do. ``routing`` is ``even``, or ``skewed`` where
    half of the tokens go to one expert and the rest are spread evenly: group sizes are then what
    the router made them, and almost never aligned.
    """

    name = "experts"
    dims = ("experts", "tokens", "N", "K")
    flags: Mapping[str, tuple[Flag, ...]] = {
        "call": ("grouped", "loop"),
        "routing": ("even", "skewed"),
        "cache": ("warm", "cold"),
    }
    dtypes = ("bfloat16", "float16", "float32", "tf32")

    def flops(self, point: Point) -> int:
        d = point.dim
        return 2 * d["tokens"] * d["N"] * d["K"]

    def bytes_moved(self, point: Point) -> int:
        """Inputs, outputs, and the weights of every expert that has a token."""
        d = point.dim
        busy = sum(count > 0 for count in group_sizes(point))
        elements = d["tokens"] * (d["K"] + d["N"]) + busy * d["K"] * d["N"]
        return elements * itemsize(point)

    def problem(self, point: Point) -> str | None:
        if point.flag["call"] == "grouped" and point.dtype != "bfloat16":
            return "PyTorch's grouped product takes bfloat16 only; use call = 'loop'"
        return None

    def prepare(self, point: Point, device: torch.device) -> Prepared:
        import torch

        d = point.dim
        x = random_tensor((d["tokens"], d["K"]), point, device, seed=1)
        w = random_tensor((d["experts"], d["K"], d["N"]), point, device, seed=2)
        sizes = group_sizes(point)
        if point.flag["call"] == "loop":

            def loop(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
                groups = zip(x.split(sizes), w.unbind(), strict=True)
                return [rows @ weight for rows, weight in groups if len(rows)]

            return _product(loop, x, w)
        ends = torch.tensor(sizes, device=device).cumsum(0).to(torch.int32)
        return _product(lambda x, w, ends: torch._grouped_mm(x, w, offs=ends), x, w, ends)


def group_sizes(point: Point) -> list[int]:
    """Tokens by expert; they add up to all tokens."""
    experts, tokens = point.dim["experts"], point.dim["tokens"]
    favoured = tokens // 2 if point.flag["routing"] == "skewed" and experts > 1 else 0
    share, over = divmod(tokens - favoured, experts)
    sizes = [share + (expert < over) for expert in range(experts)]
    sizes[0] += favoured
    return sizes
