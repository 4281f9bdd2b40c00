"""A GPU's path with the GPU itself faked: what is timed, what is said when something is amiss.

The stand-in keeps a clock and a log of what was launched, and answers a trace from it.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from gacprof.sweeping.order import Visit
from gacprof.sweeping.visiting import measure_visit

from gacprof import operators
from gacprof.errors import MeasurementError
from gacprof.measure import cuda_work
from gacprof.measure.cuda import CudaDevice
from gacprof.measure.cuda_work import CudaWork, TracedWork, sleep_cycles
from gacprof.measure.kineto import Traced, calls, device_events
from gacprof.operators.base import Prepared
from gacprof.sweeping.suite import Timing

SPIN = "at::cuda::(anonymous namespace)::spin_kernel(long)"


class Gpu:
    """``launch`` runs a kernel of so many ns, ``gap_ns`` after the one before."""

    gap_ns = 500

    def __init__(self):
        self.now, self.log, self.traces, self.loses = 0, [], 0, []

    def launch(self, name, ns):
        self.log.append(Traced(name, self.now + self.gap_ns, self.now + self.gap_ns + ns))
        self.now = self.log[-1].end_ns

    def sleep(self, cycles):
        self.launch(SPIN, cycles // 2)

    def trace(self, run):
        self.traces += 1
        self.log = []
        run()
        lost = self.loses.pop(0) if self.loses else ()
        return [event for number, event in enumerate(self.log) if number not in lost]


@pytest.fixture
def gpu(monkeypatch):
    fake = Gpu()
    monkeypatch.setattr(cuda_work, "trace", fake.trace)
    for name, answer in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "device": lambda index: nullcontext(),
        "set_device": lambda index: None,
        "synchronize": lambda index=None: None,
        "empty_cache": lambda: fake.log.append("emptied"),
        "_sleep": fake.sleep,
        "mem_get_info": lambda index: (1 << 30, 8 << 30),
        "memory_reserved": lambda index: 6 << 30,
        "memory_allocated": lambda index: 1 << 30,
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    return fake


@pytest.fixture
def device(gpu, monkeypatch):
    made = CudaDevice(0)
    made.torch_device = torch.device("cpu")
    monkeypatch.setattr(made, "flush", lambda: gpu.launch("vectorized_elementwise_kernel", 40_000))
    made.__dict__["why_not_traced"] = ""
    return made


def pad_then_attend(gpu):
    gpu.launch("pad", 1_000)
    gpu.launch("attend", 9_000)


@pytest.mark.parametrize("cold", [False, True])
def test_a_call_is_timed_from_its_first_kernel_to_its_last_without_flush_and_sleeps(
    gpu, device, cold
):
    work = TracedWork(device, lambda: pad_then_attend(gpu), cold)
    assert work.time(3) == [10.5] * 3
    assert work.kernels() == ("pad", "attend")
    assert ("vectorized_elementwise_kernel" in {e.name for e in gpu.log}) is cold


def test_warming_up_takes_no_trace(gpu, device):
    TracedWork(device, lambda: pad_then_attend(gpu), cold=False).warm_up()
    assert gpu.traces == 0


def test_the_device_sleeps_for_longer_than_the_host_needs_to_enqueue(gpu, device, monkeypatch):
    """At best 300 µs to enqueue, and 900 µs until done; a first call takes far longer."""
    clock = iter([0, 9_000_000, 9_900_000, 0, 300_000, 900_000, 0, 310_000, 1_000_000])
    stand_in = SimpleNamespace(perf_counter_ns=lambda: next(clock))
    monkeypatch.setattr(cuda_work, "time", stand_in)
    work = TracedWork(device, lambda: gpu.launch("many", 1_000), cold=False)
    assert work.warm_up() == 900.0
    work.time(1)
    opening, _, closing = gpu.log[:3]
    assert opening.end_ns - opening.start_ns == 600_000 > closing.end_ns - closing.start_ns


@pytest.mark.parametrize(("rough_us", "traces"), [(10.0, 1), (5_000.0, 3)])
def test_short_calls_are_traced_ahead_long_ones_are_not(gpu, device, rough_us, traces):
    work = TracedWork(device, lambda: pad_then_attend(gpu), cold=False)
    work._rough_us = rough_us
    assert [len(work.time(n)) for n in (10, 5, 7)] == [10, 5, 7]
    assert gpu.traces == traces


def test_what_was_timed_ahead_while_the_clock_was_down_is_not_kept(gpu, device):
    work = TracedWork(device, lambda: pad_then_attend(gpu), cold=False)
    work._rough_us = 10.0
    work.time(10)
    work.throttled()
    work.time(10)
    assert gpu.traces == 2


def test_a_sleep_is_never_too_short_for_one_launch_nor_without_end():
    assert sleep_cycles(0.1) == 40_000
    assert sleep_cycles(50.0) == 200_000
    assert sleep_cycles(1e6) == 4_000_000


def test_what_a_trace_lost_is_traced_again(gpu, device):
    gpu.loses = [{0}, {1, 2}]
    work = TracedWork(device, lambda: pad_then_attend(gpu), cold=False)
    assert work.time(2) == [10.5] * 2
    assert gpu.traces == 3


def test_a_trace_that_keeps_losing_fails_the_point(gpu, device):
    gpu.loses = [{0}] * 3
    with pytest.raises(MeasurementError, match="lost events"):
        TracedWork(device, lambda: pad_then_attend(gpu), cold=False).time(2)


def test_a_call_that_lost_one_of_its_kernels_is_noticed(gpu):
    def run():
        for _ in range(2):
            gpu.sleep(40_000)
            pad_then_attend(gpu)
            gpu.sleep(1_000)

    gpu.loses = [{1}]
    with pytest.raises(MeasurementError, match="launched 1 kernels once and 2 another time"):
        calls(gpu.trace(run), 2)


def kineto_event(name, device_type, start_ns, duration_ns, **more):
    return SimpleNamespace(
        **more,
        name=lambda: name,
        device_type=lambda: device_type,
        start_ns=lambda: start_ns,
        duration_ns=lambda: duration_ns,
    )


def test_of_a_trace_only_what_the_device_did_counts():
    kinds = torch.autograd.DeviceType
    found = device_events(
        [
            kineto_event("cudaLaunchKernel", kinds.CPU, 5, 10),
            kineto_event("nvjet_hsh_128x256", kinds.CUDA, 20, 30),
            kineto_event("Activity Buffer Request", kinds.CPU, 25, 900),
            kineto_event("Stream Sync", kinds.CUDA, 20, 90, activity_type=lambda: "cuda_sync"),
        ]
    )
    assert found == [Traced("nvjet_hsh_128x256", 20, 50)]


def test_kinetos_own_events_can_be_read():
    """On a CPU nothing runs on a device, but the events are Kineto's."""
    with torch.autograd.profiler.profile(use_kineto=True) as traced:
        torch.ones(8) + 1
    events = traced.kineto_results.events()
    assert "aten::add" in {event.name() for event in events}
    assert device_events(events) == []
    cpu = [e for e in events if e.name() == "aten::add"]
    assert all(e.start_ns() > 0 and e.duration_ns() > 0 for e in cpu)


def test_opening_a_gpu_attaches_no_tracer_to_the_process(gpu):
    device = CudaDevice(0)
    device.torch_device = torch.device("cpu")
    assert gpu.traces == 0
    with pytest.raises(MeasurementError, match="unknown timer"):
        CudaDevice(0, "sundial")


def test_where_tracing_does_not_work_events_take_over_and_every_sample_says_so(gpu, monkeypatch):
    def refused(run):
        gpu.traces += 1
        raise MeasurementError("torch's profiler gives no device events")

    monkeypatch.setattr(cuda_work, "trace", refused)
    device = CudaDevice(0)
    device.torch_device = torch.device("cpu")
    assert device.timer == "cuda-events"
    tried = gpu.traces
    work = CudaWork(device, lambda: None, cold=False)
    assert work.remark() == (
        "timed by events, tracing does not work: torch's profiler gives no device events"
    )
    assert work.kernels() == () and gpu.traces == tried  # not tried again at every point


def test_a_trace_asked_for_where_none_can_be_had_is_an_error_at_once(gpu, monkeypatch):
    def refused(run):
        raise MeasurementError("torch's profiler gives no device events")

    monkeypatch.setattr(cuda_work, "trace", refused)
    monkeypatch.setattr(torch, "ones", lambda *size, device: torch.zeros(*size))
    with pytest.raises(MeasurementError, match="cannot be traced: torch's profiler gives no"):
        CudaDevice(0, "kineto")


def test_events_asked_for_are_no_remark_and_kernels_are_still_named(gpu):
    device = CudaDevice(0, "cuda-events")
    device.torch_device = torch.device("cpu")
    device.__dict__["why_not_traced"] = ""
    work = CudaWork(device, lambda: pad_then_attend(gpu), cold=False)
    assert (device.timer, work.remark()) == ("cuda-events", "")
    assert work.kernels() == ("pad", "attend")


class Product:
    """An operator as far as a device asks for one."""

    def __init__(self, gib=1, fails=None):
        self._gib, self._fails = gib, fails

    def bytes_moved(self, point):
        return self._gib << 30

    def prepare(self, point, device):
        if self._fails:
            raise self._fails
        return Prepared(lambda: None, ())


POINT = operators.point("linear", {"M": 1, "N": 1, "K": 1}, "float16")
FULL = torch.cuda.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB …"
)


def test_memory_that_torch_holds_in_reserve_counts_as_free(device, monkeypatch):
    """1 GiB is free, 5 more are torch's and unused."""
    monkeypatch.setattr(operators, "get", lambda name: Product(gib=5))
    device.prepare(POINT)
    monkeypatch.setattr(operators, "get", lambda name: Product(gib=6))
    with pytest.raises(MeasurementError, match=r"need 6.0 GiB, the GPU has 6.0 GiB free"):
        device.prepare(POINT)


def test_out_of_memory_is_said_in_one_line_and_gives_memory_back(gpu, device, monkeypatch):
    monkeypatch.setattr(operators, "get", lambda name: Product(fails=FULL))
    with pytest.raises(MeasurementError, match=r"out of GPU memory \(tried to allocate 2.00 GiB\)"):
        device.prepare(POINT)

    def call():
        raise FULL

    with pytest.raises(MeasurementError, match="out of GPU memory"):
        CudaWork(device, call, cold=False).warm_up()
    assert gpu.log == ["emptied", "emptied"]


@pytest.mark.parametrize(
    ("error", "usable"),
    [
        (None, True),
        (FULL, True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
)
def test_only_a_spoilt_context_is_unusable(device, monkeypatch, error, usable):
    def synchronise():
        if error:
            raise error

    monkeypatch.setattr(device, "synchronise", synchronise)
    assert device.usable() is usable


@pytest.mark.parametrize("dtype", ["float32", "tf32", "float16"])
def test_tf32_is_on_for_tf32_points_and_off_for_all_others(dtype):
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = dtype != "tf32"
        operators.set_precision(operators.point("linear", {"M": 1, "N": 1, "K": 1}, dtype))
        assert torch.backends.cuda.matmul.allow_tf32 is (dtype == "tf32")
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_a_quiet_visit_takes_one_trace_and_keeps_what_a_sample_needs(gpu, device, monkeypatch):
    work = Prepared(lambda: pad_then_attend(gpu), ())
    product = SimpleNamespace(bytes_moved=lambda point: 0, prepare=lambda point, device: work)
    monkeypatch.setattr(operators, "get", lambda name: product)
    sample = measure_visit(device, Visit(POINT, 0, False), ("K",), Timing())
    assert (sample.status, sample.reason, sample.timer) == ("ok", "", "kineto")
    assert set(sample.timings_us) == {10.5} and len(sample.timings_us) == 10
    assert sample.kernels == ("pad", "attend")
    assert gpu.traces == 1


def test_a_device_that_throttles_marks_the_visit_after_trying_again(gpu, device, monkeypatch):
    work = Prepared(lambda: pad_then_attend(gpu), ())
    product = SimpleNamespace(bytes_moved=lambda point: 0, prepare=lambda point, device: work)
    monkeypatch.setattr(operators, "get", lambda name: product)
    monkeypatch.setattr(device.telemetry, "throttle_reason", lambda: "software power cap")
    sample = measure_visit(device, Visit(POINT, 0, False), ("K",), Timing())
    assert (sample.status, sample.reason) == ("throttled", "software power cap")
    assert gpu.traces == 3  # what was timed ahead of a retry is not its answer
