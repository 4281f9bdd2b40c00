"""The verb: what it refuses before anything is measured."""

from __future__ import annotations

from math import nan
from pathlib import Path

import pytest
from recorded_device import RECORDED

from gacprof.cliffmap.run_folder import RunHeader, RunWriter
from gacprof.core.errors import MeasurementError
from gacprof.sweeping.suite import load_suite
from gacprof.sweeping.sweep import sweep


@pytest.mark.parametrize("budget_s", [-3, 0, nan])
def test_a_budget_of_no_time_is_refused(tmp_path: Path, budget_s: float) -> None:
    with pytest.raises(MeasurementError):
        sweep("quick", budget_s=budget_s, out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_sweep_that_still_runs_is_not_resumed(tmp_path: Path) -> None:
    axes = load_suite("quick", "cpu").axes
    running = RunWriter.create(tmp_path / "run", RunHeader("quick", RECORDED, axes))
    with pytest.raises(MeasurementError):
        sweep("quick", out=running.path, device="cpu", resume=True)


def test_a_module_of_own_operators_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernels_of_mine.py").write_text(
        "import gacprof\n\n@gacprof.operator(x=('M', 'K'))\ndef doubled(x):\n    return x + x\n"
    )
    suite = tmp_path / "mine.toml"
    suite.write_text(
        'name = "mine"\n[[sweep]]\noperator = "doubled"\naxis = "K"\nvalues = [8, 9]\n'
        'dims = { M = 4 }\ndtype = "float32"\n'
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MeasurementError):
        sweep(suite, imports="no_such_module", dry_run=True)
    assert sweep(suite, device="cpu", imports="kernels_of_mine", dry_run=True).points == 2
