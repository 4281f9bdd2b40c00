"""One layer of a mixture of experts: tokens grouped by expert, each group its own product.

``y[T, N]``: rows of ``x[T, K]`` are sorted by expert, expert e multiplies its rows by
``w[e, K, N]``. ``call`` is ``grouped`` for PyTorch's grouped product (one launch; bfloat16),
or ``loop`` for one product an expert, as models without it do. ``routing`` is ``even``, or
``skewed`` where half of the tokens go to one expert and the rest are spread evenly: group
sizes are then what the router made them, and almost never aligned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gacprof.core.points import Flag, Point
from gacprof.operators.base import Prepared, itemsize, random_tensor

if TYPE_CHECKING:
    import torch


class Experts:
    name = "experts"
    dims: tuple[str, ...] = ("experts", "tokens", "N", "K")
    default_dims: Mapping[str, int | str] = {}
    flags: Mapping[str, tuple[Flag, ...]] = {
        "call": ("grouped", "loop"),
        "routing": ("even", "skewed"),
        "cache": ("warm", "cold"),
    }
    dtypes: tuple[str, ...] = ("bfloat16", "float16", "float32", "tf32")

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

            return Prepared(loop, (x, w), inputs=(0,), weights=(1,))
        ends = torch.tensor(sizes, device=device).cumsum(0).to(torch.int32)
        return Prepared(
            lambda x, w, ends: torch._grouped_mm(x, w, offs=ends),
            (x, w, ends),
            inputs=(0,),
            weights=(1,),
        )


def group_sizes(point: Point) -> list[int]:
    """Tokens by expert; they add up to all tokens."""
    experts, tokens = point.dim["experts"], point.dim["tokens"]
    favoured = tokens // 2 if point.flag["routing"] == "skewed" and experts > 1 else 0
    share, over = divmod(tokens - favoured, experts)
    sizes = [share + (expert < over) for expert in range(experts)]
    sizes[0] += favoured
    return sizes
