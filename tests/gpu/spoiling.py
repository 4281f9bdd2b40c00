"""A GPU whose products misbehave by their K: it is opened in worker processes by the tests."""

from __future__ import annotations

import torch

from gacprof import operators
from gacprof.core.points import Point
from gacprof.devices.cuda import CudaDevice
from gacprof.operators.base import Prepared
from gacprof.operators.products import LinearProduct

ILLEGAL, TOO_LARGE, REFUSED, WAITING = 101, 102, 103, 104


class Spoiling(LinearProduct):
    def prepare(self, point: Point, device: torch.device) -> Prepared:
        plain = super().prepare(point, device)
        wrong = {
            ILLEGAL: index_beyond_the_end,
            TOO_LARGE: allocate_twice_what_there_is,
            REFUSED: multiply_what_does_not_fit,
            WAITING: wait_for_the_device,
        }.get(point.dim["K"])
        return Prepared(wrong, plain.operands[:2]) if wrong else plain


def index_beyond_the_end(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A device-side assertion: nothing runs in this process any more."""
    return torch.ones(3, device=x.device)[torch.tensor([7], device=x.device)]


def allocate_twice_what_there_is(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    _, total = torch.cuda.mem_get_info(x.device)
    return torch.empty(2 * total, dtype=torch.uint8, device=x.device)


def multiply_what_does_not_fit(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.ones(32, 12, dtype=torch.int8, device=x.device)
    return torch._int_mm(y, y.t())


def wait_for_the_device(x: torch.Tensor, w: torch.Tensor) -> float:
    return (x @ w.t()).sum().item()


def open_spoiling() -> CudaDevice:
    operators.OPERATORS["linear"] = Spoiling()
    return CudaDevice(0)
