"""The CPU is measured for real; absent devices are told."""

import pytest
import torch

from gacprof import operators
from gacprof.errors import MeasurementError
from gacprof.measure.cpu import CpuDevice
from gacprof.measure.device import Slot, open_device


@pytest.fixture
def device():
    opened = CpuDevice()
    yield opened
    opened.close()


def linear(m, n, k, dtype="float32", **flags):
    return Slot(operators.point("linear", {"M": m, "N": n, "K": k}, dtype, flags))


def test_the_cpu_times_real_calls_and_names_itself(device):
    environment = device.environment
    assert environment.kind == "cpu" and environment.stack["torch"] == torch.__version__
    session = device.session([linear(8, 8, 8), linear(512, 512, 512)])
    times = {0: [], 1: []}
    for _ in range(11):
        block = session.block([1, 0])
        assert {timed.slot for timed in block.calls} == {0, 1} and not block.failed
        for timed in block.calls:
            times[timed.slot].append(timed.us)
    assert min(times[0]) > 0 and min(times[1]) > 10 * min(times[0])  # 262,144 times the work


def test_cold_weights_are_others_each_time_warm_ones_the_same(device):
    session = device.session([linear(1, 64, 64, cache="cold"), linear(1, 64, 64)], 1 << 20)
    seen = {place: set() for place in (0, 1)}
    for place, addresses in seen.items():
        for _ in range(5):
            call = session._bind[place]()
            operands = next(c.cell_contents for c in call.__closure__
                            if isinstance(c.cell_contents, list))  # fmt: skip
            addresses.add(operands[1].data_ptr())
    assert (len(seen[0]), len(seen[1])) == (5, 1)


def test_what_a_cpu_cannot_do_is_said(device):
    session = device.session([linear(8, 8, 8, "tf32"), linear(2**20, 2**20, 2**20)])
    assert "tf32" in session.failed[0] and "memory" in session.failed[1]


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "cpu:1", ""])
def test_unknown_devices_are_refused(name):
    with pytest.raises(MeasurementError, match="unknown device"):
        open_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_an_absent_gpu_is_told():
    with pytest.raises(MeasurementError, match="no CUDA device is usable"):
        open_device("cuda:0")
