"""The public names: typed for checkers, listed for notebooks; results print and become tables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gacprof
from gacprof.checkpoint.inventory import Inventory
from gacprof.core.results import Table

ASVD = Path(__file__).parent / "fixtures" / "checkpoints" / "asvd_mha_r1"
WRONG = """
import gacprof
sizes: list[int] = gacprof.candidates(107, "cpu-example")
map_name: int = gacprof.load_map("cpu-example").name
gacprof.no_such_function()
right: float = gacprof.load_map("cpu-example").tolerance
"""


def test_mypy_sees_wrong_types_and_names(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    script = tmp_path / "script.py"
    script.write_text(WRONG)
    # only the script is checked: what it imports is read for its types
    options = ["--strict", "--follow-imports=silent", f"--cache-dir={tmp_path / 'cache'}"]
    options += ["--ignore-missing-imports", "--config-file="]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(script)],
        capture_output=True,
        text=True,
        cwd=Path(gacprof.__file__).parents[1],
    )
    lines = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert lines == {3, 4, 5}


def test_a_notebook_completes_the_public_names() -> None:
    assert sorted(dir(gacprof)) == sorted(gacprof.__all__)


@pytest.fixture(scope="module")
def results() -> dict[str, Table]:
    return {
        "scan": gacprof.scan(ASVD),
        "diagnose": gacprof.diagnose(ASVD, "h100"),
        "plan": gacprof.plan(ASVD, "h100"),
        "load_map": gacprof.load_map("cpu-example"),
    }


@pytest.mark.parametrize("verb", ["scan", "diagnose", "plan", "load_map"])
def test_a_result_prints_as_one_screen(results: dict[str, Table], verb: str) -> None:
    screen = str(results[verb])
    assert 1 < len(screen.splitlines()) < 60
    assert type(results[verb]).__name__ + "(" not in screen


def test_rows_of_a_result_are_a_table(results: dict[str, Table]) -> None:
    inventory, cliff_map = results["scan"], results["load_map"]
    assert isinstance(inventory, Inventory) and isinstance(cliff_map, gacprof.CliffMap)
    sizes = {dim.name: dim.size for dim in inventory.dims}
    assert dict(results["diagnose"].to_frame()[["dim.name", "dim.size"]].values) == sizes
    assert dict(results["plan"].to_frame()[["dim", "before"]].values) == sizes
    frame = cliff_map.to_frame()
    assert len(frame) == sum(len(curve.sizes) for curve in cliff_map.curves)
    misaligned = frame[frame["verdict"] == "misaligned"]
    assert (misaligned["penalty.value"] > cliff_map.tolerance).all()
