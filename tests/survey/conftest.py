"""A GPU that is none: recorded timings for the sweep, the CPU for the models."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gacprof.core.points import Environment, Point
from gacprof.devices.recorded import RecordedDevice
from gacprof.survey import end_to_end
from gacprof.survey.setting import Machine
from gacprof.survey.shapes import Shape

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
    """Work plus a launch, half as much again where a dim is no multiple of 8."""
    d = point.dim
    if point.operator != "linear":
        return 10.0 + d.get("head_dim", 8) / 8
    aligned = d["N"] % 8 == 0 and d["K"] % 8 == 0
    return (5.0 + d["M"] * d["N"] * d["K"] / 1e7) * (1.0 if aligned else 1.5)


@pytest.fixture(scope="session")
def suite(tmp_path_factory):
    path = tmp_path_factory.mktemp("suite") / "small.toml"
    path.write_text(SUITE)
    return str(path)


@pytest.fixture(scope="session")
def gpu():
    """What the recorded GPU is and answers, for tests that make one of their own."""
    return SimpleNamespace(environment=H200, latency_us=latency_us)


@pytest.fixture(scope="session")
def h200():
    """Index 7: no CUDA device of this machine, whichever it is, so that NVML is never asked."""
    return Machine(RecordedDevice(latency_us, H200), "cpu", 7, TOY, isolated=False)


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    import torch

    monkeypatch.setattr(end_to_end, "ROUNDS", 12)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
