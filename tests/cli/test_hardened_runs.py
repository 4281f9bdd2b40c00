"""Run folders that are unfinished or garbled, absurd numbers, and files of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from planted import write_run
from recorded_device import RecordedDevice
from suites import over, suite_of

from gacprof.demonstrating.models import write_demo_checkpoint
from gacprof.diagnosing import diagnose
from gacprof.sweeping import build_map_of, read_blocks, run_sweep
from gacprof.sweeping.store import read_notes


def swept(folder: Path) -> Path:
    """Of two curves, at N = 32 and N = 64."""
    axis = over("K", range(64, 73), {"M": 4, "N": [32, 64]}, dtype="float32")
    device = RecordedDevice(lambda point: 10.0 + point.dim["K"])
    run_sweep(suite_of(axis, blocks=6, most_blocks=6), device, folder)
    return folder


def without_the_last_curve(folder: Path) -> None:
    """As an interrupt before its first block leaves it."""
    header = json.loads((folder / "run.json").read_text())
    blocks = [b for b in read_blocks(folder) if b.calls[0].point.dim["N"] == 32]
    write_run(folder, header, blocks, read_notes(folder))


def test_a_map_of_an_unfinished_sweep_says_so_everywhere(run, tmp_path):
    folder = swept(tmp_path / "run")
    assert run("map", "build", folder).code == 0
    without_the_last_curve(folder)
    message = run("map", "build", folder)
    assert message.code == 1 and "1 curve of the suite not measured" in message.err
    assert "N=64" in message.err and f"gacprof sweep --resume --out {folder}" in message.err
    loaded = build_map_of(folder)
    assert len(loaded.file.unmeasured) == 1
    found = diagnose(write_demo_checkpoint(tmp_path / "model"), loaded)
    assert any("the map is incomplete: 1 curves" in note for note in found.notes)
    assert "incomplete" in run("map", "show", folder / "cliffmap.json").out


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "none", "--map", "a100-published", "--pin", "*=" + "9" * 5000),
        ("map", "candidates", "a100-published", "--op", "linear", "--axis", "K", "--near", "64",
         "--fixed", "M=" + "9" * 5000),
        ("map", "candidates", "a100-published", "--op", "linear", "--axis", "K", "--near", "64",
         "--window", "9" * 5000),
        ("sweep", "quick", "--budget", "9" * 400),
    ],
    ids=["pin", "fixed", "window", "budget"],
)  # fmt: skip
def test_numbers_of_thousands_of_digits_are_refused_in_a_line(run, arguments):
    run(*arguments).refused()


def test_no_verb_replaces_a_file_that_is_not_its_own(run, tmp_path):
    folder = swept(tmp_path / "run")
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    run("map", "build", folder, "--out", notes).refused()
    run("map", "export", "a100-published", "--out", notes).refused()
    run("map", "table", "a100-published", "--table", "A2", "--out", notes).refused()
    assert notes.read_text() == "mine"
    out = tmp_path / "export.json"
    for _ in range(2):  # its own it may
        assert run("map", "build", folder).code == 0
        assert run("map", "export", "a100-published", "--out", out).code == 0


@pytest.mark.parametrize(
    "damage",
    [
        {"environment": {}},
        {"environment": {"kind": "cpu\ncpu", "name": "a", "arch": "b"}},
        {"suite": []},
        {"suite_hash": 7},
        {"timer": None},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_a_resume_by_a_garbled_header_is_refused_in_a_line(run, tmp_path, damage):
    folder = swept(tmp_path / "run")
    header = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(header | damage))
    run("sweep", "--resume", "--device", "cpu", "--no-isolate", "--out", folder).refused()
    run("explain", "a100-published", "--samples", folder).refused()
