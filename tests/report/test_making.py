"""``gacprof report`` runs the steps that a model lacks, and reads a folder of what verbs wrote."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import gacprof
from gacprof.core.errors import GacprofError, ReportError

MEASURED = Path(__file__).parents[2] / "reports/cpu-example"


def test_a_model_is_diagnosed_and_planned_by_rules(asvd: Path, tmp_path: Path) -> None:
    page = gacprof.write_report(tmp_path / "page", model=asvd, gpu="h100").read_text()
    assert "12 of 29 weights have sizes that NVIDIA H100 SXM serves worse" in page
    assert 'id="diagnosis"' in page and 'id="plan"' in page and 'id="rules"' in page
    assert "µs" not in page.partition('id="rules"')[0]
    assert 'aria-label="Tiers of linear over K.' in page  # drawn, as an order and not as times
    assert "latency [" not in page and "predicted plan" not in page


def test_a_step_that_was_run_is_not_run_again(asvd: Path, tmp_path: Path) -> None:
    source = gacprof.rule_table("h100")
    plan = gacprof.plan(asvd, source, objective="pad").as_dict()
    page = gacprof.write_report(tmp_path / "page", model=asvd, cliff_map=source, plan=plan)
    assert "Objective <code>pad</code>" in page.read_text()


def test_a_folder_of_the_verbs_files_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gacprof.report.page.MOST_CURVES", 1)  # a figure takes seconds
    page = gacprof.write_report(tmp_path / "page", model=MEASURED).read_text()
    for section in ("measured", "function", "diagnosis", "plan", "map"):
        assert f'id="{section}"' in page, section


def test_two_files_of_a_kind_are_not_chosen_from(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copy(MEASURED / "bench.json", tmp_path / f"{name}.json")
    with pytest.raises(ReportError, match="two files of a bench"):
        gacprof.write_report(tmp_path / "page", model=tmp_path)


def test_a_model_needs_something_to_judge_it_by(asvd: Path, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"say what judges .*--gpu"):
        gacprof.write_report(tmp_path / "page", model=asvd)
    assert not (tmp_path / "page").exists()


def test_a_file_of_another_verb_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"timings": []}))
    with pytest.raises(ReportError, match="has no 'totals'"):
        gacprof.write_report(tmp_path / "page", diagnosis=tmp_path / "x.json")


def test_the_command_runs_the_steps_too(asvd, tmp_path, monkeypatch, run) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    ended = run("report", asvd, "--gpu", "h100")
    assert ended.code == 0 and "report-asvd-mha-r1" in ended.out
    assert (tmp_path / "report-asvd-mha-r1" / "index.html").is_file()


def test_a_path_that_is_no_utf8_is_reported(asvd: Path, tmp_path: Path) -> None:
    model = tmp_path / os.fsdecode(b"m\xffd")
    shutil.copytree(asvd, model)
    page = gacprof.write_report(tmp_path / "out", model=model, gpu="h100")
    assert "m\\udcffd" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("target", ["nowhere", "link"])
def test_a_link_that_leads_nowhere_is_named(asvd: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / target)
    with pytest.raises(ReportError, match="is a link that leads nowhere"):
        gacprof.write_report(tmp_path / "link", model=asvd, gpu="h100")


def test_a_page_of_several_ranks_judges_what_one_holds(asvd: Path, tmp_path: Path) -> None:
    """Factor pairs have no plan under tensor parallelism: the page says so, and is made."""
    page = gacprof.write_report(tmp_path / "page", model=asvd, gpu="h100", tp=2).read_text()
    assert 'id="diagnosis"' in page and "no plan: " in page and "vllm,tp=2" in page
    with pytest.raises(GacprofError, match="ranks cannot share"):
        gacprof.write_report(tmp_path / "page", model=asvd, gpu="h100", tp=3)
