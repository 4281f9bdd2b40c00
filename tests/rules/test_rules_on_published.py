"""How far the rules hold on the published points, as docs/rules.md says, and where they do not."""

import re
import runpy
from pathlib import Path

import pytest
from planted_blocks import linear, numbered, planted

from gacprof.cliffmap.build import build_map
from gacprof.core.errors import MapError
from gacprof.core.points import Environment

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "rules_on_published.py"))
ROW = re.compile(r"^\| [AH]100 (?:row_sum )?\w+ \| \d+ \| .* \|$", re.M)


@pytest.fixture(scope="module")
def lines():
    return [line for given in SCRIPT["PUBLISHED"] for line in SCRIPT["lines"](given)]


def test_the_table_of_the_document_is_what_the_script_prints(lines, pytestconfig):
    """A safe size is right, a misaligned one too: no counter-example follows the rows."""
    text = (Path(pytestconfig.rootpath) / "docs" / "rules.md").read_text(encoding="utf-8")
    assert sorted(lines) == sorted(ROW.findall(text)) and len(lines) == 8


def test_some_sizes_of_each_gpu_are_called_safe_and_rightly(lines):
    for gpu in ("A100", "H100"):
        for axis in ("K", "N"):
            (row,) = (line for line in lines if line.startswith(f"| {gpu} {axis} |"))
            assert re.search(r"\| 100 % \(([2-9]|\d\d+)/\1\) \|", row), row


def test_rules_of_another_chip_are_refused():
    with pytest.raises(MapError, match="rules of a100 do not fit"):
        list(SCRIPT["lines"]("a100=h100-published"))


def test_a_size_that_rules_call_safe_and_that_was_measured_slow_is_named(tmp_path):
    points = linear("K", range(64, 193), M=512, N=1024)
    blocks = planted(points, "K", lambda k: 30.0 if k == 128 else 20.0, count=12)
    here = Environment("cuda", "NVIDIA H100 80GB HBM3", "sm90", {}, {"torch": "2.9.1"})
    build_map(numbered(blocks), here, name="slow").save(tmp_path / "slow.json")
    row, *wrong = SCRIPT["lines"](f"h100={tmp_path / 'slow.json'}")
    assert row.startswith("| H100 K | ") and "100 %" not in row.split(" | ")[2]
    assert any(one.endswith(": 128 is safe by rules, misaligned as measured") for one in wrong)
