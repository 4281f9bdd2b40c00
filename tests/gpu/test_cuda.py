"""The CUDA path on a GPU, real or virtual: graphs, names, failures; times on a real one."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from gacprof.core.points import Axis, Point
from gacprof.devices.device import Device, open_device
from gacprof.operators import canonical

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.fixture(scope="module", params=[False, True], ids=["in-process", "isolated"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    device = open_device("cuda", isolated=request.param)
    yield device
    device.close()


def points(axis: Axis) -> list[Point]:
    return [canonical(axis.point(size)) for size in axis.sizes]


def axis(operator: str, dim: str, sizes: tuple[int, ...], dtype: str = "float16") -> Axis:
    fixed = {
        "linear": {"M": 256, "N": 512, "K": 512},
        "attention": {"heads": 4, "q_len": 128, "head_dim": 64},
        "row_sum": {"rows": 256, "K": 256},
    }[operator]
    return Axis(operator, dim, sizes, {k: v for k, v in fixed.items() if k != dim}, dtype)


def test_a_block_times_each_call_once_and_replicates_too(device: Device) -> None:
    [session] = device.prepare([points(axis("linear", "K", (64, 107, 2048)))])
    assert not session.failures
    times = session.time_block([2, 0, 1, 2]).times_us
    assert len(times) == 4
    if device.environment.kind == "virtual":
        assert all(map(math.isnan, times))
    else:
        assert 0 < times[1] < times[0]
        assert times[3] == pytest.approx(times[0], rel=0.2)


def test_kernels_have_names(device: Device) -> None:
    [session] = device.prepare([points(axis("linear", "K", (64, 107)))])
    assert all(session.kernels[index] for index in (0, 1))
    attention = axis("attention", "head_dim", (64, 107, 128))
    flash = Axis(**{**vars(attention), "flags": {"backend": "flash"}})
    [session] = device.prepare([points(flash)])
    padded = session.kernels[1]
    assert any("flash_fwd" in run.name for run in session.kernels[0])
    assert len(padded) > len(session.kernels[0])  # copies to the next multiple of 8


def test_triton_kernels_are_launched_under_their_names(device: Device) -> None:
    pytest.importorskip("triton")
    [session] = device.prepare([points(axis("row_sum", "K", (256, 257)))])
    assert not session.failures
    assert [run.name for run in session.kernels[0]] == ["gacprof_row_sum"]


def test_a_refused_point_and_one_that_does_not_fit_are_failures(device: Device) -> None:
    sizes = (4096, 4100)
    refused = points(Axis("quantised", "K", sizes, {"M": 32, "N": 64}, "int8"))
    too_large = points(Axis("linear", "N", (2**30,), {"M": 16, "K": 65536}, "float16"))
    [session] = device.prepare([refused + too_large])
    assert sorted(session.failures) == [1, 2]
    assert len(session.time_block([0, 1, 2]).times_us) == 3


def test_cold_and_warm_sessions_may_be_open_side_by_side(device: Device) -> None:
    warm = axis("linear", "N", (128, 256))
    cold = Axis(**{**vars(warm), "flags": {"cache": "cold", "bias": True}})
    sessions = [*device.prepare([points(warm), points(cold)]), *device.prepare([points(warm)])]
    for _ in range(3):
        for session in sessions:
            assert len(session.time_block([0, 1, 0]).times_us) == 3 and not session.failures
