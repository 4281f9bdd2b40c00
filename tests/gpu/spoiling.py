"""A GPU whose points misbehave by their K: it is opened in worker processes by the tests."""

from __future__ import annotations

import torch

from gacprof.measure.cuda import CudaDevice
from gacprof.operators.base import Prepared

ILLEGAL, TOO_LARGE, REFUSED = 101, 102, 103


class Spoiling(CudaDevice):
    def prepare(self, point):  # type: ignore[no-untyped-def]
        work = super().prepare(point)
        work._call = {
            ILLEGAL: Prepared(self.index_beyond_the_end, ()),
            TOO_LARGE: Prepared(self.allocate_twice_what_there_is, ()),
            REFUSED: Prepared(self.multiply_what_does_not_fit, ()),
        }.get(point.dim["K"], work._call)
        return work

    def index_beyond_the_end(self) -> torch.Tensor:
        """A device-side assertion: nothing runs in this process any more."""
        return torch.ones(3, device=self.torch_device)[torch.tensor([7], device=self.torch_device)]

    def allocate_twice_what_there_is(self) -> torch.Tensor:
        _, total = torch.cuda.mem_get_info(self.index)
        return torch.empty(2 * total, dtype=torch.uint8, device=self.torch_device)

    def multiply_what_does_not_fit(self) -> torch.Tensor:
        x = torch.ones(32, 12, dtype=torch.int8, device=self.torch_device)
        return torch._int_mm(x, x.t())


def open_spoiling() -> CudaDevice:
    return Spoiling(0)
