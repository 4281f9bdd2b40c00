"""The ``sweep`` verb: budgets, dry runs, workers, and what it refuses."""

import json
from contextlib import nullcontext

import numpy as np
import pytest
from recorded_device import RecordedDevice
from suites import over, suite_of

import gacprof
from gacprof.sweeping.estimate import START_S, estimate
from gacprof.sweeping.run import run_sweep

TINY = ("sweep", "--op", "linear", "--axis", "K", "--range", "8:11", "--fixed", "M=1,N=8",
        "--device", "cpu", "--out")  # fmt: skip


@pytest.mark.parametrize("isolate", [True, False])
def test_isolation_is_decided_in_one_place(run, tmp_path, monkeypatch, isolate):
    """The verb and the Python function ask the same, with the suite's number of processes."""
    asked = []

    def sweeper(name, **options):
        asked.append((name, options["isolate"], options["processes"]))
        return nullcontext(RecordedDevice(lambda point: 5.0))

    monkeypatch.setattr("gacprof.api.sweeps.sweeper", sweeper)
    flag = () if isolate else ("--no-isolate",)
    assert run(*TINY, tmp_path / "a", *flag).code == 0
    gacprof.sweep(
        operator="linear", axis="K", ranks=(8, 11), fixed={"M": 1, "N": 8}, device="cpu",
        out=tmp_path / "b", isolate=isolate,
    )  # fmt: skip
    assert asked == [("cpu", isolate, 3)] * 2


def test_a_dry_run_tells_points_and_time(run):
    message = json.loads(run("sweep", "full", "--dry-run", "--device", "cuda", "--json").out)
    assert message["points"] == len(message["of"]) and message["refined_curves"] == 3
    assert 0 < message["estimated_s"] <= message["longest_s"]
    assert message["longest_s"] <= message["budget_s"] + 60 and message["budget_s"] <= 480


def suite(values, **timing):
    return suite_of(over("K", values, {"M": 1, "N": 8}), **timing)


def test_an_estimate_grows_with_the_work_and_keeps_to_the_budget():
    fewer, more = (suite(range(1, n), blocks=12) for n in (20, 60))
    guess = estimate(fewer, "cuda")
    assert 0 < guess.seconds < estimate(more, "cuda").seconds <= guess.longest_s * 4
    assert guess.calls == 0
    alone = estimate(suite(range(1, 20), blocks=12, processes=1), "cuda")
    assert guess.seconds - alone.seconds == pytest.approx(2 * START_S["cuda"], abs=0.1)
    bounded = estimate(more, "recorded", budget_s=1e-3)
    assert bounded.seconds == bounded.longest_s == 1e-3


class Noisy(RecordedDevice):
    """Takes 300 µs, off by two per cent from call to call."""

    def __init__(self) -> None:
        super().__init__(self._call)
        self._draw, self.spent = np.random.default_rng(1), 0.0

    def _call(self, point):
        us = 300.0 * float(self._draw.lognormal(0, 0.02))
        self.spent += us / 1e6
        return us


def test_an_estimate_comes_true_within_a_factor_of_two(tmp_path):
    """Where noise is as usual: how noisy the device is shows only in the sweep."""
    asked, device = suite(range(1, 41), most_blocks=100), Noisy()
    found = estimate(asked, "recorded", device=Noisy())
    run_sweep(asked, device, tmp_path / "run")
    assert found.calls > 0
    assert device.spent / 2.2 < found.seconds < 2.2 * device.spent + 1


def test_a_device_on_which_all_calls_fail_leaves_a_guess():
    def refuse(point):
        raise RuntimeError("no")

    asked = suite(range(1, 61))
    assert estimate(asked, "recorded", device=RecordedDevice(refuse)) == estimate(asked, "recorded")


def test_clocks_are_not_locked_on_a_cpu(run, tmp_path):
    run(*TINY, tmp_path / "run", "--lock-clocks", "1000").refused("for GPUs")
    assert not (tmp_path / "run").exists()
