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


@pytest.fixture(autouse=True)
def _one_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure takes seconds."""
    monkeypatch.setattr("gacprof.reporting.page.MOST_CURVES", 1)


def test_a_model_is_diagnosed_and_planned_by_rules(asvd, tmp_path, monkeypatch, run) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    ended = run("report", asvd, "--gpu", "h100")
    assert ended.code == 0 and "report-asvd-mha-r1" in ended.out
    page = (tmp_path / "report-asvd-mha-r1" / "index.html").read_text()
    assert "12 of 29 weights have sizes that NVIDIA H100 SXM serves worse" in page
    assert 'id="diagnosis"' in page and 'id="plan"' in page and 'id="rules"' in page
    assert "µs" not in page.partition('id="rules"')[0]
    assert 'aria-label="Tiers of linear over K.' in page  # drawn, as an order and not as times
    assert "latency [" not in page and "predicted plan" not in page


def test_a_step_that_was_run_is_not_run_again_and_a_path_may_be_no_utf8(asvd, tmp_path) -> None:  # type: ignore[no-untyped-def]
    source = gacprof.rule_table("h100")
    plan = gacprof.plan(asvd, source, objective="pad").as_dict()
    model = shutil.copytree(asvd, tmp_path / os.fsdecode(b"m\xffd"))
    page = gacprof.report(model, out=tmp_path / "page", cliff_map=source, plan=plan)
    text = page.read_text(encoding="utf-8")
    assert "Objective <code>pad</code>" in text and "m\\udcffd" in text


def test_a_folder_of_the_verbs_files_is_read(tmp_path: Path) -> None:
    page = gacprof.report(MEASURED, out=tmp_path / "page").read_text()
    for section in ("measured", "function", "diagnosis", "plan", "map"):
        assert f'id="{section}"' in page, section


def test_what_makes_no_page_is_named_and_nothing_is_written(asvd: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copy(MEASURED / "bench.json", tmp_path / f"{name}.json")
    (tmp_path / "link").symlink_to(tmp_path / "link")
    (tmp_path / "x").write_text(json.dumps({"timings": []}))
    (tmp_path / "c").write_text(json.dumps({"schema": "gacprof.compress-result/1"}))
    page = tmp_path / "page"
    for asked, message in (
        ({"out": page, "model": tmp_path}, "two files of a bench"),
        ({"out": page, "model": asvd}, r"say what judges .*--gpu"),
        ({"out": page, "diagnosis": tmp_path / "x"}, "has no 'totals'"),
        (
            {"out": page, "verification": tmp_path / "c"},
            "c is gacprof.compress-result/1: here gacprof.verification/1 is taken",
        ),
        ({"out": tmp_path / "link", "model": asvd, "gpu": "h100"}, "a link that leads nowhere"),
    ):
        with pytest.raises(ReportError, match=message):
            gacprof.report(**asked)
    assert not page.exists()


def test_a_page_of_several_ranks_judges_what_one_holds(asvd: Path, tmp_path: Path) -> None:
    """Factor pairs have no plan under tensor parallelism: the page says so, and is made."""
    page = gacprof.report(asvd, out=tmp_path / "page", gpu="h100", tp=2).read_text()
    assert 'id="diagnosis"' in page and "no plan: " in page and "vllm,tp=2" in page
    with pytest.raises(GacprofError, match="ranks cannot share"):
        gacprof.report(asvd, out=tmp_path / "page", gpu="h100", tp=3)
