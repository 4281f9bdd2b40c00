"""The ``sweep`` verb: budgets, dry runs, workers, and what it refuses."""

import json

import pytest
from gacprof.sweeping.verdicts import FILE
from typer.testing import CliRunner

from gacprof.cli.app import app
from gacprof.cli.devices import duration_s
from gacprof.errors import MeasurementError, SuiteError
from gacprof.measure.recorded import RecordedDevice
from gacprof.sweeping.estimate import estimate
from gacprof.sweeping.store import read_samples
from gacprof.sweeping.suite import load_suite, parse_suite

TINY = """
name = "tiny"
[timing]
passes = 1
count = 3
duplicates = 0
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


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("8m", 480), ("1h", 3600), ("1.5m", 90)]
)
def test_durations_are_written_as_people_do(text, seconds):
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-3s", "0", "8 days"])
def test_other_durations_are_refused(text):
    with pytest.raises(SuiteError, match="give a time such as"):
        duration_s(text)


def test_a_sweep_in_a_worker_confirmed(tiny, tmp_path):
    out = tmp_path / "run"
    told = sweep(tiny, "--device", "cpu", "--out", str(out), "--isolate", "--confirm")
    assert told.exit_code == 0, told.output
    assert len(read_samples(out)) == 4
    assert json.loads((out / FILE).read_text())["schema"] == "gacprof.confirmed/1"


def test_a_budget_leaves_the_rest_to_a_resume(tiny, tmp_path):
    where = ("--device", "cpu", "--out", str(tmp_path / "run"), "--json")
    first = json.loads(sweep(tiny, *where, "--budget", "0.001").stdout)
    rest = json.loads(sweep(tiny, *where, "--resume").stdout)
    assert (first["visits"], first["left"]) == (0, 4)
    assert (rest["visits"], rest["left"]) == (4, 0)


def test_a_dry_run_tells_points_and_time():
    told = json.loads(sweep("full", "--dry-run", "--device", "cuda", "--json").stdout)
    assert told["points"] == len(told["of"]) and told["refined_sweeps"] == 3
    low, high = told["estimated_s"]
    assert 0 < low < high <= told["budget_s"] <= 480


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


def test_an_estimate_grows_with_the_work_and_keeps_to_the_budget():
    suite = load_suite("cpu")
    slow = suite.model_copy(update={"timing": suite.timing.model_copy(update={"passes": 9})})
    guess, more = estimate(suite, "cpu"), estimate(slow, "cpu")
    assert 0 < guess.low_s < guess.high_s < more.high_s and guess.calls == 0
    tight = suite.timing.model_copy(update={"budget_s": 1.5})
    assert estimate(suite.model_copy(update={"timing": tight}), "cpu").high_s <= 1.5


@pytest.mark.parametrize("call_us", [40.0, 700.0])
def test_an_estimate_follows_the_device_it_can_try(call_us):
    """60 points, 3 passes: 216 visits of ten timings and four warm-up calls, or of 8 ms."""
    timing = {"passes": 3, "duplicates": 0.2, "cap_ms": 8, "edge_visits": 0}
    asked = suite_of(range(1, 61), timing)
    told = estimate(asked, "recorded", device=RecordedDevice(lambda point, n: [call_us] * n))
    assert told.calls == 3
    assert told.low_s == pytest.approx(216 * (14 * call_us + 300) / 1e6, rel=0.02)
    assert told.high_s == pytest.approx(216 * (4 * call_us + 8000 + 300) / 1e6, rel=0.02)


def suite_of(values, timing):
    sweep = {"operator": "linear", "axis": "K", "values": list(values), "dims": {"M": 1, "N": 8}}
    return parse_suite({"name": "t", "timing": timing, "sweep": [sweep]}, "t")


def test_a_device_on_which_all_calls_fail_leaves_a_guess():
    def refuse(point, n):
        raise RuntimeError("no")

    asked = suite_of(range(1, 61), {"count": 10})
    device = RecordedDevice(refuse)
    assert estimate(asked, "recorded", device=device) == estimate(asked, "recorded")


def test_clocks_are_not_locked_on_a_cpu(tiny, tmp_path):
    told = sweep(tiny, "--device", "cpu", "--lock-clocks", "1000", "--out", str(tmp_path / "run"))
    assert isinstance(told.exception, MeasurementError)
    assert "for GPUs" in str(told.exception)
    assert not (tmp_path / "run").exists()
