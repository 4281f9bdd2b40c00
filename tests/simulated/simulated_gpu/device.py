"""The hidden device ``simulated:h100``: the path to a GPU, walked without one.

With this package's folder on the Python path, every verb takes it as any other package's device.
Its kernels cost what an H100's may, with cliffs where widths are no multiples: what it measures is
of no use but to try the way from a script to a map.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import ceil, prod

import torch

from gacprof.core.errors import MeasurementError
from gacprof.devices.cuda import CudaDevice
from simulated_gpu.gpu import PRODUCTS, SimulatedGpu
from simulated_gpu.torch_side import installed, modes

TFLOPS = {1: 1979.0, 2: 989.0, 4: 60.0}
"""By the operands' size in bytes."""
SMS, TILE, REACHED = 132, 128, 0.75
SHORTEST_NS, L2_BYTES_NS = 1_800, 5_500
TEMPLATES = (32, 64, 96, 128, 192, 256)
HEAVY_FLOPS = 2e9


class SimulatedH100(SimulatedGpu):
    name, major, minor = "Simulated H100", 9, 0
    l2_bytes, memory_bytes, page = 50 << 20, 81559 << 20, 256 << 10
    miss_ns = page / 3_000
    jitter, tick_ns = 0.004, 500
    capture_ns, instantiate_ns, trace_ns, plan_ns = 4_000_000, 50_000, 50_000_000, 440_000_000
    power_cap = 0.7
    remembers = False

    def __init__(self) -> None:
        super().__init__()
        self.cost = cost_ns
        self.heavy = lambda name, operands: flops(name, operands) >= HEAVY_FLOPS


def flops(name: str, operands: list[torch.Tensor]) -> float:
    if name == "scaled_dot_product_attention":
        q, k = operands[:2]
        return 4.0 * prod(q.shape) * k.shape[-2]
    if name not in PRODUCTS:
        return 0.0
    x, w = operands[1:3] if name == "addmm" else operands[:2]
    columns = w.shape[0] if name == "linear" else w.shape[-1]
    return 2.0 * prod(x.shape) * columns


def cost_ns(name: str, operands: list[torch.Tensor]) -> float:
    """A kernel's time whose operands are in the L2 cache."""
    memory = sum(t.nbytes for t in operands) / L2_BYTES_NS
    if name == "scaled_dot_product_attention":
        width = operands[0].shape[-1]
        template = next((t for t in TEMPLATES if t >= width), width)
        padded = 1.25 if width % 8 else 1.0
        arithmetic = flops(name, operands) * template / width / _rate(operands[0]) * padded
    elif name in PRODUCTS:
        x, w = operands[1:3] if name == "addmm" else operands[:2]
        columns = w.shape[0] if name == "linear" else w.shape[-1]
        rows, inner = prod(x.shape[:-1]), x.shape[-1]
        waves = ceil(ceil(rows / TILE) * ceil(columns / TILE) / SMS)
        arithmetic = 2.0 * waves * SMS * TILE * TILE * inner / _rate(x)
        wide = _misaligned(inner * x.itemsize) * (1.15 if columns % 8 else 1.0)
        return (SHORTEST_NS + arithmetic + memory) * wide
    else:
        arithmetic = 0.0
    return SHORTEST_NS + arithmetic + memory


def _rate(tensor: torch.Tensor) -> float:
    """Operations a nanosecond."""
    return REACHED * TFLOPS.get(tensor.itemsize, 60.0) * 1e3


def _misaligned(row_bytes: int) -> float:
    return 1.0 if row_bytes % 16 == 0 else 1.35 if row_bytes % 4 == 0 else 1.8


class SimulatedDevice(CudaDevice):
    """torch's calls are replaced until it is closed, its tensors only while it works."""

    def __init__(self) -> None:
        self._gpu, self._held = SimulatedH100(), ExitStack()
        self._held.enter_context(installed(self._gpu, with_modes=False))
        super().__init__(0)
        self.torch_device = torch.device("cpu")
        self._modes = modes(self._gpu)

    @contextmanager
    def active(self) -> Iterator[None]:
        with ExitStack() as stack:
            for mode in self._modes:
                stack.enter_context(mode)
            stack.enter_context(super().active())
            yield

    def burn_in(self) -> None:
        self.synchronise()

    def close(self) -> None:
        super().close()
        self._held.close()


def open_simulated(name: str) -> SimulatedDevice:
    if name != "h100":
        raise MeasurementError(f"there is no simulated:{name}; use simulated:h100")
    return SimulatedDevice()


open_simulated.kind = "cuda"
