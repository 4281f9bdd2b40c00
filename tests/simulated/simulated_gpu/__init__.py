"""A simulated CUDA GPU for tests, and as the hidden device ``simulated:h100`` (see ``device``)."""

from simulated_gpu.gpu import EVENT_NS, GAP_NS, MISS_NS, PAGE, SPIN, SimulatedGpu, kineto_event
from simulated_gpu.torch_side import installed, opened

__all__ = [
    "EVENT_NS", "GAP_NS", "MISS_NS", "PAGE", "SPIN", "SimulatedGpu", "installed", "kineto_event",
    "opened",
]  # fmt: skip
