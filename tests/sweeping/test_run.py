"""The engine on a recorded device: nothing is lost, nothing is measured twice."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from gacprof.errors import MeasurementError
from gacprof.measure.recorded import RecordedDevice
from gacprof.points import Environment
from gacprof.sweeping.run import environment_of, run_sweep, suite_of
from gacprof.sweeping.store import JOURNAL, PARQUET, RunFolder, read_frame, read_samples
from gacprof.sweeping.suite import load_suite, parse_suite


def suite(values=(96, 104, 107, 112), **timing):
    return parse_suite(
        {
            "name": "t",
            "timing": timing,
            "sweep": [
                {
                    "operator": "linear",
                    "axis": "K",
                    "values": list(values),
                    "dims": {"M": 1, "N": 64},
                }
            ],
        },
        "t",
    )


def device(latency=lambda point: float(point.dim["K"]), **kwargs) -> RecordedDevice:
    return RecordedDevice(lambda point, n: [latency(point)] * n, **kwargs)


def test_every_point_is_visited_in_every_pass_with_at_least_ten_timings(tmp_path):
    summary = run_sweep(suite(passes=3, least_duplicates=2), device(), tmp_path / "run")
    samples = read_samples(tmp_path / "run")
    assert (summary.points, summary.visits, summary.failed) == (4, 3 * (4 + 2), 0)
    own = [s for s in samples if not s.duplicate]
    assert sorted((s.point.dim["K"], s.visit) for s in own) == sorted(
        (k, v) for k in (96, 104, 107, 112) for v in range(3)
    )
    assert all(len(s.timings_us) >= 10 for s in samples)
    assert all(s.timings_us[0] == s.point.dim["K"] for s in samples)
    assert sum(s.duplicate for s in samples) == 6


def test_a_fixed_count_is_kept_to(tmp_path):
    run_sweep(suite(count=37), device(), tmp_path / "run")
    assert {len(s.timings_us) for s in read_samples(tmp_path / "run")} == {37}


def test_the_order_is_shuffled_and_reproducible(tmp_path):
    orders = []
    for name in ("a", "b"):
        run_sweep(suite(range(1, 60)), device(), tmp_path / name)
        orders.append([s.point.dim["K"] for s in read_samples(tmp_path / name)])
    assert orders[0] == orders[1]
    assert orders[0][:59] != sorted(orders[0][:59])


def test_a_failing_point_is_recorded_and_the_sweep_goes_on(tmp_path):
    def latency(point):
        if point.dim["K"] == 107:
            raise RuntimeError("CUDA error: misaligned address\nmore lines")
        return 5.0

    summary = run_sweep(suite(least_duplicates=0), device(latency), tmp_path / "run")
    failed = [s for s in read_samples(tmp_path / "run") if s.status == "failed"]
    assert summary.failed == len(failed) == 2
    assert {s.reason for s in failed} == {"CUDA error: misaligned address"}


@pytest.mark.parametrize("nonsense", [0.0, -1.0, float("nan"), float("inf")])
def test_a_timer_that_gives_no_duration_fails_the_point(tmp_path, nonsense):
    run_sweep(suite(count=3), device(lambda point: nonsense), tmp_path / "run")
    assert {s.status for s in read_samples(tmp_path / "run")} == {"failed"}


def test_interrupted_then_resumed_measures_each_visit_once(tmp_path):
    calls = []

    def latency(point):
        calls.append(point)
        if len(calls) == 60:
            raise KeyboardInterrupt
        return 5.0

    with pytest.raises(KeyboardInterrupt):
        run_sweep(suite(range(1, 20), edge_visits=0), device(latency), tmp_path / "run")
    kept = read_samples(tmp_path / "run")
    assert 0 < len(kept) < 2 * 19
    run_sweep(suite(range(1, 20), edge_visits=0), device(), tmp_path / "run", resume=True)
    samples = read_samples(tmp_path / "run")
    assert samples[: len(kept)] == kept
    keys = [(s.point.id, s.visit, s.duplicate) for s in samples]
    assert len(keys) == len(set(keys)) == 2 * (19 + 12)


def test_sigkill_loses_at_most_the_point_being_measured(tmp_path):
    script = textwrap.dedent(
        f"""
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_run import device, suite
        from gacprof.sweeping.run import run_sweep
        done = 0
        def progress(visits, total, point):
            print(visits, flush=True)
            time.sleep(0.02)
        run_sweep(suite(range(1, 200)), device(), {str(tmp_path / "run")!r}, progress=progress)
        """
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for line in child.stdout:
        begun = int(line)
        if begun >= 15:
            break
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert len(read_samples(tmp_path / "run")) >= begun
    summary = run_sweep(suite(range(1, 200)), device(), tmp_path / "run", resume=True)
    assert len(read_samples(tmp_path / "run")) == summary.visits


def test_a_torn_last_line_is_dropped_and_measured_again(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(ZeroDivisionError):
        run_sweep(suite(), device(), folder, progress=lambda done, *_: 1 / (6 - done))
    journal = folder / JOURNAL
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-40])
    assert len(read_samples(folder)) == 5
    run_sweep(suite(), device(), folder, resume=True)
    assert len(read_samples(folder)) == 2 * (4 + 4)


def test_a_parquet_cut_short_is_told_not_guessed(tmp_path):
    run_sweep(suite(), device(), tmp_path / "run")
    file = tmp_path / "run" / PARQUET
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(MeasurementError, match="not readable as samples"):
        read_samples(tmp_path / "run")


def test_a_folder_with_a_sweep_is_not_overwritten(tmp_path):
    run_sweep(suite(), device(), tmp_path / "run")
    with pytest.raises(MeasurementError, match="--resume"):
        run_sweep(suite(), device(), tmp_path / "run")


def test_resuming_with_a_changed_suite_says_what_changed(tmp_path):
    run_sweep(suite(), device(), tmp_path / "run")
    with pytest.raises(MeasurementError, match=r"timing\.passes was 2, now 3"):
        run_sweep(suite(passes=3), device(), tmp_path / "run", resume=True)
    with pytest.raises(MeasurementError, match=r"sweep\[0\]\.values"):
        run_sweep(suite((1, 2)), device(), tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("new", "told"),
    [
        (suite((96, 104, 107, 120)), "sweep[0].values lost 112 and gained 120."),
        (suite(budget_s=9), "timing.budget_s was unset, now 9.0."),
        (suite(passes=3, cap_ms=8), "timing.cap_ms was 25.0, now 8.0; timing.passes was 2, now 3."),
        (suite(range(1, 99)), "gained 1, 2, 3, 4, 5 and "),
    ],
)
def test_what_differs_is_told_key_by_key(tmp_path, new, told):
    run_sweep(suite(), device(), tmp_path / "run")
    with pytest.raises(MeasurementError) as error:
        run_sweep(new, device(), tmp_path / "run", resume=True)
    assert told in str(error.value)


def test_another_suite_is_told_by_its_name_first(tmp_path):
    run_sweep(load_suite("quick"), device(), tmp_path / "run", budget_s=1e-9)
    other = suite().model_copy(update={"name": "mine"})
    with pytest.raises(MeasurementError) as error:
        run_sweep(other, device(), tmp_path / "run", resume=True)
    assert "holds another suite: name was 'quick', now 'mine'; " in str(error.value)
    assert "more differences" in str(error.value)


def test_resuming_on_another_device_is_refused(tmp_path):
    run_sweep(suite(), device(), tmp_path / "run")
    other = device(environment=Environment("recorded", "another", "none"))
    with pytest.raises(MeasurementError, match="name was recorded, here it is another"):
        run_sweep(suite(), other, tmp_path / "run", resume=True)


def test_two_sweeps_do_not_share_a_folder(tmp_path):
    held = RunFolder(tmp_path / "run")
    held.lock()
    with pytest.raises(MeasurementError, match="another sweep is writing"):
        run_sweep(suite(), device(), tmp_path / "run")
    held.close()
    run_sweep(suite(), device(), tmp_path / "run")


def test_out_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(MeasurementError, match="is a file"):
        run_sweep(suite(), device(), tmp_path / "run")
    assert (tmp_path / "run").read_text() == "mine"


def test_a_recording_replays_a_finished_sweep(tmp_path):
    drawn = iter(range(1, 10**6))
    first = RecordedDevice(lambda point, n: [100.0 + next(drawn) % 7 for _ in range(n)])
    run_sweep(suite(count=11, least_duplicates=0), first, tmp_path / "a")
    replay = RecordedDevice.replaying(read_samples(tmp_path / "a"), environment_of(tmp_path / "a"))
    run_sweep(suite_of(tmp_path / "a"), replay, tmp_path / "b")
    a, b = (read_samples(tmp_path / name) for name in "ab")
    pooled = {s.point.id: set() for s in a}
    for sample in a:
        pooled[sample.point.id] |= set(sample.timings_us)
    assert all(set(s.timings_us) <= pooled[s.point.id] for s in b)
    assert len(a) == len(b)


def test_samples_read_as_a_table(tmp_path):
    run_sweep(suite(least_duplicates=0), device(), tmp_path / "run")
    frame = read_frame(tmp_path / "run")
    assert set(frame["K"]) == {96, 104, 107, 112}
    assert frame.groupby("K")["timings_us"].count().eq(2).all()


def test_many_samples_fold_into_parquet_while_the_sweep_goes_on(tmp_path):
    seen = []

    def progress(done, total, point):
        if done == 700:
            seen.append((tmp_path / "run" / PARQUET).exists())
            seen.append(len((tmp_path / "run" / JOURNAL).read_text().splitlines()))

    run_sweep(suite(range(1, 400)), device(), tmp_path / "run", progress=progress)
    assert seen == [True, 200]
    header = json.loads((tmp_path / "run" / "run.json").read_text())
    assert header["schema"] == "gacprof.run/1" and header["suite"]["name"] == "t"
    assert time.time() - read_samples(tmp_path / "run")[-1].taken_at < 600


def test_samples_without_their_header_are_not_gone_on_with(tmp_path):
    run_sweep(suite(), device(), tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    before = (tmp_path / "run" / PARQUET).read_bytes()
    for resume in (False, True):
        with pytest.raises(MeasurementError, match=r"samples without their run\.json"):
            run_sweep(suite((1, 2)), device(), tmp_path / "run", resume=resume)
    assert (tmp_path / "run" / PARQUET).read_bytes() == before


def test_a_folder_of_something_else_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(MeasurementError, match=r"holds no sweep, but config\.json"):
        run_sweep(suite(), device(), tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.json"]


def test_a_sweep_killed_before_its_header_was_written_can_begin_again(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / ".run.json.x1y2").touch()
    assert run_sweep(suite(), device(), tmp_path).failed == 0
