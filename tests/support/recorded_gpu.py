"""A GPU that is none: recorded timings for the sweep, the CPU for the models."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from llama import Shape
from recorded_device import RecordedDevice
from steps import Clock, begin
from survey import Survey

from gacprof.core.points import Environment, Point
from gacprof.sweeping import load_suite

TOY = Shape(
    "a toy", 32, 80, 2, 1, 1, 64, "float32",
    prefill=(4,), decode_batches=(1, 2), decode_steps=1, compiled_layers=0,
)  # fmt: skip

H200 = Environment(
    "cuda", "NVIDIA H200", "sm90", {"sm_count": 132, "memory_bytes": 141 << 30}, {"torch": "2.9.1"}
)

SUITE = """
name = "small"
[timing]
blocks = 4
processes = 1
[[sweep]]
operator = "linear"
axis = "K"
values = [{ from = 64, to = 128, step = 4 }]
dims = { M = 2048, N = 2048 }
dtype = "float16"
[[sweep]]
operator = "attention"
axis = "head_dim"
values = [{ from = 64, to = 128, step = 8 }]
dims = { batch = 4, heads = 32, q_len = 2048 }
dtype = "float16"
"""


def latency_us(point: Point) -> float:
    """Work plus a launch, half as much again where a dim is no multiple of 8; attention has a step
    beyond 96."""
    d = point.dim
    if point.operator != "linear":
        head_dim = d.get("head_dim", 8)
        return (10.0 + head_dim / 8) * (1.4 if head_dim > 96 else 1.0)
    aligned = d["N"] % 8 == 0 and d["K"] % 8 == 0
    return (5.0 + d["M"] * d["N"] * d["K"] / 1e7) * (1.0 if aligned else 1.5)


class Gpu:
    """A recorded H200 that is swept by that name; NVML is asked about a GPU 7 that is not here."""

    def __init__(self, patch: pytest.MonkeyPatch, suite: str) -> None:
        self._patch, self._suite = patch, load_suite(suite)
        self.answers()

    def answers(self, answer=latency_us) -> None:
        device = RecordedDevice(answer, H200)
        self._patch.setattr("gacprof.api.sweeps.sweeper", lambda name, **_: nullcontext(device))

    def survey(self, folder, *, resume=False, budget_s=None, shape=TOY) -> Survey:
        begin(folder, {"device": H200.name}, resume)
        return Survey(
            folder, "cuda:7", H200, self._suite, shape, "cpu", Clock(budget_s), lambda line: None
        )
