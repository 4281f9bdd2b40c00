"""The ``sweep`` verb: budgets, dry runs, workers, and what it refuses."""

import json
from contextlib import nullcontext

import numpy as np
import pytest
from recorded_device import RecordedDevice
from typer.testing import CliRunner

from gacprof.cli.app import app
from gacprof.core.errors import MeasurementError
from gacprof.sweeping.estimate import estimate
from gacprof.sweeping.results import read_samples
from gacprof.sweeping.run import run_sweep
from gacprof.sweeping.suite import load_suite, parse_suite

TINY = """
name = "tiny"
[timing]
processes = 1
blocks = 4
most_blocks = 6
[[sweep]]
operator = "linear"
axis = "K"
values = [8, 9, 10, 11]
dims = { M = 1, N = 8 }
"""


@pytest.fixture
def tiny(tmp_path):
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    return str(file)


def sweep(*arguments):
    return CliRunner().invoke(app, ["sweep", *arguments], catch_exceptions=True)


def test_a_sweep_of_the_cpu_runs_in_a_worker(tiny, tmp_path):
    out = tmp_path / "run"
    message = sweep(tiny, "--device", "cpu", "--out", str(out))
    assert message.exit_code == 0, message.output
    assert "4 points on 1 curve" in message.output
    assert {s.point.dim["K"] for s in read_samples(out)} == {8, 9, 10, 11}


@pytest.mark.parametrize("isolate", [True, False])
def test_isolation_is_decided_in_one_place(tiny, tmp_path, monkeypatch, isolate):
    """The verb and the Python function ask the same, with the suite's number of processes."""
    import gacprof

    asked = []

    def sweeper(name, **options):
        asked.append((name, options["isolate"], options["processes"]))
        return nullcontext(RecordedDevice(lambda point: 5.0))

    monkeypatch.setattr("gacprof.api.sweeps.sweeper", sweeper)
    flag = () if isolate else ("--no-isolate",)
    assert sweep(tiny, "--device", "cpu", "--out", str(tmp_path / "a"), *flag).exit_code == 0
    gacprof.sweep(tiny, device="cpu", out=tmp_path / "b", **({} if isolate else {"isolate": False}))
    assert asked == [("cpu", isolate, 1)] * 2


def test_a_dry_run_tells_points_and_time():
    message = json.loads(sweep("full", "--dry-run", "--device", "cuda", "--json").stdout)
    assert message["points"] == len(message["of"]) and message["refined_curves"] == 3
    assert 0 < message["estimated_s"] <= message["longest_s"]
    assert message["longest_s"] <= message["budget_s"] + 60 and message["budget_s"] <= 480


@pytest.mark.parametrize(("name", "seconds"), [("quick", 60), ("full", 480)])
def test_suites_with_a_promised_time_keep_to_it(name, seconds):
    assert load_suite(name).timing.budget_s < seconds


def test_full_holds_every_operator_on_a_gpu():
    from gacprof.operators import OPERATORS

    used = {point.operator for point in load_suite("full").points("cuda")}
    assert used == set(OPERATORS)


def test_the_papers_together_are_the_paper():
    both = load_suite("paper-a").points("cuda").keys() | load_suite("paper-b").points("cuda").keys()
    assert load_suite("paper").points("cuda").keys() <= both


def suite_of(values, **timing):
    sweep = {"operator": "linear", "axis": "K", "values": list(values), "dims": {"M": 1, "N": 8}}
    return parse_suite({"name": "t", "timing": timing, "sweep": [sweep]}, "t")


def test_an_estimate_grows_with_the_work_and_keeps_to_the_budget():
    fewer, more = (suite_of(range(1, n), blocks=12) for n in (20, 60))
    guess = estimate(fewer, "cuda")
    assert 0 < guess.seconds < estimate(more, "cuda").seconds <= guess.longest_s * 4
    assert guess.calls == 0
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
    asked, device = suite_of(range(1, 41), most_blocks=100), Noisy()
    found = estimate(asked, "recorded", device=Noisy())
    run_sweep(asked, device, tmp_path / "run")
    assert found.calls > 0
    assert device.spent / 2.2 < found.seconds < 2.2 * device.spent + 1


def test_a_device_on_which_all_calls_fail_leaves_a_guess():
    def refuse(point):
        raise RuntimeError("no")

    asked = suite_of(range(1, 61))
    assert estimate(asked, "recorded", device=RecordedDevice(refuse)) == estimate(asked, "recorded")


def test_clocks_are_not_locked_on_a_cpu(tiny, tmp_path):
    message = sweep(
        tiny, "--device", "cpu", "--lock-clocks", "1000", "--out", str(tmp_path / "run")
    )
    assert isinstance(message.exception, MeasurementError)
    assert "for GPUs" in str(message.exception)
    assert not (tmp_path / "run").exists()
