"""Several deployments of one model at once, and what a first line says of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gacprof.cli.app import main
from gacprof.core.errors import ConfigError
from gacprof.lint.lint import lint
from gacprof.lint.report import LintGrid, LintReport
from gacprof.reporting.page import report as write_page
from gacprof.reporting.sections import section_of

CONFIGS = Path(__file__).parents[1] / "fixtures" / "configs"
QWEN = CONFIGS / "qwen3-30b-a3b.json"
LLAMA = CONFIGS / "llama-3.2-1b-instruct.json"
FP8: dict[str, Any] = {"quantisation": "fp8-block"}


def grid_of(config: Path, **served: Any) -> LintGrid:
    grid = lint(config, **served)
    assert isinstance(grid, LintGrid)
    return grid


def test_every_combination_is_judged_as_it_is_alone_and_the_best_stand_first() -> None:
    engines, gpus, degrees = ("vllm", "sglang"), ("h100", "b200"), (1, 4)
    grid = grid_of(QWEN, engine=engines, gpu=gpus, tp=degrees, **FP8)
    assert len(grid.reports) == 8
    for report in grid.reports:
        assert report == lint(QWEN, engine=report.engine, gpu=report.gpu, tp=report.tp, **FP8)
    outcomes = [report.outcome for report in grid.reports]
    assert outcomes == ["ok"] * 4 + ["falls back"] * 2 + ["refused"] * 2
    assert not grid.ok


def test_one_deployment_is_a_report_however_it_is_written() -> None:
    report = lint(LLAMA, engine=["vllm"], gpu=("h100",), tp=[2, 2])
    assert report == lint(LLAMA, engine="vllm", gpu="h100", tp=2)


def test_unread_ones_stand_behind_those_that_are_served() -> None:
    grid = grid_of(QWEN, gpu=["mi300x", "h100"], tp=4, **FP8)
    assert [report.outcome for report in grid.reports] == ["falls back", "unknown"]


@pytest.mark.parametrize("words", [{"engine": ["vllm", "sglang"], "version": "0.32"}, {"tp": []}])
def test_a_version_of_several_engines_and_no_deployment_are_refused(words: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        lint(LLAMA, **words)


def test_the_command_line_prints_a_row_a_deployment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sarif = tmp_path / "findings.sarif"
    words = ["lint", str(QWEN), "--tp", "1", "4", "--gpu", "h100", "b200", "--engine", "vllm"]
    words += ["sglang", "--quantisation", "fp8-block", "--sarif", str(sarif), "--json"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 1
    written = json.loads(capsys.readouterr().out)
    assert len(written["reports"]) == 8
    (run,) = json.loads(sarif.read_text(encoding="utf-8"))["runs"]
    rules = {result["ruleId"].partition("/")[0] for result in run["results"]}
    assert rules == {"vllm", "sglang"}
    (tmp_path / "grid.json").write_text(json.dumps(written), encoding="utf-8")
    write_page([tmp_path / "grid.json"], tmp_path / "page")
    assert len(section_of(grid_of(QWEN, gpu=["h100", "b200"])).rows) == 2


def test_weights_of_a_rank_stand_beside_the_memory_of_its_gpu() -> None:
    whole, half = lint(LLAMA, gpu="h100"), lint(LLAMA, gpu="sm90", tp=2)
    assert whole.weights_gib == pytest.approx(2.3, abs=0.05) and whole.memory_gib == 80
    assert half.weights_gib == pytest.approx(1.15, abs=0.03) and half.memory_gib is None
    unlayered = {"model_type": "llama", "hidden_size": 4096}
    assert lint(unlayered, gpu="h100").weights_gib is None


@pytest.mark.parametrize(
    "served, is_only_the_gpu",
    [({}, True), ({"gpu": "h100"}, False), ({"version": "99"}, False), ({"ep": 3}, False)],
)
def test_a_gpu_is_asked_for_where_it_alone_is_missing(
    served: dict[str, Any], is_only_the_gpu: bool
) -> None:
    report: LintReport = lint(QWEN, **FP8, **served)
    assert report.needs_gpu == is_only_the_gpu


def test_pytorchs_dispatcher_is_asked_for_engines_that_call_it() -> None:
    assert lint(LLAMA, engine="transformers", gpu="h100").kernels
    assert not lint(LLAMA, engine="vllm", gpu="h100").kernels
