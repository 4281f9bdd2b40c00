"""Safe, misaligned, undecided: each with its bound and the tolerance, wherever a person looks."""

from __future__ import annotations

import json
import random
from math import exp
from pathlib import Path

import pytest
from recorded_device import RecordedDevice
from suites import over, suite_of

from gacprof.cliffmap import CliffMap
from gacprof.core.points import Point
from gacprof.diagnosing import diagnose
from gacprof.sweeping import build_map_of, run_sweep
from gacprof.sweeping.for_checkpoint import suite_for


def noisy(spread: float, seed: int = 0) -> RecordedDevice:
    """Multiples of 8 are 40 % faster, and each call is off by a factor of its own."""
    draw = random.Random(seed)

    def answer(point: Point) -> float:
        slow = 1.4 if any(point.dim[axis] % 8 for axis in "NK") else 1.0
        return 50.0 * slow * exp(draw.gauss(0, spread))

    return RecordedDevice(answer)


def sweep(folder: Path, spread: float) -> Path:
    axis = over("K", range(64, 97), {"M": 64, "N": 256}, dtype="float32")
    run_sweep(suite_of(axis, blocks=6, most_blocks=6), noisy(spread), folder)
    return folder


@pytest.fixture(scope="module")
def loud(tmp_path_factory) -> Path:
    return sweep(tmp_path_factory.mktemp("loud"), 0.6)


def test_a_map_too_noisy_to_judge_by_is_written_and_says_what_would_mend_it(run, loud):
    message = run("map", "build", loud)
    assert message.code == 1 and (loud / "cliffmap.json").is_file()
    assert message.err.count("\n") == 1 and "too noisy to judge by" in message.err
    assert f"gacprof sweep --resume --out {loud} --budget" in message.err
    summary = json.loads(run("map", "build", loud, "--json").out)
    assert "A/A floor" in summary["too_noisy"] and summary["tolerances"] == [0.02]
    assert summary["undecided"] > summary["safe"]
    assert "too noisy" in run("map", "show", loud / "cliffmap.json").out


@pytest.fixture(scope="module")
def rough(asvd, tmp_path_factory) -> CliffMap:
    """A map of the checkpoint's shapes that decides what costs 40 % and leaves the rest open."""
    from gacprof.checkpoint import scan

    folder = tmp_path_factory.mktemp("rough")
    tables = suite_for(scan(asvd), [64], dtype="float32").plain()["sweep"]
    products = [table for table in tables if table["operator"] == "linear"]
    suite = suite_of(*products, blocks=6, most_blocks=6)
    run_sweep(suite, noisy(0.05), folder / "run")
    return build_map_of(folder / "run", "rough")


def test_diagnose_and_plan_tell_undecided_dims_with_their_bounds(run, asvd, rough, tmp_path):
    rough.save(tmp_path / "rough.json")
    message = run("diagnose", asvd, "--map", tmp_path / "rough.json", "--all").out
    assert "undecided" in message and "at most" in message and "tolerance 2.0 %" in message
    assert "its dims are not why" not in message
    found = diagnose(asvd, rough).as_dict()
    assert found["totals"]["undecided"] and found["tolerance"] == 0.02
    asked = ("--map", tmp_path / "rough.json", "--out", tmp_path / "p.json", "--why")
    planned = run("plan", asvd, *asked)
    assert planned.code == 0, planned.err
    message = planned.out
    assert "by a tolerance of 2.0 %" in message and "undecided" in message
    made = json.loads((tmp_path / "p.json").read_text())
    assert made["tolerance"] == 0.02
    assert any(c["verdict"] == "undecided" and c["penalty_high"] > 0.02 for c in made["choices"])
