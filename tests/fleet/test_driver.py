"""A suite dealt out over workers that answer in this process, and die when they are told to."""

import json
import time
from collections import Counter
from functools import partial
from random import Random

import pytest
from inline import Inline
from recorded_device import RecordedDevice
from simulated import findings, latency, open_one, suite
from suites import over, suite_of

import gacprof
from gacprof.core.errors import MeasurementError, SuiteError
from gacprof.core.points import curve_key
from gacprof.extras.fleet import driver
from gacprof.extras.fleet.cluster import Threads
from gacprof.extras.fleet.driver import sweep_fleet
from gacprof.sweeping import read_blocks, run_sweep
from gacprof.sweeping.results import read_samples
from gacprof.sweeping.store import read_notes

FIRST = ["n0/cpu", "n1/cpu", "n2/cpu"]


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """New devices are looked for without a pause."""
    monkeypatch.setattr(driver, "LOOK_S", 0.0)
    monkeypatch.setattr(driver, "SHOW_S", 0.0)


def opener_on(place):
    return open_one


def fleet(cluster, out, opener_on=opener_on, curves=6, **how):
    how = {"isolate": False, "wait_s": 0.05} | how
    return sweep_fleet(suite(curves), cluster, opener_on, out, **how)


def one_run(done):
    (run,) = done.runs.values()
    return run


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    run_sweep(suite(6), open_one(), folder)
    return findings(folder)


@pytest.mark.parametrize("devices", [3, 5])
def test_the_map_of_equal_devices_is_that_of_one(tmp_path, alone, devices):
    done = fleet(Inline([f"n{i}/cpu" for i in range(devices)]), tmp_path / "out")
    run = one_run(done)
    assert (run.curves, run.failed, run.undecided, run.unfinished, done.lost) == (6, 0, 0, 0, 0)
    assert findings(run.folder) == alone
    on = {}  # each curve is measured by one device, and those that link them by all
    for block in read_blocks(run.folder):
        on.setdefault(curve_key(block.calls[0].point, block.axis), set()).add(block.device)
    assert Counter(map(len, on.values())) == {1: 5, devices: 1}


def test_one_device_measures_the_very_blocks_of_a_sweep(tmp_path):
    run = one_run(fleet(Inline(["n0/cpu"]), tmp_path / "out", curves=1))
    run_sweep(suite(1), open_one(), tmp_path / "one")
    alone, ours = read_blocks(tmp_path / "one"), read_blocks(run.folder)
    assert [(b.number, b.process, b.calls) for b in ours] == [
        (b.number, b.process, b.calls) for b in alone
    ]
    assert {b.device for b in ours} == {"n0/cpu"} and {b.device for b in alone} == {""}


def test_unlike_devices_are_never_in_one_run(tmp_path):
    def opener_on(place):
        return {"n0/cpu": partial(open_one, "A"), "n1/cpu": partial(open_one, "B"),
                "n2/cpu": partial(open_one, "A", driver="560")}[place.name]  # fmt: skip

    done = fleet(Inline(FIRST), tmp_path / "out", opener_on)
    assert sorted(kind[:1] for kind in done.runs) == ["a", "a", "b"]
    assert [len(devices) for devices in done.devices.values()] == [1, 1, 1]
    for run in done.runs.values():
        assert len({b.device for b in read_blocks(run.folder)}) == 1
        assert len(read_samples(run.folder)) == 6 * 33


@pytest.mark.parametrize("seed", range(2))
def test_workers_lost_at_random_cost_their_batch_and_nothing_else(tmp_path, alone, seed):
    deadly = set(Random(seed).sample(range(3, 25), 4))
    kept = []

    def dies(place, number):
        if number not in deadly:
            return False
        kept.append({json.dumps(e) for e in journal(tmp_path / "out")})
        return True

    done = fleet(Inline(FIRST, dies), tmp_path / "out")
    run = one_run(done)
    assert (run.curves, run.failed, run.unfinished) == (6, 0, 0)
    assert findings(run.folder) == alone
    assert done.lost <= len(kept) and len(kept) >= 1
    numbers = {b.number for b in read_blocks(run.folder)}
    assert all(json.loads(e)["block"]["number"] in numbers for each in kept for e in each)


def journal(out):
    for file in out.glob("*/journal.jsonl"):
        for line in file.read_text().splitlines():
            if "block" in (entry := json.loads(line)):
                yield entry


def test_a_lost_workers_curves_go_on_with_the_blocks_that_there_are(tmp_path):
    """n0 dies for good in the midst of a long curve; n1 adds what is missing, no more."""
    seen = []

    def dies(place, number):
        seen.append(place.name)
        return place.name == "n0/cpu" and seen.count("n0/cpu") > 30

    run = one_run(fleet(Inline(FIRST[:2], dies), tmp_path / "out"))
    whole = one_run(fleet(Inline(FIRST[:2]), tmp_path / "whole"))
    per_curve, undisturbed = (
        Counter(curve_key(b.calls[0].point, b.axis) for b in read_blocks(each.folder))
        for each in (run, whole)
    )
    assert run.unfinished == 0
    enough = min(undisturbed.values())
    assert min(per_curve.values()) >= enough, per_curve
    assert max(per_curve.values()) <= 2 * enough + 8, per_curve


def test_a_curve_that_takes_every_worker_with_it_is_failed_with_the_reason(tmp_path):
    class Deadly(Inline):
        def result(self, reference):
            handle, method, args = self.replies[reference]
            if method == "begin":
                self.deadly = any(p.key.find("M=3 ") >= 0 for p in args[1])
            if method == "step" and self.deadly:
                handle[2].append(True)
            return super().result(reference)

    done = fleet(Deadly(["n0/cpu"]), tmp_path / "out", curves=4)
    run = one_run(done)
    assert run.failed == 33 and run.points == 3 * 33
    reasons = {s.reason for s in read_samples(run.folder) if s.status == "failed"}
    assert reasons == {"killed"}


def test_a_point_that_failed_once_and_was_measured_since_is_no_failure(tmp_path):
    calls = []

    def answer(point):
        calls.append(point)
        if len(calls) == 100:
            raise MeasurementError("a cosmic ray")
        return latency(point)

    device = RecordedDevice(answer, open_one().environment)
    run = one_run(fleet(Inline(FIRST[:1]), tmp_path / "out", lambda _: lambda: device, curves=1))
    assert [note.failed for note in read_notes(run.folder).values() if note.failed]
    assert (run.failed, run.points) == (0, 33)


def test_a_driver_that_was_killed_goes_on_where_it_was(tmp_path, alone):
    def interrupt(members):
        if sum(m.blocks for m in members) > 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fleet(Inline(FIRST), tmp_path / "out", watch=interrupt)
    (folder,) = (tmp_path / "out").iterdir()
    before = read_blocks(folder)
    with pytest.raises(MeasurementError, match="use --resume"):
        fleet(Inline(FIRST), tmp_path / "out")
    run = one_run(fleet(Inline(FIRST), tmp_path / "out", resume=True))
    assert read_blocks(folder)[: len(before)] == before and run.blocks > len(before) > 40
    assert findings(folder) == alone
    again = one_run(fleet(Inline(FIRST[:1]), tmp_path / "out", resume=True))
    assert again.blocks == run.blocks, "what is finished is not measured again"


def broken():
    raise MeasurementError("it fell off the bus")


def test_a_device_that_cannot_be_opened_is_left_out_and_named(tmp_path):
    def opener_on(place):
        return broken if place.name == "n1/cpu" else open_one

    done = fleet(Inline(FIRST), tmp_path / "out", opener_on)
    assert done.notes == ["n1/cpu: it fell off the bus"]
    assert one_run(done).unfinished == 0
    assert list(done.devices.values()) == [["n0/cpu", "n2/cpu"]]


class Older(Inline):
    def result(self, reference):
        found = super().result(reference)
        return found._replace(version="0.0.9") if hasattr(found, "version") else found


@pytest.mark.parametrize(
    ("cluster", "opener", "message"),
    [
        (Inline([]), opener_on, "no device to sweep on"),
        (Inline(FIRST[:1]), lambda place: broken, "could be opened: n0/cpu: it fell off the bus"),
        (Older(FIRST[:1]), opener_on, f"0.0.9 there and {gacprof.__version__} here"),
    ],
)
def test_a_fleet_without_a_usable_device_is_refused_in_words(tmp_path, cluster, opener, message):
    with pytest.raises(MeasurementError, match=message):
        fleet(cluster, tmp_path / "out", opener)


def test_a_suite_that_holds_nothing_for_a_device_is_refused(tmp_path):
    asked = suite_of(over("K", [8, 16], {"M": 1, "N": 8}, device="cuda"))
    with pytest.raises(SuiteError, match="holds nothing for a recorded device"):
        sweep_fleet(asked, Inline(FIRST), opener_on, tmp_path / "out", isolate=False)


def test_devices_that_go_for_good_end_the_sweep_with_what_there_is(tmp_path):
    cluster = Inline(FIRST[:1])
    cluster.dies = lambda place, number: number > 20
    with pytest.raises(MeasurementError, match=r"is left .*killed.*--resume"):
        fleet(cluster, tmp_path / "out")
    (folder,) = (tmp_path / "out").iterdir()
    before = read_blocks(folder)
    assert before
    run = one_run(fleet(Inline(FIRST[1:]), tmp_path / "out", resume=True))
    assert run.unfinished == 0 and run.blocks > len(before)


@pytest.mark.slow
def test_devices_of_one_machine_run_in_threads_with_processes_of_their_own(tmp_path, alone):
    run = one_run(fleet(Threads(["cpu", "cpu:1"]), tmp_path / "out", isolate=True, wait_s=60))
    assert run.unfinished == 0 and findings(run.folder) == alone
    assert len({b.device for b in read_blocks(run.folder)}) == 2


def test_a_broken_device_takes_no_curve_from_the_others(tmp_path, alone):
    """n1 opens and then cannot measure anything: its shares go to others, none is failed."""
    cluster = Inline(FIRST)
    cluster.dies = lambda place, number: (
        place.name == "n1/cpu" and cluster.methods[number] in ("begin", "step")
    )
    run = one_run(fleet(cluster, tmp_path / "out"))
    assert (run.failed, run.unfinished) == (0, 0) and findings(run.folder) == alone
    assert cluster.started.count("n1/cpu") <= 3


def test_what_the_driver_does_grows_with_the_devices_not_with_their_square(tmp_path):
    calls = {}
    for devices in (5, 20):
        cluster = Inline([f"n{i}/cpu" for i in range(devices)])
        sweep_fleet(suite(2, 64, 66), cluster, opener_on, tmp_path / f"{devices}", isolate=False)
        calls[devices] = cluster.calls
    assert calls[20] / calls[5] == pytest.approx(4, rel=0.1)


def test_a_budget_counts_from_the_first_block_not_from_the_start_of_workers(tmp_path):
    class Slow(Inline):
        def start(self, place, make):
            time.sleep(0.3)
            return super().start(place, make)

    run = one_run(fleet(Slow(FIRST[:1]), tmp_path / "out", budget_s=0.2))
    assert run.blocks > 0  # though the budget was over before the worker had started
    rest = one_run(fleet(Inline(FIRST[:1]), tmp_path / "out", resume=True))
    assert rest.blocks >= run.blocks and not rest.unfinished
