"""What a terminal of 80 columns shows, what a pipe gets, and how errors look as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from gacprof.cli import printing
from gacprof.cliffmap import CliffMap, MapLookupError
from gacprof.reporting.figures import staircase_text

HIDDEN = ["--op", "attention", "--axis", "head_dim"]


@pytest.fixture
def eighty(run, monkeypatch):
    """As ``run``, in a terminal of 80 columns."""

    def in_columns(*arguments):
        with monkeypatch.context() as patch:
            patch.setenv("COLUMNS", "80")
            patch.setattr(printing, "_seen", True)
            patch.setattr(printing, "out", Console())
            return run(*arguments)

    return in_columns


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    from gacprof.demonstrating.models import write_demo_checkpoint

    return write_demo_checkpoint(tmp_path_factory.mktemp("demo") / "model")


def tables(text: str) -> list[str]:
    """The lines of tables: from each header, which stands above a rule, to the first line that is
    no row."""
    lines, found = text.splitlines(), []
    for i, line in enumerate(lines):
        if line and set(line.strip()) == {"─"}:
            rows = [lines[i - 1], line]
            for row in lines[i + 1 :]:
                if len(row) != len(line):
                    break
                rows.append(row)
            found += rows
    return found


@pytest.mark.parametrize(
    "verb",
    [
        ["map", "list"],
        ["map", "show", "a100-published"],
        ["map", "diff", "a100-published", "h100-published"],
        ["map", "candidates", "h100-published", *HIDDEN, "--near", 107],
        ["map", "intersect", "a100-published", "h100-published", *HIDDEN],
        ["explain", "h100-published", "--op", "attention", "--d", 107, "--why"],
        ["diagnose", None, "--map", "cpu-example", "--why"],
        ["plan", None, "--map", "cpu-example", "--all"],
        ["pareto", None, "--map", "cpu-example", "--budgets", 3],
    ],
    ids=lambda verb: " ".join(map(str, verb[:2])),
)
def test_eighty_columns_hold_every_table_and_break_no_number(run, eighty, verb, model, tmp_path):
    arguments = [model if part is None else part for part in verb]
    if verb[0] == "plan":
        arguments += ["--out", tmp_path / "plan.json"]
    shown = eighty(*arguments)
    assert shown.code in (0, 1), shown.err
    lines = tables(shown.out)
    assert lines and max(map(len, lines)) <= 80
    whole = {cell for line in tables(run(*arguments).out) for cell in line.split()}
    numbers = {cell for line in lines for cell in line.split() if cell[:1].isdigit()}
    assert numbers <= whole | {cell.strip("().,") for cell in whole}


def test_columns_are_looked_at_by_a_process_that_starts(eighty):
    command = [sys.executable, "-m", "gacprof", "map", "list"]
    env = os.environ | {"COLUMNS": "80"}
    shown = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert (shown.returncode, shown.stdout) == (0, eighty("map", "list").out)


@pytest.mark.parametrize("columns", range(76, 100, 4))
def test_a_table_cuts_no_cell(columns, monkeypatch, capsys):
    """Whatever the width: what does not fit goes on in the next line, numbers stay whole."""
    titles = ("workload", "model", "latency", "tokens/s", "against first (95 %)", "verdict")
    rows = [
        ("decode 16", "1", "1.05 ms", "957", None, "reference"),
        ("prefill 512", "2", "101.42 ms", "111,270", "-4.6 % (-34.8 to +39.5)",
         "no difference shown"),
    ]  # fmt: skip
    monkeypatch.setattr(printing, "out", Console(width=columns))
    printing.print_table("", titles, rows)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert "-4.6 % (-34.8 to +39.5)" in lines[3] and "111,270" in lines[3]
    assert {"no", "difference", "shown"} <= {word for line in lines for word in line.split()}


def test_diagnose_shows_alike_dims_once_and_all_on_demand(run, model):
    few = run("diagnose", model, "--map", "cpu-example").out
    every = run("diagnose", model, "--map", "cpu-example", "--all").out
    assert "… and" in few and "--all" in few
    assert "… and" not in every and every.count("self_attn.k_proj") == 4


def test_plan_shows_what_changes_and_all_on_demand(run, model, tmp_path):
    asked = ("plan", model, "--map", "cpu-example", "--out", tmp_path / "plan.json")
    few, every = run(*asked).out, run(*asked, "--all").out
    choices = json.loads((tmp_path / "plan.json").read_text())["choices"]
    changed = sum(c["before"] != c["after"] for c in choices)
    assert few.startswith(f"The plan changes {changed} of {len(choices)} dims")
    assert "keep" not in few and len(tables(every)) == len(choices) + 2


def test_a_piped_verb_says_every_half_minute_how_far_it_is(capsys):
    from gacprof.cli.printing import progress

    times = iter([0.0, 10.0, 31.0, 40.0, 62.0, 70.0])
    with progress("compress", lambda: next(times)) as advance:
        for done in range(1, 6):
            advance(done, 10)
    message = capsys.readouterr().err.splitlines()
    assert message == [
        "gacprof: compress: 20 %, about 2 min left", "gacprof: compress: 40 %, about 93 s left",
    ]  # fmt: skip


def test_a_piped_compression_says_which_layer_and_how_long_its_pass_takes(capsys):
    from gacprof.cli.compressing import steps

    times = iter([0.0, 1.0, 16.0, 31.0, 46.0, 62.0])
    step = steps(lambda: next(times))
    for line in ("layer 1 of 2", "layer 2 of 2", *(f"gradients of layer {i} of 9" for i in (9, 8))):
        step(line)
    step("gradients of layer 7 of 9")
    assert capsys.readouterr().err.splitlines() == [
        "gacprof: gradients of layer 9 of 9",
        "gacprof: gradients of layer 7 of 9, about 2 min left",
    ]


def test_the_version(run):
    shown = run("--version")
    assert shown.code == 0 and shown.out.startswith("gacprof ")


def test_the_command_that_an_error_names_can_be_pasted(run):
    with pytest.raises(MapLookupError) as error:
        CliffMap.load("cpu-example").latency("linear", {"M": 7, "N": 9, "K": 11}, "float32")
    command = str(error.value).partition("to measure it: ")[2].split()
    shown = run(*command[1:], "--device", "cpu", "--dry-run", "--json")
    found = json.loads(shown.out)
    assert shown.code == 0 and found["points"] == 27 and found["curves"] == 1
    assert all("M=7" in point and "N=9" in point for point in found["of"])
    half = run("sweep", "--op", "linear", "--axis", "K")
    assert half.code == 2 and "--op linear --axis K --range 64:128" in half.err


def test_show_draws_a_few_curves_and_all_on_demand(run):
    asked = ("map", "show", "a100-published", "--op", "linear", "--axis", "N")
    few, every = run(*asked).out, run(*asked, "--all").out
    assert few.count("µs over N") == 2 and every.count("µs over N") == 4
    assert few.count("  cliff ") <= 12 < every.count("  cliff ")
    assert "--all" in few and "--all" not in every


def test_an_error_is_json_too_where_json_was_asked_for(run, tmp_path):
    shown = run("diagnose", tmp_path / "none", "--map", "a100-published", "--json")
    error = json.loads(shown.out)
    assert shown.code == 2 and error["schema"] == "gacprof.error/1"
    assert error["kind"] == "CheckpointError" and error["message"] in shown.err
    assert run("diagnose", tmp_path / "none", "--map", "a100-published").out == ""


def test_a_usage_error_is_json_too(run):
    error = json.loads(run("map", "list", "--json", "--nope").out)
    assert error["schema"] == "gacprof.error/1" and error["kind"] == "UsageError"


def test_the_staircase_marks_frontier_and_the_asked_dim():
    curve = CliffMap.load("h100-published").curve("attention", "head_dim")
    whole, around = staircase_text(curve, 80), staircase_text(curve, 80, asked=107)
    assert max(map(len, whole.splitlines())) <= 80 and "\x1b" not in whole
    assert whole.count("●") == 1 + len(curve.frontier)
    assert around.count("✕") == 2 and "✕ 107" in around
    assert staircase_text(curve, 80, asked=5000) == ""
