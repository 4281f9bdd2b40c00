"""What befalls a worker process costs the point that did it, and is said of that point."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from suites import over, suite_of

from gacprof.core.errors import MeasurementError
from gacprof.devices.device import Slot
from gacprof.devices.worker import IsolatedDevice
from gacprof.sweeping import read_blocks
from gacprof.sweeping.results import read_samples
from gacprof.sweeping.run import run_sweep

sys.path.insert(0, str(Path(__file__).parent))
import faulty


@pytest.fixture(autouse=True)
def _workers_find_no_torch(tmp_path_factory, monkeypatch):
    """These devices need none, and importing it is all that takes a worker seconds."""
    folder = tmp_path_factory.mktemp("torchless")
    (folder / "torch.py").write_text("raise ImportError('not in these workers')\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


def suite(values, **timing):
    timing = {"blocks": 6, "processes": 1, "replicates": 0, "least_replicates": 0} | timing
    return suite_of(over("K", values, {"M": 1, "N": 8}), **timing)


def outcome(folder):
    return {s.point.dim["K"]: (s.status, s.reason) for s in read_samples(folder)}


FAULTS = {
    faulty.RAISES: "this operator is broken",
    faulty.HANGS: "hung: no answer within 1 s",
    faulty.KILLED: "the worker process was killed by SIGKILL (out of memory?)",
    faulty.OUT_OF_MEMORY: "out of memory",
    faulty.SPOILS: "CUDA error: an illegal memory access was encountered",
    faulty.EXITS: "the worker process ended with exit code 3",
}


def test_each_of_many_faults_fails_its_own_point_and_no_other(tmp_path):
    with IsolatedDevice(faulty.open_faulty, timeout_s=1.0) as device:
        summary = run_sweep(suite([*range(100, 110)]), device, tmp_path / "run")
    found = outcome(tmp_path / "run")
    assert {k: reason for k, (status, reason) in found.items() if status == "failed"} == FAULTS
    assert (summary.points, summary.failed) == (4, 6)


def test_a_worker_that_dies_of_no_point_loses_only_its_block(tmp_path):
    """Fifteen calls a block, fifty a worker: now and then a block is lost, and nobody blamed."""
    with IsolatedDevice(faulty.open_dying) as device:
        summary = run_sweep(suite([*range(1, 16)]), device, tmp_path / "run")
    blocks = read_blocks(tmp_path / "run")
    assert (summary.points, summary.failed, summary.unfinished) == (15, 0, 0)
    assert {len(block.calls) for block in blocks} == {15}
    assert len({block.process for block in blocks}) >= 3, "each worker is a process of its own"


def test_a_refused_product_costs_no_worker(tmp_path):
    """A worker is seconds to start; a sweep has hundreds of dims that cuBLAS refuses."""
    with IsolatedDevice(faulty.open_fussy) as device:
        summary = run_sweep(suite([*range(1, 17)]), device, tmp_path / "run")
        assert (summary.failed, device.generation) == (14, 0)


def test_a_device_that_cannot_be_kept_busy_is_an_error_with_its_reason(tmp_path):
    with (
        IsolatedDevice(faulty.open_cold) as device,
        pytest.raises(MeasurementError, match=r"kept busy: CUDA out of memory. Tried .* MiB\.$"),
    ):
        run_sweep(suite([1, 2]), device, tmp_path / "run")


def test_a_worker_killed_from_outside_is_replaced(tmp_path):
    with IsolatedDevice(faulty.open_healthy) as device:
        killed = []

        def progress(done, total, point):
            if done == 3 and not killed:
                killed.append(device.pid)
                os.kill(device.pid, signal.SIGKILL)

        summary = run_sweep(suite([*range(1, 9)]), device, tmp_path / "run", progress=progress)
    assert (summary.failed, summary.unfinished) == (0, 0)
    workers = [block.calls[0].us for block in read_blocks(tmp_path / "run")]
    assert workers[:3] == [float(killed[0])] * 3
    assert float(killed[0]) not in workers[3:]


def test_each_part_of_a_sweep_runs_in_a_process_of_its_own(tmp_path):
    with IsolatedDevice(faulty.open_healthy, spares=2) as device:
        run_sweep(suite([1, 2, 3], processes=3), device, tmp_path / "run")
    blocks = read_blocks(tmp_path / "run")
    pids = {block.process: {call.us for call in block.calls} for block in blocks}
    assert list(pids) == [0, 1, 2] and all(len(p) == 1 for p in pids.values())
    assert len(set.union(*pids.values())) == 3


def test_n12_spare_workers_wait_for_their_turn_before_they_open_the_device(tmp_path):
    """A GPU's memory is the present worker's alone; what takes seconds is done by then."""
    noted = tmp_path / "opened"
    with IsolatedDevice(partial(faulty.open_noting, str(noted)), spares=1) as device:
        assert noted.read_text().split() == [str(device.pid)]
        first, (spare, _) = device.pid, device._spares[0]
        device.renew()
        assert noted.read_text().split() == [str(first), str(spare.pid)] and device.pid == spare.pid
        workers = [first, device.pid, *(process.pid for process, _ in device._spares)]
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


def test_n12_a_worker_is_told_what_earlier_ones_named():
    slots = [Slot(point) for point in suite([1, 2, 3]).points("cpu")]
    with IsolatedDevice(faulty.open_learning) as device:
        assert set(device.session(slots).kernels().values()) == {("after 0",)}
        device.renew()
        assert set(device.session(slots[:1]).kernels().values()) == {("after 3",)}


def test_a_device_that_cannot_be_opened_is_an_error_at_once():
    with pytest.raises(MeasurementError, match="no such device"):
        IsolatedDevice(faulty.open_nothing)


SCRIPT = """
import sys
sys.path[:0] = {paths!r}
import faulty, test_worker
from gacprof.devices.worker import IsolatedDevice
from gacprof.sweeping.run import run_sweep
with IsolatedDevice(faulty.{opener}) as device:
    print(device.pid, flush=True)
    run_sweep(test_worker.suite({values}), device, {folder!r})
"""


def script(tmp_path, opener, values):
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
    code = SCRIPT.format(paths=paths, opener=opener, values=values, folder=str(tmp_path / "run"))
    (tmp_path / "mine.py").write_text(code)
    return [sys.executable, str(tmp_path / "mine.py")]


def test_a_script_without_a_main_guard_sweeps_once(tmp_path):
    """Spawned processes run the caller's script again, unless it is hidden from them."""
    command = script(tmp_path, "open_healthy", [1, 2])
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stderr
    assert outcome(tmp_path / "run").keys() == {1, 2}


def test_an_interrupt_leaves_no_worker_and_a_folder_to_resume(tmp_path):
    values = [*range(1, 6), faulty.HANGS]
    command = script(tmp_path, "open_faulty", values)
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    worker = int(child.stdout.readline())
    while not (tmp_path / "run" / "run.json").exists():
        time.sleep(0.05)
    time.sleep(0.3)  # its first block hangs
    child.send_signal(signal.SIGINT)
    assert child.wait(30) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    with IsolatedDevice(faulty.open_faulty, timeout_s=1.0) as device:
        run_sweep(suite(values), device, tmp_path / "run", resume=True)
    assert {k for k, (s, _) in outcome(tmp_path / "run").items() if s == "ok"} == {*range(1, 6)}


def test_a_worker_never_sees_the_terminals_ctrl_c():
    """Blocked from its first instruction on: an interrupt while it imports would be printed."""
    with IsolatedDevice(faulty.open_healthy) as device:
        status = Path(f"/proc/{device.pid}/status").read_text()
        blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
        assert blocked >> (signal.SIGINT - 1) & 1
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_device_that_does_not_open_in_time_says_what_to_do(monkeypatch):
    monkeypatch.setattr("gacprof.devices.worker.START_TIMEOUT_S", 0.0)
    with pytest.raises(MeasurementError, match=r"busy: try again, or .* \(--no-isolate\)"):
        IsolatedDevice(faulty.open_faulty)
