"""The CPU is measured for real; rules stop when they should; absent devices are told."""

import pytest
import torch

from gacprof import operators
from gacprof.errors import MeasurementError
from gacprof.measure.cpu import CpuDevice
from gacprof.measure.device import open_device
from gacprof.measure.stopping import Confidence, FixedCount


def test_the_cpu_times_real_calls_and_names_itself():
    device = CpuDevice()
    environment = device.environment
    assert environment.kind == "cpu" and environment.stack["torch"] == torch.__version__
    small = operators.point("linear", {"M": 8, "N": 8, "K": 8}, "float32")
    large = operators.point("linear", {"M": 512, "N": 512, "K": 512}, "float32")
    medians = []
    for point in (small, large):
        work = device.prepare(point)
        work.warm_up()
        timings = work.time(11)
        assert len(timings) == 11 and min(timings) > 0
        medians.append(sorted(timings)[5])
    assert medians[1] > 10 * medians[0]  # 262,144 times the work


def test_a_cold_point_has_more_operands_than_the_cache_holds():
    point = operators.point("linear", {"M": 1, "N": 512, "K": 512}, "float32", {"cache": "cold"})
    moved = operators.get("linear").bytes_moved(point)
    copies = CpuDevice._copies(moved, cold=True)
    cache = CpuDevice().environment.facts["last_level_cache_bytes"] or 0
    assert copies * moved > 2 * cache or copies == 512
    assert CpuDevice._copies(moved, cold=False) == 1


def test_what_a_cpu_cannot_do_is_said():
    device = CpuDevice()
    tf32 = operators.point("linear", {"M": 8, "N": 8, "K": 8}, "tf32")
    huge = operators.point("linear", {"M": 2**20, "N": 2**20, "K": 2**20}, "float32")
    with pytest.raises(MeasurementError, match="tf32"):
        device.prepare(tf32)
    with pytest.raises(MeasurementError, match="memory"):
        device.prepare(huge)


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "cpu:1", ""])
def test_unknown_devices_are_refused(name):
    with pytest.raises(MeasurementError, match="unknown device"):
        open_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_an_absent_gpu_is_told():
    with pytest.raises(MeasurementError, match="no CUDA device is usable"):
        open_device("cuda:0")


def test_a_fixed_count_stops_at_its_count():
    rule = FixedCount(7)
    rule.start()
    assert rule.batch() == 7
    rule.add([1.0] * 5)
    assert not rule.finished() and rule.batch() == 2
    rule.add([1.0] * 2)
    assert rule.finished()


def test_confidence_stops_early_on_quiet_timings_and_at_the_cap_on_noisy_ones():
    quiet = Confidence(half_width=0.01, least=10, cap_us=1e9)
    quiet.start()
    quiet.add([100.0] * 9)
    assert not quiet.finished()  # never before ten
    quiet.add([100.0])
    assert quiet.finished()

    noisy = Confidence(half_width=0.01, least=10, cap_us=5_000)
    noisy.start()
    noisy.add([100.0, 200.0] * 10)
    assert not noisy.finished()
    noisy.add([100.0, 200.0] * 10)
    assert noisy.finished()  # 6 ms are spent
