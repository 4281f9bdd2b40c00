"""The page and the tables of results: every artefact of the chain has its section."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from planted import TOKENS, planted_map_of

import gacprof
from gacprof.check.verify import verify
from gacprof.cli.verbs import VERBS
from gacprof.cliffmap.cliffmap import load_map
from gacprof.core.errors import GacprofError
from gacprof.diagnosing.diagnosis import diagnose
from gacprof.diagnosing.explain import explain
from gacprof.export.export import Exported
from gacprof.lint.lint import lint
from gacprof.planning.pareto import pareto
from gacprof.planning.planner import plan
from gacprof.realigning.realign import realign
from gacprof.reporting.page import next_steps, read_artefact, report
from gacprof.reporting.sections import RESULTS, grouped, json_of, kind_of, section_of
from gacprof.sweeping.sweep import SweepSummary
from gacprof.virtual.ask import dispatch

ASVD = Path(__file__).parents[1] / "fixtures" / "checkpoints" / "asvd_mha_r1"


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files of a chain on the planted device: map, diagnosis, plan, verification."""
    folder = tmp_path_factory.mktemp("artefacts")
    cliff_map = planted_map_of(ASVD, dtype="float32")
    cliff_map.save(folder / "map.json")
    chosen = plan(ASVD, cliff_map, objective="pad", tokens=TOKENS, out=folder / "plan.json")
    realign(ASVD, chosen, folder / "aligned")
    printed = {
        "diagnosis": diagnose(ASVD, cliff_map, tokens=TOKENS),
        "verification": verify(ASVD, folder / "aligned"),
        "explanation": explain(51, cliff_map, dim="K", other=256, dtype="float32", tokens=TOKENS),
    }
    for name, result in printed.items():
        (folder / f"{name}.json").write_text(json.dumps(json_of(result)))
    return [folder / f"{name}.json" for name in ("map", "plan", *printed)]


def test_a_page_has_a_section_for_each_artefact(artefacts: list[Path], tmp_path: Path) -> None:
    page = report(artefacts, tmp_path / "page")
    text = page.read_text(encoding="utf-8")
    assert text.count('id="part-') == len(artefacts)
    assert "<svg" in text and "http" not in text.replace("http://www.w3.org", "")
    drawn = list((tmp_path / "page" / "figures").glob("*.svg"))
    assert len(drawn) == text.count("<figure>")


def test_json_is_read_back_as_it_was(artefacts: list[Path]) -> None:
    for path in artefacts:
        result = read_artefact(path)
        again = json.loads(json.dumps(json_of(result)))
        assert again == json.loads(path.read_text())


def test_every_dim_is_in_the_diagnosis(artefacts: list[Path]) -> None:
    diagnosis = read_artefact(artefacts[2])
    section = section_of(diagnosis)
    counts = [re.search(r" and (\d+) more$", row[0]) for row in section.rows]
    shown = sum(1 + int(count[1]) if count else 1 for count in counts)
    assert shown == len(diagnosis.dims) + len(diagnosis.fixed)


def test_equal_rows_stand_once() -> None:
    rows = grouped([("a", "1", "x"), ("b", "2", "x"), ("c", "1", "x")])
    assert rows == [("a and 1 more", "1", "x"), ("b", "2", "x")]


def test_a_table_and_a_shipped_map_have_sections() -> None:
    assert section_of(pd.DataFrame({"a": [1, 2]})).rows == [("1",), ("2",)]
    cliff_map = load_map("a100-published")
    assert len(section_of(cliff_map).rows) == len(cliff_map.curves)


@pytest.mark.parametrize("schema", ["other/1", "gacprof.Diagnosis/0", "gacprof.LintReport/1"])
def test_a_foreign_or_damaged_file_is_refused(schema: str, tmp_path: Path) -> None:
    (tmp_path / "foreign.json").write_text(json.dumps({"schema": schema}))
    with pytest.raises(GacprofError):
        report([tmp_path / "foreign.json"], tmp_path / "page")


@pytest.mark.parametrize("kind", RESULTS)
def test_every_result_is_public_and_names_its_schema(kind: str) -> None:
    name, _ = RESULTS[kind]
    assert kind_of(getattr(gacprof, name).schema) == kind


RESULTS_OF_VERBS = (
    lambda: lint({"model_type": "llama", "hidden_size": 4096}, gpu="h100"),
    lambda: dispatch("h100"),
    lambda: SweepSummary(Path("runs/a"), 2, 64, 24, 768, seconds=1.5),
    lambda: Exported("out", {"vllm": "vllm serve out"}, None),
)


@pytest.mark.parametrize("make", RESULTS_OF_VERBS)
def test_what_a_verb_prints_as_json_is_read_and_shown(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    result = make()
    (tmp_path / "result.json").write_text(json.dumps(json_of(result)))
    again = read_artefact(tmp_path / "result.json")
    assert again == result
    assert section_of(again) == section_of(result)


def test_plans_over_budgets_are_drawn(tmp_path: Path) -> None:
    table = pareto(ASVD, planted_map_of(ASVD, dtype="float32"), budgets=(0.9, 1.0), tokens=TOKENS)
    (tmp_path / "pareto.json").write_text(json.dumps(json_of(table)))
    page = report([tmp_path / "pareto.json"], tmp_path / "page")
    assert "<svg" in page.read_text(encoding="utf-8")


def test_the_page_names_its_model_and_what_is_left_to_do(
    artefacts: list[Path], tmp_path: Path
) -> None:
    text = report(artefacts[:3], tmp_path / "page").read_text(encoding="utf-8")
    title = re.search("<title>(.*)</title>", text)
    assert title and title[1].startswith(ASVD.name)
    commands = re.findall("<code>gacprof (\\w+) ", text)
    assert commands == ["realign", "verify", "bench", "export"]
    assert str(artefacts[1]) in text


@pytest.mark.parametrize("name", ["h200-measured", "cpu-example"])
def test_next_steps_are_commands_that_exist(name: str) -> None:
    steps = next_steps({name: load_map(name)})
    for _, line in steps:
        program, verb, *_ = line.split()
        assert program == "gacprof" and verb in VERBS
    assert name in steps[0][1]
