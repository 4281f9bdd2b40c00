"""What a terminal of 80 columns shows, what a pipe gets, and how errors look as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gacprof.cliffmap import CliffMap
from gacprof.report.terminal import staircase_text

HIDDEN = ["--op", "attention", "--axis", "head_dim"]


def gacprof(*arguments, columns: int):
    """In a process of its own, which looks at COLUMNS when it starts."""
    env = os.environ | {"COLUMNS": str(columns)}
    command = [sys.executable, "-m", "gacprof", *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    from gacprof.demo.model import write_demo_checkpoint

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
        ["explain", "h100-published", "--op", "attention", "--d", 107],
        ["diagnose", None, "--map", "cpu-example"],
        ["plan", None, "--map", "cpu-example"],
        ["pareto", None, "--map", "cpu-example", "--budgets", 3],
    ],
    ids=lambda verb: " ".join(map(str, verb[:2])),
)
def test_eighty_columns_hold_every_table_and_break_no_number(run, verb, model, tmp_path):
    arguments = [model if part is None else part for part in verb]
    if verb[0] == "plan":
        arguments += ["--out", tmp_path / "plan.json"]
    shown = gacprof(*arguments, columns=80)
    assert shown.returncode in (0, 1), shown.stderr
    lines = tables(shown.stdout)
    assert lines and max(map(len, lines)) <= 80
    whole = {cell for line in tables(run(*arguments).out) for cell in line.split()}
    numbers = {cell for line in lines for cell in line.split() if cell[:1].isdigit()}
    assert numbers <= whole | {cell.strip("().,") for cell in whole}


def test_a_pipe_gets_whole_lines(run, model):
    shown = run("diagnose", model, "--map", "cpu-example").out
    assert "layers 2–3 self_attn.k_proj   rank 102 ×2  pad to 112" in shown


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
    assert f"{changed} of {len(choices)} dims change" in few
    assert "keep" not in few and every.count("[") >= len(choices)


def test_the_version(run):
    shown = run("--version")
    assert shown.code == 0 and shown.out.startswith("gacprof ")


def test_an_error_is_json_too_where_json_was_asked_for(run, tmp_path):
    shown = run("diagnose", tmp_path / "none", "--map", "a100-published", "--json")
    error = json.loads(shown.out)
    assert shown.code == 2 and error["schema"] == "gacprof.error/1"
    assert error["kind"] == "CheckpointError" and error["message"] in shown.err
    assert run("diagnose", tmp_path / "none", "--map", "a100-published").out == ""


def test_a_usage_error_names_the_verbs_own_help(run):
    assert "see 'gacprof map list --help'" in run("map", "list", "--nope").err


def test_the_staircase_marks_frontier_and_the_asked_dim():
    curve = CliffMap.load("h100-published").curve("attention", "head_dim")
    whole, around = staircase_text(curve, 80), staircase_text(curve, 80, asked=107)
    assert max(map(len, whole.splitlines())) <= 80 and "\x1b" not in whole
    assert whole.count("●") == 1 + len(curve.frontier)
    assert around.count("✕") == 2 and "✕ 107" in around
    assert staircase_text(curve, 80, asked=5000) == ""
