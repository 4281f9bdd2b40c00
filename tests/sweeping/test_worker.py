"""What befalls a worker process costs the point it was at, and is said of that point."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from gacprof.sweeping.worker import IsolatedDevice, OpenNamed

from gacprof.errors import MeasurementError
from gacprof.sweeping.many import local_gpus, run_on_all
from gacprof.sweeping.run import run_sweep
from gacprof.sweeping.store import read_samples
from gacprof.sweeping.suite import parse_suite

sys.path.insert(0, str(Path(__file__).parent))
import faulty


def suite(values, **timing):
    timing = {"passes": 1, "count": 2, "duplicates": 0} | timing
    sweep = {"operator": "linear", "axis": "K", "values": values, "dims": {"M": 1, "N": 8}}
    return parse_suite({"name": "t", "timing": timing, "sweep": [sweep]}, "t")


def outcome(folder):
    return {s.point.dim["K"]: (s.status, s.reason) for s in read_samples(folder)}


def test_each_fault_fails_its_own_point_and_no_other(tmp_path):
    with IsolatedDevice(faulty.open_faulty, timeout_s=1.0) as device:
        summary = run_sweep(suite([*range(100, 110)]), device, tmp_path / "run")
    found = outcome(tmp_path / "run")
    assert found.pop(faulty.RAISES) == ("failed", "this operator is broken")
    assert found.pop(faulty.HANGS) == ("failed", "hung: no answer within 1 s")
    assert found.pop(faulty.KILLED)[1].startswith("the worker process was killed by SIGKILL")
    assert found.pop(faulty.OUT_OF_MEMORY) == ("failed", "out of memory")
    assert found.pop(faulty.SPOILS)[1].startswith("CUDA error: an illegal memory access")
    assert found.pop(faulty.EXITS) == ("failed", "the worker process ended with exit code 3")
    assert set(found.values()) == {("ok", "")}
    assert (summary.visits, summary.failed, device.restarts) == (10, 6, 4)


def test_a_refused_product_costs_no_worker(tmp_path):
    """A worker is seconds to start; a sweep has hundreds of dims that cuBLAS refuses."""
    with IsolatedDevice(faulty.open_fussy) as device:
        summary = run_sweep(suite([*range(1, 17)]), device, tmp_path / "run")
    assert (summary.failed, device.restarts) == (14, 0)


def test_a_device_that_cannot_be_kept_busy_is_an_error_with_its_reason(tmp_path):
    with (
        IsolatedDevice(faulty.open_cold) as device,
        pytest.raises(MeasurementError, match=r"kept busy: CUDA out of memory. Tried .* MiB\.$"),
    ):
        run_sweep(suite([1, 2]), device, tmp_path / "run")


def test_a_worker_killed_from_outside_is_replaced(tmp_path):
    with IsolatedDevice(faulty.open_faulty) as device:
        killed = []

        def progress(done, total, point):
            if done == 3 and device.pid:
                killed.append(device.pid)
                os.kill(device.pid, signal.SIGKILL)

        run_sweep(suite([*range(1, 9)]), device, tmp_path / "run", progress=progress)
    samples = read_samples(tmp_path / "run")
    assert [s.status for s in samples] == ["ok"] * 3 + ["failed"] + ["ok"] * 4
    assert {s.timings_us[0] for s in samples[:3]} == {float(killed[0])}
    assert {s.timings_us[0] for s in samples[4:]}.isdisjoint({float(killed[0])})


def test_a_device_that_cannot_be_opened_is_an_error_at_once():
    with pytest.raises(MeasurementError, match="no such device"):
        IsolatedDevice(faulty.open_nothing)


def test_the_cpu_works_in_a_worker(tmp_path):
    with IsolatedDevice(OpenNamed("cpu")) as device:
        assert device.environment.kind == "cpu" and device.timer == "cpu-monotonic"
        run_sweep(suite([8, 9]), device, tmp_path / "run")
    assert outcome(tmp_path / "run").keys() == {8, 9}


def test_an_interrupt_leaves_no_worker_and_a_folder_to_resume(tmp_path):
    script = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import faulty, test_worker
        from gacprof.sweeping.run import run_sweep
        from gacprof.sweeping.worker import IsolatedDevice
        if __name__ == "__main__":
            with IsolatedDevice(faulty.open_faulty) as device:
                def progress(done, total, point):
                    print(device.pid, point.dim["K"], flush=True)
                values = [*range(1, 6), faulty.HANGS]
                run_sweep(test_worker.suite(values), device, {str(tmp_path / "run")!r},
                          progress=progress)
        """
    )
    file = tmp_path / "sweep.py"
    file.write_text(script)
    child = subprocess.Popen([sys.executable, file], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for line in child.stdout:
        worker, k = map(int, line.split())
        if k == faulty.HANGS:
            break
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    assert child.wait(30) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    assert faulty.HANGS not in outcome(tmp_path / "run")


def test_several_devices_sweep_at_once_each_into_its_folder(tmp_path):
    opened = {f"cuda:{i}": IsolatedDevice(faulty.open_faulty) for i in range(2)}
    seen = []
    summaries = run_on_all(
        suite([*range(1, 7)]),
        opened,
        tmp_path,
        progress=lambda done, total, point: seen.append(total),
    )
    for device in opened.values():
        device.close()
    assert {name: s.folder.name for name, s in summaries.items()} == {
        "cuda:0": "cuda0",
        "cuda:1": "cuda1",
    }
    workers = [{s.timings_us[0] for s in read_samples(tmp_path / n)} for n in ("cuda0", "cuda1")]
    assert len(workers[0]) == len(workers[1]) == 1 and workers[0] != workers[1]
    assert max(seen) == 12


def test_one_device_failing_stops_the_others_and_is_told(tmp_path):
    begun = threading.Event()

    class Broken:
        timer = "recorded"

        @property
        def environment(self):
            begun.wait(10)
            raise MeasurementError("its environment is gone")

    class Slow(type(faulty.open_faulty())):
        def prepare(self, point):
            begun.set()
            time.sleep(0.02)
            return super().prepare(point)

    with pytest.raises(MeasurementError, match="its environment is gone"):
        run_on_all(suite([*range(1, 500)]), {"a": Broken(), "b": Slow(faulty.answer)}, tmp_path)
    assert 0 < len(read_samples(tmp_path / "b")) < 499


def test_all_devices_of_a_machine_without_gpus_is_refused():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(MeasurementError, match="there is none"):
        local_gpus()
