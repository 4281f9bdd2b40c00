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

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Flag, Point
from gacprof.operators.base import Operator, Prepared, itemsize, moved_off, random_tensor

if TYPE_CHECKING:
    import torch


class Linear(Operator):
    name = "linear"
    dims = ("M", "N", "K")
    flags: Mapping[str, tuple[Flag, ...]] = {
        "bias": (False, True),
        "cache": ("warm", "cold"),
        "layout": ("tn", "nn"),
        "offset": (0, 1, 2, 4, 8),
        "compiled": ("none", "plain", "padded"),
    }
    unspoken = ("offset", "compiled")
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
        places = 0, 1
        if point.flag["layout"] == "nn" and b is None:
            call, operands = torch.mm, (x, w)
        elif point.flag["layout"] == "nn":
            call, operands, places = torch.addmm, (b, x, w), (1, 2)
        how = str(point.flag.get("compiled", "none"))
        if how != "none":
            call = _compiled(call, operands, padded=how == "padded")
        if offset:  # their address is what is measured: they stay where they are
            return Prepared(call, operands)
        return Prepared(call, operands, inputs=places[:1], weights=places[1:])


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
