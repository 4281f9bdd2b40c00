"""The CPU is measured for real; operands lie where they should; absent devices are named."""

import os
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from suites import over, suite_of

from gacprof import operators
from gacprof.core.errors import MeasurementError
from gacprof.devices import threads
from gacprof.devices.cpu import CpuDevice, CpuSession
from gacprof.devices.device import Slot
from gacprof.devices.memory import PAGE, Arena
from gacprof.devices.opening import device_kind, device_name, local_gpus, open_device
from gacprof.devices.worker import sweeper
from gacprof.sweeping import run_sweep
from tests.support.forked import forked

TASKS = Path("/proc/self/task")


@pytest.fixture
def cpu():
    device = CpuDevice()
    yield device
    device.close()


def linear(M, N, K, dtype="float32", **flags):
    return operators.point("linear", {"M": M, "N": N, "K": K}, dtype, flags)


def test_the_cpu_times_real_calls_and_names_itself(cpu):
    assert cpu.environment.kind == "cpu" and cpu.environment.stack["torch"] == torch.__version__
    small, large = linear(8, 8, 8), linear(512, 512, 512)
    session = cpu.session([Slot(small), Slot(large), Slot(large, replicate=True)])
    assert session.failed == {}
    times = {0: [], 1: [], 2: []}
    for _ in range(7):
        block = session.block([2, 0, 1])
        assert not block.failed
        for timed in block.calls:
            times[timed.slot].append(timed.us)
    least = {slot: min(listed) for slot, listed in times.items()}
    assert all(us > 0 for us in least.values())
    assert min(least[1], least[2]) > 10 * least[0]  # 262,144 times the work


def test_slots_of_several_sessions_are_called_in_turn(cpu):
    sessions = [cpu.session([Slot(linear(8, n, k)) for k in (8, 16)]) for n in (8, 16, 32)]
    wanted = [(sessions[2], 0), (sessions[0], 1), (sessions[1], 0)]
    calls = cpu.mixed(wanted).calls
    assert [timed.slot for timed in calls] == [0, 1, 2]
    assert all(timed.us > 0 for timed in calls)


def test_what_a_cpu_cannot_do_fails_its_slot_only(cpu):
    points = [linear(8, 8, 8), linear(8, 8, 8, "tf32"), linear(2**20, 2**20, 2**20)]
    session = cpu.session([Slot(point) for point in points])
    assert "tf32" in session.failed[1] and "memory" in session.failed[2]
    assert set(session.failed) == {1, 2}
    assert [timed.slot for timed in session.block([0]).calls] == [0]


def test_a_call_that_raises_is_told_of_its_slot(cpu, monkeypatch):
    class Breaking:
        def prepare(self, point, device):
            def call():
                raise TypeError("broken\nmore lines")

            return operators.base.Prepared(call, ())

        def bytes_moved(self, point):
            return 0

    good = Slot(linear(8, 8, 8))
    session = cpu.session([good])
    monkeypatch.setattr(operators, "get", lambda name: Breaking())
    broken = cpu.session([good])
    assert broken.block([0]).failed == {0: "broken"}
    assert not session.block([0]).failed


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_compute_threads_are_bound_to_cores_of_their_own_and_released():
    before, usual = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    first = threads.goes_first()
    with threads.bound_threads() as compute:
        if not compute.bound:
            pytest.skip("fewer cores than threads, or threads cannot be distinguished")
        bound = [os.sched_getaffinity(int(thread.name)) for thread in TASKS.iterdir()]
        single = [next(iter(cores)) for cores in bound if len(cores) == 1]
        assert len(single) == len(set(single)) == 2
        preferred = [_niceness(t) for t in TASKS.iterdir()].count(threads.PRIORITY)
        assert preferred == (2 if first else 0)
    assert all(_niceness(t) == usual for t in TASKS.iterdir())
    assert os.sched_getaffinity(0) == before
    assert all(os.sched_getaffinity(int(t.name)) == before for t in TASKS.iterdir())


def _niceness(thread):
    return os.getpriority(os.PRIO_PROCESS, int(thread.name))


@pytest.mark.usefixtures("two_threads")
def test_what_the_user_set_with_nice_stays():
    def niced():
        torch.set_num_threads(1)
        nicer = os.nice(1)
        assert not threads.goes_first()
        with threads.bound_threads():
            assert os.getpriority(os.PRIO_PROCESS, 0) == nicer
        assert os.getpriority(os.PRIO_PROCESS, 0) == nicer

    assert forked(niced) == 0


def test_a_thread_that_waited_for_its_core_knows_how_long():
    """Two processes bound to one core, of which this one wants it for 50 ms."""

    def share_a_core():
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        torch.set_num_threads(1)
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            watched, before = threads.ComputeThreads([], bound=False), os.times()
            first, began = watched.waits_ns(), time.perf_counter()
            while time.perf_counter() - began < 0.5:
                pass
            wall_us = (time.perf_counter() - began) * 1e6
            used_us = (os.times().user - before.user) * 1e6
            waited_us = threads.longest_wait_us(first, watched.waits_ns())
            assert 0.1 * wall_us < waited_us <= wall_us
            assert waited_us + used_us < 1.2 * wall_us
        finally:
            other.kill()

    assert forked(share_a_core) == 0


def test_where_the_system_keeps_no_account_lost_slices_count(monkeypatch):
    monkeypatch.setattr(os, "open", Mock(side_effect=FileNotFoundError))
    (lost,) = threads.ComputeThreads([1, 2], bound=True).waits_ns()
    assert lost >= 0 and lost % threads.SLICE_NS == 0


@pytest.fixture
def arena():
    return Arena(torch.float32, torch.device("cpu"))


def test_cold_weights_meet_the_same_memory_only_after_the_reuse_distance(arena):
    size, reuse = 64 * 64 * 4, 1 << 20
    arena.reserve(size + reuse)
    seen: dict[int, int] = {}
    for number in range(3 * reuse // size):
        view = arena.moving((64, 64))
        for page in range(view.data_ptr() // PAGE, (view.data_ptr() + size) // PAGE):
            if page in seen:
                assert (number - seen[page]) * size >= reuse
            seen[page] = number
    assert len(seen) * PAGE >= reuse


def test_memory_holds_random_numbers_and_no_zeros(arena):
    arena.reserve(1 << 20)
    view = arena.fixed((256, 256), replicate=False)
    assert view.std() == pytest.approx(1.0, abs=0.05) and (view == 0).sum() < 10


@pytest.mark.parametrize("name", ["tpu", "cuda:x", ""])
def test_unknown_devices_are_refused(name):
    with pytest.raises(MeasurementError, match="unknown device"):
        open_device(name)


def test_suites_choose_their_curves_by_the_kind_of_the_device():
    assert [device_kind(name) for name in ("cpu", "cuda", "cuda:1")] == ["cpu", "cuda", "cuda"]
    assert device_kind("simulated:h100") == "cuda"  # as the package that brings it says
    assert device_kind("npu:3") == "npu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_an_absent_gpu_is_told():
    assert device_name() == "cpu"
    with pytest.raises(MeasurementError, match="no CUDA device is usable"):
        open_device("cuda:0")
    with pytest.raises(MeasurementError, match="there is none"):
        local_gpus()


@pytest.fixture
def unset(monkeypatch):
    for name in threads.WAITING:
        monkeypatch.setenv(name, "")  # so that it is restored, whatever is set meanwhile
        monkeypatch.delenv(name)


def test_threads_wait_asleep_unless_the_user_set_otherwise(unset, monkeypatch):
    threads.short_waits()
    assert os.environ.pop("GOMP_SPINCOUNT") == threads.SPIN_COUNT
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    threads.short_waits()
    assert "GOMP_SPINCOUNT" not in os.environ


def test_which_calls_count_does_not_depend_on_how_long_they_took(monkeypatch):
    """A wait of 5 µs disturbs a short call of a block as it does a long one."""
    device = CpuDevice()
    session = CpuSession(device, [lambda: lambda: None] * 3)
    taken = {0: (10.0, 5.0), 1: (100.0, 5.0), 2: (1000.0, 5.0)}
    monkeypatch.setattr(session, "one", taken.__getitem__)
    monkeypatch.setattr(device, "_wake", lambda wanted: None)
    times = session.block([2, 0, 1])
    assert [(call.slot, call.us) for call in times.calls] == [(2, 1000.0), (0, 10.0), (1, 100.0)]
    assert {call.disturbed for call in times.calls} == {True}


def test_a_sweep_in_the_calling_process_leaves_its_threads_free(tmp_path):
    tiny = suite_of(over("K", [8, 9], {"M": 1, "N": 8}), blocks=4, most_blocks=6, processes=1)
    before = os.sched_getaffinity(0)
    with sweeper("cpu", isolate=False) as device:
        run_sweep(tiny, device, tmp_path / "run")
    assert os.sched_getaffinity(0) == before
