"""``y[B, M, N] = x[B, M, K] · w[B, K, N]``: as many equal products in one call.

What attention's math path does, and what experts of equal load or adapters of a batch do.
``layout`` is ``nn`` for w as written here, ``tn`` for w stored as [B, N, K].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gacprof.core.points import Flag, Point
from gacprof.operators.base import Prepared, itemsize, random_tensor

if TYPE_CHECKING:
    import torch


class Bmm:
    name = "bmm"
    dims: tuple[str, ...] = ("batch", "M", "N", "K")
    default_dims: Mapping[str, int | str] = {}
    flags: Mapping[str, tuple[Flag, ...]] = {"cache": ("warm", "cold"), "layout": ("nn", "tn")}
    dtypes: tuple[str, ...] = ("float32", "tf32", "bfloat16", "float16")

    def flops(self, point: Point) -> int:
        d = point.dim
        return 2 * d["batch"] * d["M"] * d["N"] * d["K"]

    def bytes_moved(self, point: Point) -> int:
        d = point.dim
        each = d["M"] * d["K"] + d["K"] * d["N"] + d["M"] * d["N"]
        return d["batch"] * each * itemsize(point)

    def problem(self, point: Point) -> str | None:
        return None

    def prepare(self, point: Point, device: torch.device) -> Prepared:
        import torch

        d = point.dim
        x = random_tensor((d["batch"], d["M"], d["K"]), point, device, seed=1)
        if point.flag["layout"] == "nn":
            w = random_tensor((d["batch"], d["K"], d["N"]), point, device, seed=2)
            return Prepared(torch.bmm, (x, w), inputs=(0,), weights=(1,))
        w = random_tensor((d["batch"], d["N"], d["K"]), point, device, seed=2)
        return Prepared(
            lambda x, w: torch.bmm(x, w.transpose(1, 2)), (x, w), inputs=(0,), weights=(1,)
        )
