"""Matrix products: a weight's, batched, of 8-bit operands, and one per expert."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Flag, Point
from gacprof.operators.base import Operator, Prepared, itemsize, moved_off, random_tensor

if TYPE_CHECKING:
    import torch

RESULT_BYTES = {"int8": 4, "float8_e4m3": 2}
"""Bytes of one element of an 8-bit product's result: int32, bfloat16."""


def _product(
    call: Callable[..., Any], x: torch.Tensor, w: torch.Tensor, *others: torch.Tensor
) -> Prepared:
    return Prepared(call, (x, w, *others), inputs=(0,), weights=(1,))


class LinearProduct(Operator):
    """``y[M, N] = x[M, K] · W[N, K]ᵀ (+ b[N])``: what every weight of a transformer does.

    With PyTorch's ``Linear`` both leading dimensions are K and that of the result is N; the
    token count M only quantises. ``bias`` matters because it selects another path: ``addmm``
    may go to cuBLASLt where the bias-free product goes to cuBLAS. ``layout`` is ``tn`` for a
    stored Wᵀ as in ``Linear``, ``nn`` for ``x @ W`` with W[K, N].

    A GEMV is this operator with M from 1 to 16: PyTorch makes the same call, and which kernel
    serves it is cuBLAS's choice. An operator of its own would give one piece of work two names.

    ``offset`` moves x and W that many elements past an aligned address, as a slice of a larger
    buffer would be. ``compiled`` is a counterfactual: the same product through
    ``torch.compile``, without (``plain``) and with (``padded``) Inductor's ``shape_padding``,
    which pads to aligned sizes where its own benchmark says that it pays. Compiling takes about
    a second a point: for a handful of points, not for a sweep of thousands.
    """

    name = "linear"
    dims = ("M", "N", "K")
    flags: Mapping[str, tuple[Flag, ...]] = {
        "bias": (False, True),
        "cache": ("warm", "cold"),
        "layout": ("tn", "nn"),
        "offset": (0, 1, 2, 4, 8),
        "compiled": ("none", "plain", "padded"),
    }
    omitted_if_default = ("offset", "compiled")
    dtypes = ("float32", "tf32", "bfloat16", "float16")

    def flops(self, point: Point) -> int:
        d = point.dim
        return 2 * d["M"] * d["N"] * d["K"]

    def bytes_moved(self, point: Point) -> int:
        d = point.dim
        bias = d["N"] if point.flag["bias"] else 0
        elements = d["M"] * d["K"] + d["N"] * d["K"] + d["M"] * d["N"] + bias
        return elements * itemsize(point)

    def problem(self, point: Point) -> str | None:
        if point.flag.get("offset") and point.flag["cache"] == "cold":
            return "an offset is measured warm: copies made to be cold are aligned again"
        return None

    def prepare(self, point: Point, device: torch.device) -> Prepared:
        import torch
        from torch.nn.functional import linear

        d = point.dim
        offset = int(point.flag.get("offset", 0))

        def operand(shape: tuple[int, ...], seed: int) -> torch.Tensor:
            return moved_off(random_tensor(shape, point, device, seed), offset)

        stored = (d["N"], d["K"]) if point.flag["layout"] == "tn" else (d["K"], d["N"])
        x, w = operand((d["M"], d["K"]), 1), operand(stored, 2)
        b = random_tensor((d["N"],), point, device, seed=3) if point.flag["bias"] else None
        call: Callable[..., Any] = linear
        operands: tuple[torch.Tensor | None, ...] = (x, w, b)
        weight, inputs = 1, (0,) if b is None else (0, 2)
        if point.flag["layout"] == "nn" and b is None:
            call, operands = torch.mm, (x, w)
        elif point.flag["layout"] == "nn":
            call, operands, weight, inputs = torch.addmm, (b, x, w), 2, (0, 1)
        how = str(point.flag.get("compiled", "none"))
        if how != "none":
            call = _compiled(call, operands, padded=how == "padded")
        if offset:  # their address is what is measured: they stay where they are
            return Prepared(call, operands)
        return Prepared(call, operands, inputs, weights=(weight,))


_COMPILED = count()


def _compiled(
    call: Callable[..., Any], operands: tuple[torch.Tensor | None, ...], padded: bool
) -> Callable[..., Any]:
    """The call through torch.compile, compiled now and for this shape alone.

    Raises :class:`MeasurementError` with the cause where it cannot be: PyTorch's own message
    begins with which backend raised, and names the cause further down.
    """
    import torch

    def product(*operands: Any) -> Any:
        return call(*operands)

    # Dynamo compiles at most eight shapes of one code object, and runs others as they are.
    product.__code__ = product.__code__.replace(co_name=f"product_{next(_COMPILED)}")
    compiled = torch.compile(product, dynamic=False, options={"shape_padding": padded})
    try:
        with torch.inference_mode():  # as it will be called: else it is compiled again then
            compiled(*operands)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # Dynamo, Inductor and Triton raise what they like
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        cause = next((line for line in lines if not line.endswith("raised:")), type(error).__name__)
        raise MeasurementError(f"torch.compile does not work here: {cause}") from None
    return compiled


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


class QuantisedProduct(Operator):
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
    omitted_if_default = ("fast_accum",)
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
