"""The engine on a recorded device: every call kept, nothing lost, nothing mixed."""

import json
import os
import shutil
from dataclasses import replace
from math import exp
from pathlib import Path
from random import Random

import pytest
from recorded_device import RecordedDevice

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Environment
from gacprof.devices.worker import WorkerLostError
from gacprof.sweeping import build_map_of, read_blocks, store
from gacprof.sweeping.results import environment_of, read_frame, read_samples, suite_of
from gacprof.sweeping.run import run_sweep
from gacprof.sweeping.store import (
    JOURNAL,
    PARQUET,
    RunFolder,
    read_notes,
)
from gacprof.sweeping.suite import parse_suite


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


FEWEST = 12 + 4 + 4
"""Blocks of a curve on a device without noise: it is decided at the first look, after 12, and
two more processes add their share."""


def device(latency=lambda point: float(point.dim["K"]), **kwargs) -> RecordedDevice:
    return RecordedDevice(latency, **kwargs)


def test_each_block_calls_every_slot_once_in_an_order_of_its_own(tmp_path):
    summary = run_sweep(suite(range(64, 96), processes=1), device(), tmp_path / "run")
    blocks = read_blocks(tmp_path / "run")
    assert (summary.curves, summary.points, summary.failed) == (1, 32, 0)
    assert (summary.blocks, summary.calls) == (len(blocks), sum(len(b.calls) for b in blocks))
    slots = {(c.point, c.replicate) for c in blocks[0].calls}
    assert len(slots) == 32 + 8  # a quarter has a hidden A/A replicate
    for block in blocks:
        assert len(block.calls) == 40 and {(c.point, c.replicate) for c in block.calls} == slots
    orders = [[c.point.id for c in block.calls] for block in blocks]
    assert len({tuple(order) for order in orders}) == len(orders)
    assert all(c.us == c.point.dim["K"] for b in blocks for c in b.calls)


class Quirky(RecordedDevice):
    """Every process favours other dims, by so much (a standard deviation)."""

    def __init__(self, between: float) -> None:
        self.renewed, self._between = 0, between
        super().__init__(self._time)

    def renew(self) -> None:
        self.renewed += 1

    def _time(self, point):
        return 5.0 * exp(Random(f"{self.renewed} {point.id}").gauss(0, self._between))


def slots_by_process(folder):
    found = {}
    for block in read_blocks(folder):
        called = found.setdefault(block.process, set())
        called |= {(call.point, call.replicate) for call in block.calls}
    return found


def test_a_later_process_calls_a_sample_of_a_decided_curve_and_a_third_is_left_out(tmp_path):
    """Two processes that agree on 16 slots bound what a third would add."""
    run_sweep(suite(range(64, 128)), Quirky(0.0001), tmp_path / "run")
    first, second = slots_by_process(tmp_path / "run").values()
    assert (len(first), len(second)) == (80, 16)
    assert sum((point, True) in second for point, _ in second) == 16  # eight A/A pairs
    assert build_map_of(tmp_path / "run").file.noise.processes == 2


def test_where_a_sample_leaves_a_curve_undecided_the_process_calls_it_all(tmp_path):
    run_sweep(suite(range(64, 128), most_blocks=48), Quirky(0.02), tmp_path / "run")
    assert [len(slots) for slots in slots_by_process(tmp_path / "run").values()] == [80] * 3


def test_few_dims_do_not_spare_a_process(tmp_path):
    run_sweep(suite(range(64, 68)), Quirky(0.0), tmp_path / "run")
    assert list(slots_by_process(tmp_path / "run")) == [0, 1, 2]


def test_a_curve_that_is_decided_takes_no_more_blocks(tmp_path):
    summary = run_sweep(suite(), device(), tmp_path / "run")
    assert (summary.blocks, summary.undecided, summary.unfinished) == (FEWEST, 0, 0)


def test_an_undecided_curve_is_spread_evenly_over_the_processes(tmp_path):
    draw = Random(1)
    noisy = device(lambda point: 100.0 * draw.lognormvariate(0, 0.2))
    run_sweep(suite(most_blocks=60), noisy, tmp_path / "run")
    processes = [block.process for block in read_blocks(tmp_path / "run")]
    assert [processes.count(number) for number in range(3)] == [20, 20, 20]


def test_a_curve_that_stays_undecided_stops_at_its_most_blocks(tmp_path):
    """K=104 takes 2.1 % more than the dims above it, at a tolerance of 2 %, and noise is 3 %."""
    draw = Random(1)

    def latency(point):
        return 100.0 * (1.021 if point.dim["K"] == 104 else 1.0) * draw.lognormvariate(0, 0.03)

    summary = run_sweep(suite(blocks=4, most_blocks=20), device(latency), tmp_path / "run")
    assert (summary.blocks, summary.undecided, summary.unfinished) == (20, 1, 0)


def test_curves_take_turns_and_each_has_its_blocks(tmp_path):
    both = suite().model_dump(mode="json", by_alias=True)
    both["sweep"].append(both["sweep"][0] | {"axis": "N", "dims": {"M": 1, "K": 64}})
    run_sweep(parse_suite(both, "t"), device(lambda p: 5.0), tmp_path / "run")
    axes = [block.axis for block in read_blocks(tmp_path / "run")]
    assert axes.count("K") == axes.count("N") == FEWEST
    assert set(axes[:6]) == {"K", "N"}


class LosingABatch(RecordedDevice):
    """Its worker dies once, while it measures blocks of two curves together."""

    lost = False

    def blocks(self, wanted):
        if len(wanted) > 1 and not self.lost:
            self.lost = True
            raise WorkerLostError("the worker process was killed")
        return super().blocks(wanted)


def test_blocks_after_a_batch_that_cost_its_worker_are_of_another_process(tmp_path):
    both = suite(processes=1).model_dump(mode="json", by_alias=True)
    both["sweep"].append(both["sweep"][0] | {"axis": "N", "dims": {"M": 1, "K": 64}})
    losing = LosingABatch(lambda p: 5.0)
    summary = run_sweep(parse_suite(both, "t"), losing, tmp_path / "run")
    processes = [block.process for block in read_blocks(tmp_path / "run")]
    assert losing.lost and summary.failed == 0
    assert set(processes) == {0, 1} and processes == sorted(processes)


def test_a_long_curve_is_dealt_out_in_partial_blocks_and_every_dim_is_called(tmp_path):
    run_sweep(suite(range(1, 400), blocks=8), device(), tmp_path / "run")
    blocks = read_blocks(tmp_path / "run")
    assert max(len(b.calls) for b in blocks) <= 128
    counts = dict.fromkeys(range(1, 400), 0)
    for block in blocks:
        for call in block.calls:
            counts[call.point.dim["K"]] += not call.replicate
    assert min(counts.values()) >= 6
    curve = build_map_of(tmp_path / "run").curves[0]
    assert curve.points.latency_us == pytest.approx(curve.points.d, rel=1e-4)


def test_a_failing_point_is_recorded_and_the_sweep_goes_on(tmp_path):
    def latency(point):
        if point.dim["K"] == 107:
            raise MeasurementError("CUDA error: misaligned address\nmore lines")
        return 5.0

    summary = run_sweep(suite(), device(latency), tmp_path / "run")
    samples = {s.point.dim["K"]: s for s in read_samples(tmp_path / "run")}
    assert (summary.failed, summary.points) == (1, 3)
    failed = samples.pop(107)
    assert (failed.status, failed.reason) == ("failed", "CUDA error: misaligned address")
    assert {s.status for s in samples.values()} == {"ok"}


def test_a_point_that_fails_in_one_block_keeps_the_times_of_the_others(tmp_path):
    calls = []

    def latency(point):
        calls.append(point)
        if point.dim["K"] == 107 and len(calls) > 20 and not known:
            known.append(point)
            raise MeasurementError("a cosmic ray")
        return 5.0

    known = []
    summary = run_sweep(suite(least_replicates=0, replicates=0), device(latency), tmp_path / "run")
    (sample,) = [s for s in read_samples(tmp_path / "run") if s.point.dim["K"] == 107]
    assert summary.failed == 0 and known
    assert (sample.status, sample.reason) == ("ok", "a cosmic ray")
    assert len(sample.timings_us) >= 11
    assert build_map_of(tmp_path / "run").curves[0].coverage.failed == {}


def test_a_point_that_keeps_failing_is_called_no_more(tmp_path):
    tries = []

    def latency(point):
        if point.dim["K"] == 107:
            tries.append(point)
            raise MeasurementError("no")
        return 5.0

    run_sweep(suite(least_replicates=0, replicates=0), device(latency), tmp_path / "run")
    assert len(tries) == 3


class Interrupting:
    """Answers like the device, and is interrupted at one of its calls."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self, point):
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt
        return float(point.dim["K"])


@pytest.mark.parametrize("at", [1, 60])
def test_an_interrupt_loses_no_block_but_the_one_under_way(tmp_path, at):
    wanted = suite(range(64, 84), least_replicates=0, replicates=0)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(wanted, device(Interrupting(at)), tmp_path / "run")
    kept = read_blocks(tmp_path / "run")
    assert len(kept) == (at - 1) // 20
    summary = run_sweep(wanted, device(), tmp_path / "run", resume=True)
    blocks = read_blocks(tmp_path / "run")
    assert blocks[: len(kept)] == kept
    assert [b.number for b in blocks] == list(range(len(blocks)))
    assert 12 <= summary.blocks == len(blocks) <= 2 * FEWEST
    assert (summary.undecided, summary.unfinished) == (0, 0)


def test_a_resumed_process_is_another_one(tmp_path):
    """What ran before the interrupt ran in a process that is gone."""
    with pytest.raises(KeyboardInterrupt):
        run_sweep(suite(range(64, 84)), device(Interrupting(60)), tmp_path / "run")
    kept = read_blocks(tmp_path / "run")
    run_sweep(suite(range(64, 84)), device(), tmp_path / "run", resume=True)
    rest = read_blocks(tmp_path / "run")[len(kept) :]
    assert kept and max(b.process for b in kept) < min(b.process for b in rest)


def test_a_finished_sweep_resumed_measures_nothing_more(tmp_path):
    first = run_sweep(suite(), device(), tmp_path / "run")
    again = run_sweep(suite(), device(Interrupting(1)), tmp_path / "run", resume=True)
    assert (again.blocks, again.undecided) == (first.blocks, 0)


def test_a_budget_leaves_a_valid_folder_that_resumes(tmp_path):
    first = run_sweep(suite(), device(), tmp_path / "run", budget_s=1e-9)
    assert (first.blocks, first.points, first.unfinished) == (0, 0, 1)
    rest = run_sweep(suite(), device(), tmp_path / "run", resume=True)
    assert (rest.blocks, rest.unfinished) == (FEWEST, 0)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A folder of a finished sweep."""
    folder = tmp_path_factory.mktemp("measured") / "run"
    run_sweep(suite(), device(), folder)
    return folder


@pytest.fixture
def finished(measured, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(measured, tmp_path / "run"))


def stopped_after(folder, blocks, wanted=None):
    """A folder whose journal was not folded: the sweep's process ended for no good reason."""
    with pytest.raises(ZeroDivisionError):
        run_sweep(
            wanted or suite(), device(), folder, progress=lambda done, *_: 1 / (blocks - done)
        )


@pytest.mark.parametrize("cut", [1, 40])
def test_a_torn_last_line_is_dropped_and_its_block_measured_again(tmp_path, cut):
    folder = tmp_path / "run"
    stopped_after(folder, 6)
    assert len(read_blocks(folder)) == 6
    journal = folder / JOURNAL
    journal.write_bytes(journal.read_bytes()[:-cut])
    assert len(read_blocks(folder)) == 5
    assert run_sweep(suite(), device(), folder, resume=True).unfinished == 0
    assert [b.number for b in read_blocks(folder)][:6] == list(range(6))


def garbled(lines):
    return [*lines[:2], lines[2][:-9], *lines[3:]]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (garbled, "line 3 is garbled: delete that line"),
        (lambda lines: [line.replace('"process"', '"protest"') for line in lines], "lacks or garb"),
        (lambda lines: [line.replace('[["', '[["0') for line in lines], "lacks or garbles a field"),
    ],
)
def test_a_damaged_journal_is_refused(tmp_path, damage, message):
    stopped_after(tmp_path / "run", 4)
    journal = tmp_path / "run" / JOURNAL
    journal.write_text("\n".join(damage(journal.read_text().splitlines())) + "\n")
    with pytest.raises(MeasurementError, match=message):
        read_blocks(tmp_path / "run")


def test_a_parquet_cut_short_is_refused(finished):
    file = finished / PARQUET
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(MeasurementError, match="not readable as samples"):
        read_samples(finished)


@pytest.mark.parametrize("name", [store.RUN, store.POINTS, JOURNAL, PARQUET])
@pytest.mark.parametrize("special", ["fifo", "link to an endless device"])
def test_what_is_no_regular_file_is_told_and_neither_waited_for_nor_read(finished, name, special):
    file = finished / name
    file.unlink(missing_ok=True)
    os.mkfifo(file) if special == "fifo" else file.symlink_to("/dev/zero")
    with pytest.raises(MeasurementError, match="no regular file"):
        build_map_of(finished)


def test_a_lock_is_not_written_through_a_link(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / store.LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic links"):
        RunFolder(tmp_path / "run").lock()
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_small_parquet_of_endless_rows_is_refused_before_it_is_unfolded(finished):
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = finished / PARQUET
    table = pq.read_table(file)
    many = table.slice(0, 1).take(pa.array([0] * 700_000, pa.int32()))
    pq.write_table(many, file, compression="zstd")
    assert file.stat().st_size < 300_000
    with pytest.raises(MeasurementError, match="would unfold to 700,000 rows"):
        read_blocks(finished)


def test_a_folder_with_a_sweep_is_not_overwritten(finished):
    with pytest.raises(MeasurementError, match="--resume"):
        run_sweep(suite(), device(), finished)


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (suite((96, 104, 107, 120)), "sweep[0].values lost 112 and gained 120."),
        (suite(budget_s=9), "timing.budget_s was unset, now 9.0."),
        (suite(blocks=8, seed=3), "timing.blocks was 12, now 8; timing.seed was 0, now 3."),
        (suite(range(1, 99)), "gained 1, 2, 3, 4, 5 and "),
    ],
)
def test_a_changed_suite_is_refused_key_by_key(finished, new, said):
    with pytest.raises(MeasurementError) as error:
        run_sweep(new, device(), finished, resume=True)
    assert said in str(error.value)


CUDA = Environment("cuda", "NVIDIA H200", "sm90", {}, {"torch": "2.13.0"})
CPU = Environment("cpu", "a CPU", "x86_64", {"threads": 2, "cores_allowed": 2}, {"torch": "2.13.0"})


@pytest.mark.parametrize(
    ("here", "said"),
    [
        (replace(CPU, name="another"), "name was 'a CPU', here it is 'another'"),
        (replace(CPU, stack={"torch": "2.14.0"}), "stack was .*2.13.0.*, here it is .*2.14.0"),
        (
            replace(CPU, facts={"threads": 1, "cores_allowed": 2}),
            "with 2 threads, here there are 1",
        ),
        (
            replace(CPU, facts={"threads": 2, "cores_allowed": 1}),
            "with 2 cores that it may use, here there are 1",
        ),
    ],
)
def test_resuming_elsewhere_or_under_other_conditions_is_refused(tmp_path, here, said):
    run_sweep(suite(), device(environment=CPU), tmp_path / "run")
    with pytest.raises(MeasurementError, match=said):
        run_sweep(suite(), device(environment=here), tmp_path / "run", resume=True)


def test_resuming_with_another_timer_is_refused(tmp_path):
    run_sweep(suite(), device(), tmp_path / "run")
    other = device()
    other.timer = "cuda-events"
    with pytest.raises(MeasurementError, match="timed by 'recorded', here it would be by cuda-ev"):
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


def test_header_suite_and_device_are_kept_with_the_run(tmp_path):
    run_sweep(suite(), device(environment=CPU), tmp_path / "run")
    assert environment_of(tmp_path / "run") == CPU
    assert suite_of(tmp_path / "run").hash == suite().hash
    header = json.loads((tmp_path / "run" / "run.json").read_text())
    assert header["schema"] == "gacprof.run/2" and header["suite"]["name"] == "t"


def test_a_folder_of_an_earlier_gacprof_names_the_command(finished):
    header = finished / "run.json"
    header.write_text(header.read_text().replace("gacprof.run/2", "gacprof.run/1"))
    for ask in (environment_of, build_map_of):
        with pytest.raises(MeasurementError, match=r"sweep again into another folder \(gacprof"):
            ask(finished)


def test_kernels_are_noted_once_a_point(tmp_path):
    named = device(kernels=lambda point: (f"kernel_{point.dim['K'] % 8}",))
    run_sweep(suite(), named, tmp_path / "run")
    notes = read_notes(tmp_path / "run")
    assert {p.dim["K"]: n.kernels for p, n in notes.items()}[107] == ("kernel_3",)
    assert len(json.loads((tmp_path / "run" / "points.json").read_text())) == 4


def test_samples_read_as_a_table(tmp_path):
    run_sweep(suite(), device(lambda point: 2.0), tmp_path / "run")
    frame = read_frame(tmp_path / "run").set_index("K")
    assert set(frame.index) == {96, 104, 107, 112}
    assert all(len(times) >= 12 for times in frame["timings_us"])
    assert frame.loc[96, "median_us"] == 2.0
    assert frame.loc[96, "tflops"] == pytest.approx(2 * 64 * 96 / 2.0 / 1e6)
    assert frame.loc[96, "gb_s"] == pytest.approx(4 * (96 + 64 * 96 + 64) / 2.0 / 1e3)
    assert frame["roof_share"].isna().all()


def test_calls_read_as_a_table_with_position_and_predecessor(finished):
    import pandas as pd

    frame = pd.read_parquet(finished / PARQUET)
    first = frame[frame["block"] == 0]
    assert first["position"].tolist() == list(range(len(first)))
    assert first["predecessor"].isna().tolist() == [True] + [False] * (len(first) - 1)
    assert first["predecessor"].tolist()[1:] == first["point"].tolist()[:-1]


def test_samples_without_their_header_are_not_gone_on_with(finished):
    (finished / "run.json").unlink()
    before = (finished / PARQUET).read_bytes()
    for resume in (False, True):
        with pytest.raises(MeasurementError, match=r"samples without their run\.json"):
            run_sweep(suite((1, 2)), device(), finished, resume=resume)
    assert (finished / PARQUET).read_bytes() == before


def test_a_folder_of_something_else_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(MeasurementError, match=r"holds no sweep, but config\.json"):
        run_sweep(suite(), device(), tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.json"]


def test_a_sweep_killed_before_its_header_was_written_can_begin_again(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / ".run.json.x1y2").touch()
    assert run_sweep(suite(), device(), tmp_path).failed == 0
