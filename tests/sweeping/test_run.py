"""The engine on a recorded device: every call kept, nothing lost, nothing mixed."""

import json
from dataclasses import replace
from math import exp
from random import Random

import pytest
from recorded_device import RecordedDevice
from suites import over, suite_of

from gacprof.core.errors import MeasurementError
from gacprof.devices.worker import WorkerLostError
from gacprof.sweeping import build_map_of, read_blocks
from gacprof.sweeping.results import read_frame, read_samples
from gacprof.sweeping.run import run_sweep
from gacprof.sweeping.store import read_notes


def suite(values=(96, 104, 107, 112), **timing):
    return suite_of(over("K", values, {"M": 1, "N": 64}), **timing)


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


def test_a_curve_that_stays_undecided_stops_at_its_most_blocks(tmp_path):
    """K=104 takes 2.1 % more than the dims above it, at a tolerance of 2 %, and noise is 3 %."""
    draw = Random(1)

    def latency(point):
        return 100.0 * (1.021 if point.dim["K"] == 104 else 1.0) * draw.lognormvariate(0, 0.03)

    summary = run_sweep(suite(blocks=4, most_blocks=20), device(latency), tmp_path / "run")
    assert (summary.blocks, summary.undecided, summary.unfinished) == (20, 1, 0)
    processes = [block.process for block in read_blocks(tmp_path / "run")]
    assert sorted(map(processes.count, range(3))) == [6, 7, 7], "evenly over the processes"


class LosingABatch(RecordedDevice):
    """Its worker dies once, while it measures blocks of two curves together."""

    lost = False

    def blocks(self, wanted):
        if len(wanted) > 1 and not self.lost:
            self.lost = True
            raise WorkerLostError("the worker process was killed")
        return super().blocks(wanted)


def test_blocks_after_a_batch_that_cost_its_worker_are_of_another_process(tmp_path):
    values = (96, 104, 107, 112)
    both = over("K", values, {"M": 1, "N": 64}), over("N", values, {"M": 1, "K": 64})
    losing = LosingABatch(lambda p: 5.0)
    summary = run_sweep(suite_of(*both, processes=1), losing, tmp_path / "run")
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
    tries = []

    def latency(point):
        if point.dim["K"] == 107:
            tries.append(point)
            raise MeasurementError("CUDA error: misaligned address\nmore lines")
        return 5.0

    summary = run_sweep(suite(least_replicates=0, replicates=0), device(latency), tmp_path / "run")
    assert len(tries) == 3, "and it is called no more"
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


@pytest.mark.parametrize(("every", "status", "us"), [(1, "throttled", 9.0), (2, "ok", 5.0)])
def test_throttled_times_are_left_out_where_there_are_others(tmp_path, every, status, us):
    class Hot(RecordedDevice):
        taken = 0

        def blocks(self, wanted):
            self.taken += 1
            throttled = "power cap" * (self.taken % every == 0)
            return [replace(times, throttled=throttled) for times in super().blocks(wanted)]

    hot = Hot(lambda point: 5.0 if hot.taken % every else 9.0)
    run_sweep(suite(most_blocks=20), hot, tmp_path / "run")
    for sample in read_samples(tmp_path / "run"):
        assert (sample.status, set(sample.timings_us)) == (status, {us})


class Interrupting:
    """Answers like the device, and is interrupted at one of its calls."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self, point):
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt
        return float(point.dim["K"])


def test_an_interrupt_loses_no_block_but_the_one_under_way(tmp_path):
    wanted = suite(range(64, 84), least_replicates=0, replicates=0)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(wanted, device(Interrupting(60)), tmp_path / "run")
    kept = read_blocks(tmp_path / "run")
    assert len(kept) == 2
    summary = run_sweep(wanted, device(), tmp_path / "run", resume=True)
    blocks = read_blocks(tmp_path / "run")
    assert blocks[:2] == kept and [b.number for b in blocks] == list(range(len(blocks)))
    assert max(b.process for b in kept) < min(b.process for b in blocks[2:]), "that one is gone"
    assert 12 <= summary.blocks == len(blocks) <= 2 * FEWEST
    assert (summary.undecided, summary.unfinished) == (0, 0)


def test_a_decided_curve_takes_no_more_blocks_and_its_resumed_sweep_none(tmp_path):
    summary = run_sweep(suite(), device(), tmp_path / "run")
    assert (summary.blocks, summary.undecided, summary.unfinished) == (FEWEST, 0, 0)
    again = run_sweep(suite(), device(Interrupting(1)), tmp_path / "run", resume=True)
    assert (again.blocks, again.undecided) == (FEWEST, 0)


def test_a_budget_leaves_a_valid_folder_that_resumes(tmp_path):
    first = run_sweep(suite(), device(), tmp_path / "run", budget_s=1e-9)
    assert (first.blocks, first.points, first.unfinished) == (0, 0, 1)
    how = {"budget_s": 900.0, "progress": lambda done, likely, _: told.append((done, likely))}
    told = []
    rest = run_sweep(suite(), device(), tmp_path / "run", resume=True, **how)
    assert (rest.blocks, rest.unfinished) == (FEWEST, 0)
    assert len(told) == FEWEST and all(done <= likely <= 900 for done, likely in told)


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
