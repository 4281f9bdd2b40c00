"""``y[M, N] = x[M, K] · W[N, K]ᵀ (+ b[N])``: what every weight of a transformer does.

With PyTorch's ``Linear`` both leading dimensions are K and that of the result is N; the
token count M only quantises. ``bias`` matters because it selects another path: ``addmm``
may go to cuBLASLt where the bias-free product goes to cuBLAS, and M = 1 takes a GEMV kernel.
``layout`` is ``tn`` for a stored Wᵀ as in ``Linear``, ``nn`` for ``x @ W`` with W[K, N].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gacprof.operators.base import Prepared, itemsize, random_tensor
from gacprof.points import Flag, Point

if TYPE_CHECKING:
    import torch


class Linear:
    name = "linear"
    dims: tuple[str, ...] = ("M", "N", "K")
    default_dims: Mapping[str, int | str] = {}
    flags: Mapping[str, tuple[Flag, ...]] = {
        "bias": (False, True),
        "cache": ("warm", "cold"),
        "layout": ("tn", "nn"),
    }
    dtypes: tuple[str, ...] = ("float32", "tf32", "bfloat16", "float16")

    def flops(self, point: Point) -> int:
        d = point.dim
        return 2 * d["M"] * d["N"] * d["K"]

    def bytes_moved(self, point: Point) -> int:
        d = point.dim
        bias = d["N"] if point.flag["bias"] else 0
        elements = d["M"] * d["K"] + d["N"] * d["K"] + d["M"] * d["N"] + bias
        return elements * itemsize(point)

    def problem(self, point: Point) -> str | None:
        return None

    def prepare(self, point: Point, device: torch.device) -> Prepared:
        import torch
        from torch.nn.functional import linear

        d = point.dim
        x = random_tensor((d["M"], d["K"]), point, device, seed=1)
        stored = (d["N"], d["K"]) if point.flag["layout"] == "tn" else (d["K"], d["N"])
        w = random_tensor(stored, point, device, seed=2)
        b = random_tensor((d["N"],), point, device, seed=3) if point.flag["bias"] else None
        if point.flag["layout"] == "tn":
            return Prepared(linear, (x, w, b))
        if b is None:
            return Prepared(torch.mm, (x, w))
        return Prepared(torch.addmm, (b, x, w))
