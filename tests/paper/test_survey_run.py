"""The whole survey on a recorded GPU: every step leaves its files or its reason."""

import json
import os
import shutil
import stat

import pytest
from end_to_end import fitting, results
from llama import LLAMA_3_8B
from recorded_gpu import Gpu, latency_us
from steps import Clock, Step, begin, read_log, run_steps
from survey import script
from variants import DENSE, PADDED, PLANNED, ROUNDED, UNALIGNED, all_variants

from gacprof.cliffmap import CliffMap
from gacprof.core.errors import GacprofError, MeasurementError
from gacprof.sweeping import read_blocks

STEPS = ["doctor", "candidates", "sweep", "map", "shapes", "tables", "figures", "disputes",
         "counters", "end_to_end", "prediction", "page"]  # fmt: skip


@pytest.fixture
def no_ncu(monkeypatch):
    monkeypatch.setattr("gacprof.extras.evidence.collecting.find_ncu", lambda: None)


@pytest.fixture
def without_models(monkeypatch):
    leave_out_models(monkeypatch)


def leave_out_models(patch):
    """Whole models, figures and the page, where a test is about something else."""

    def refuse(self):
        raise GacprofError("no models in this test")

    patch.setattr("end_to_end.EndToEnd.measure", refuse)
    patch.setattr("survey.draw_all", lambda cliff_map, folder: ([], []))
    patch.setattr("gacprof.report", lambda out, **_: out)


@pytest.fixture(scope="module")
def surveyed(suite, tmp_path_factory):
    """The folder of a finished survey without models."""
    out = tmp_path_factory.mktemp("survey") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gacprof.extras.evidence.collecting.find_ncu", lambda: None)
        leave_out_models(patch)
        Gpu(patch, suite).survey(out).run()
    return out


@pytest.fixture
def own_survey(surveyed, tmp_path):
    """A copy of it to go on with."""
    shutil.copytree(surveyed, tmp_path / "out")
    return tmp_path / "out"


def steps_of(folder):
    return read_log(folder)["steps"]


def blocks_of(folder):
    return {name.name: read_blocks(name) for name in (folder / "sweeps").iterdir()}


@pytest.mark.slow
def test_one_call_fills_every_row_of_a_gpu(h200, tmp_path, no_ncu):
    out = tmp_path / "out"
    assert h200.survey(out).run()
    statuses = {name: step["status"] for name, step in steps_of(out).items()}
    assert list(statuses) == STEPS
    assert {n for n, s in statuses.items() if s != "done"} == {"counters"}
    assert "Nsight Compute" in steps_of(out)["counters"]["note"]
    cliff_map = CliffMap.load(out / "cliffmap.json")
    assert cliff_map.environment.name == "NVIDIA H200"

    (models,) = (out / "models").iterdir()
    timed = results(models)
    assert len(timed) == 6 and "6 of 6 runs" in steps_of(out)["end_to_end"]["note"]
    for result in timed:
        assert result["bench"]["models"] == [DENSE, UNALIGNED, ROUNDED, PADDED, PLANNED]
    rows = json.loads((out / "prediction.json").read_text())["rows"]
    assert {(r["workload"], r["batch"]) for r in rows} == {
        ("prefill 4", 1), ("decode 4", 1), ("decode 4", 2),
    }  # fmt: skip
    assert all(row["predicted_us"] > 0 and row["error"] is not None for row in rows)
    check_sum(rows)

    assert "The cliff map" in (out / "index.html").read_text()
    assert "### NVIDIA A100 80GB (published)" in (out / "tables.md").read_text()
    assert "does a rank reach attention?" in (out / "disputes.md").read_text()
    assert {f.name for f in (out / "figures").glob("figure-*.svg")} == {
        "figure-5-attention.svg", "figure-7-gemm-2k.svg", "figure-8-tensor-cores.svg",
    }  # fmt: skip
    page = (out / "README.md").read_text()
    assert "sharing, throttling and ECC errors are unknown" in page
    assert "eager prefill: predicted time is off by" in page
    assert "(tables.md)" in page and "(evidence/edges.ncu-rep)" not in page


def check_sum(rows):
    """The dense toy's decode at batch 1, predicted by hand: eight products and an attention."""
    wanted = ("low rank", DENSE, "decode 4", 1)
    row = next(r for r in rows if (r["group"], r["variant"], r["workload"], r["batch"]) == wanted)
    shapes = [(32, 32), (16, 32), (16, 32), (32, 32), (80, 32), (80, 32), (32, 80), (64, 32)]
    products = sum(5 + n * k / 1e7 for n, k in shapes)
    assert row["predicted_us"] == pytest.approx(products + 10 + 16 / 8, rel=0.01)


def test_our_plan_is_aligned_and_no_larger_than_the_unaligned_model(surveyed):
    data = json.loads((surveyed / "variants.json").read_text())
    by_name = {(v["group"], v["name"]): v for v in data["variants"]}
    for group in ("low rank", "pruned width"):
        ours, before = by_name[group, PLANNED], by_name[group, UNALIGNED]
        assert all(size % 8 == 0 for size in ours["sizes"].values())
        assert ours["parameters"] <= before["parameters"]


def test_a_second_call_measures_nothing_and_a_step_that_fails_loses_no_other(
    h200, own_survey, no_ncu, without_models, monkeypatch
):
    calls, before = [], blocks_of(own_survey)
    assert set(before) >= {"suite", "candidates", "disputes"} and len(before) == 4

    def broken(cliff_map, folder):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr("survey.draw_all", broken)
    h200.answers(lambda point: calls.append(point) or latency_us(point))
    assert not h200.survey(own_survey, resume=True).run()
    assert calls == [] and blocks_of(own_survey) == before
    steps = steps_of(own_survey)
    assert steps["figures"]["status"] == "failed"
    assert steps["figures"]["note"] == "ZeroDivisionError: a fault of ours"
    assert steps["end_to_end"]["note"] == "no models in this test"
    assert steps["tables"]["status"] == steps["page"]["status"] == "done"
    assert "a fault of ours" in (own_survey / "README.md").read_text()


def test_a_budget_that_runs_out_is_gone_on_with(h200, tmp_path, no_ncu, without_models):
    out = tmp_path / "out"
    h200.survey(out, budget_s=1e-9).run()
    first = steps_of(out)
    assert "failed" not in {step["status"] for step in first.values()}
    for name in ("sweep", "map", "shapes", "prediction"):
        assert first[name]["status"] == "skipped" and first[name]["note"]
    assert (out / "README.md").is_file() and not (out / "cliffmap.json").exists()
    h200.survey(out, resume=True).run()
    assert "not finished" not in steps_of(out)["sweep"]["note"]
    assert steps_of(out)["map"]["status"] == "done"


def test_an_interrupted_survey_is_gone_on_with(h200, tmp_path, no_ncu, without_models):
    out, taken = tmp_path / "out", []

    def interrupting(point):
        taken.append(point)
        if len(taken) == 60:
            raise KeyboardInterrupt
        return latency_us(point)

    h200.answers(interrupting)
    with pytest.raises(KeyboardInterrupt):
        h200.survey(out).run()
    assert steps_of(out)["candidates"]["status"] == "interrupted"
    assert "| candidates | interrupted |" in (out / "README.md").read_text()
    h200.answers()
    h200.survey(out, resume=True).run()
    assert steps_of(out)["candidates"]["status"] == steps_of(out)["map"]["status"] == "done"


def test_counters_are_asked_of_ncu_at_the_edges(h200, own_survey, tmp_path, monkeypatch):
    """An ncu that may not read counters: its refusal is the step's reason, with what to do."""
    program = tmp_path / "bin" / "ncu"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho ERR_NVGPUCTRPERM\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(GacprofError, match="ERR_NVGPUCTRPERM"):
        h200.survey(own_survey, resume=True).counters()


def test_a_gpu_with_little_memory_runs_fewer_layers(monkeypatch):
    variants, unplanned = all_variants(LLAMA_3_8B, CliffMap.load("a100-published"))
    assert all("no plan" in why for why in unplanned)  # that map has no such shapes: said
    free = 0
    monkeypatch.setattr("end_to_end.free_bytes", lambda device: free)

    def layers(bytes_free):
        nonlocal free
        free = bytes_free
        return fitting("cpu", LLAMA_3_8B, variants)[0].layers

    assert layers(140 << 30) == 32
    assert 1 <= layers(8 << 30) < 4
    with pytest.raises(MeasurementError, match="one layer of every variant"):
        layers(1 << 30)


def test_a_survey_begins_in_no_folder_of_something_else(tmp_path):
    out, mine = tmp_path / "out", tmp_path / "mine"
    mine.mkdir()
    (mine / "precious").write_text("x")
    begin(out, {"device": "NVIDIA H200"}, resume=False)
    for folder, facts, resume, message in (
        (mine, {}, True, "holds no survey"),
        (mine / "precious", {}, True, "is a file"),
        (out, {"device": "NVIDIA H200"}, False, "use --resume"),
        (out, {"device": "NVIDIA B200"}, True, "was NVIDIA H200, here it is NVIDIA B200"),
    ):
        with pytest.raises(MeasurementError, match=message):
            begin(folder, facts, resume=resume)
    assert [path.name for path in mine.iterdir()] == ["precious"]
    (out / "survey.json").write_text('{"schema": "another"}')
    with pytest.raises(MeasurementError, match="another version"):
        begin(out, {}, resume=True)


def test_steps_share_a_budget_by_deadlines(tmp_path):
    begin(tmp_path, {}, resume=False)
    clock, left = Clock(100.0), []
    assert Clock().left_s() is None
    steps = [
        Step(str(until), until, lambda: str(left.append(clock.left_s()))) for until in (0.5, 1)
    ]
    run_steps(steps, tmp_path, clock, lambda line: None)
    assert left == [pytest.approx(50, abs=5), pytest.approx(100, abs=5)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "cuda:99"), "cuda"),
        (("--device", "cpu", "--suite", "nonesuch"), "no suite 'nonesuch'"),
        (("--device", "cpu", "--budget", "soon"), "no time budget"),
    ],
)
def test_what_cannot_be_surveyed_is_refused_in_one_line(tmp_path, run, arguments, words):
    run(script, *arguments, "--out", tmp_path / "out").refused(words)
    assert not (tmp_path / "out").exists()
