"""The whole survey on a recorded GPU: every stage leaves its artefact or its reason."""

import json
import os
import shutil
import stat
from dataclasses import replace
from itertools import pairwise

import pytest

from gacprof.cliffmap import CliffMap
from gacprof.core.errors import GacprofError, MeasurementError
from gacprof.devices.recorded import RecordedDevice
from gacprof.survey import STAGES, run_survey
from gacprof.survey.state import Outcome
from gacprof.survey.variants import DENSE, PADDED, PLANNED, ROUNDED, UNALIGNED
from gacprof.sweeping import build_map_of, read_blocks


@pytest.fixture
def no_ncu(monkeypatch):
    leave_out_ncu(monkeypatch)


@pytest.fixture
def without_models(monkeypatch):
    leave_out_models(monkeypatch)


def leave_out_ncu(patch):
    patch.setattr("gacprof.kernels.ncu_collect.find_ncu", lambda: None)


def leave_out_models(patch):
    """Whole models and figures, where a test is about something else."""

    def refuse(setting):
        raise GacprofError("no models in this test")

    patch.setattr("gacprof.survey.end_to_end.measure", refuse)
    patch.setattr("gacprof.survey.exhibits.figures", lambda setting: Outcome())


@pytest.fixture(scope="module")
def surveyed(h200, suite, tmp_path_factory):
    """A finished survey without models: (its folder, what it said)."""
    out = tmp_path_factory.mktemp("survey") / "out"
    with pytest.MonkeyPatch.context() as patch:
        leave_out_ncu(patch)
        leave_out_models(patch)
        return out, run_survey(out, machine=h200, suite=suite)


@pytest.fixture
def own_survey(surveyed, tmp_path):
    """A copy of it to go on with."""
    shutil.copytree(surveyed[0], tmp_path / "out")
    return tmp_path / "out"


def test_one_call_fills_every_row_of_a_gpu(h200, suite, tmp_path, no_ncu):
    done = run_survey(tmp_path / "out", machine=h200, suite=suite)
    out = tmp_path / "out"
    statuses = {name: record.status for name, record in done.stages.items()}
    assert list(statuses) == [stage.name for stage in STAGES]
    assert {n for n, s in statuses.items() if s != "done"} == {"counters"}
    assert "Nsight Compute" in done.stages["counters"].reason
    for record in done.stages.values():
        assert all((out / artefact).is_file() for artefact in record.artefacts)

    cliff_map = CliffMap.load(out / "cliffmap.json")
    assert cliff_map.environment.name == "NVIDIA H200"
    assert len(build_map_of(out).curves) == len(cliff_map.curves)  # samples.parquet holds it all

    data = json.loads((out / "end_to_end.json").read_text())
    assert not data["not_measured"]
    for result in data["results"].values():
        assert result["bench"]["models"] == [DENSE, UNALIGNED, ROUNDED, PADDED, PLANNED]
    rows = json.loads((out / "prediction.json").read_text())["rows"]
    assert {(r["workload"], r["batch"]) for r in rows} == {
        ("prefill 4", 1), ("decode 4", 1), ("decode 4", 2),
    }  # fmt: skip
    assert all(row["predicted_us"] > 0 and row["error"] is not None for row in rows)
    check_sum(rows)

    page = (out / "index.html").read_text()
    for heading in ("End to end", "Constraint tables", "A100, as published", "disagree about"):
        assert heading in page
    assert "sharing, throttling and ECC errors are unknown" in page


def check_sum(rows):
    """The dense toy's decode at batch 1, predicted by hand: eight products and an attention."""
    wanted = ("low rank", DENSE, "decode 4", 1)
    row = next(r for r in rows if (r["group"], r["variant"], r["workload"], r["batch"]) == wanted)
    shapes = [(32, 32), (16, 32), (16, 32), (32, 32), (80, 32), (80, 32), (32, 80), (64, 32)]
    products = sum(5 + n * k / 1e7 for n, k in shapes)
    assert row["predicted_us"] == pytest.approx(products + 10 + 16 / 8, rel=0.01)


def test_our_plan_is_aligned_and_no_larger_than_the_unaligned_model(surveyed):
    data = json.loads((surveyed[0] / "variants.json").read_text())
    by_name = {(v["group"], v["name"]): v for v in data["variants"]}
    for group in ("low rank", "pruned width"):
        ours, before = by_name[group, PLANNED], by_name[group, UNALIGNED]
        assert all(size % 8 == 0 for size in ours["sizes"].values())
        assert ours["parameters"] <= before["parameters"]


def test_a_stage_that_fails_loses_no_other(
    h200, suite, tmp_path, no_ncu, without_models, monkeypatch
):
    def broken(setting):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr("gacprof.survey.exhibits.figures", broken)
    done = run_survey(tmp_path / "out", machine=h200, suite=suite)
    assert done.stages["figures"].status == "failed"
    assert done.stages["figures"].reason == "ZeroDivisionError: a fault of ours"
    assert done.stages["end_to_end"].reason == "no models in this test"
    assert done.stages["tables"].status == done.stages["page"].status == "done"
    assert "a fault of ours" in (tmp_path / "out" / "index.html").read_text()


def test_a_second_call_measures_nothing_where_all_is_decided(
    gpu, h200, suite, surveyed, own_survey, no_ncu, without_models
):
    out, calls = own_survey, []
    first = surveyed[1]
    assert first.stages["sweep"].thin == ""
    before = read_blocks(out)

    def counting(point):
        calls.append(point)
        return gpu.latency_us(point)

    machine = replace(h200, device=RecordedDevice(counting, gpu.environment))
    again = run_survey(out, machine=machine, suite=suite, resume=True)
    assert len(again.calls) == 2 and calls == []
    assert read_blocks(out) == before


def test_a_second_call_goes_on_with_what_the_time_did_not_pay_for(
    h200, suite, tmp_path, no_ncu, without_models
):
    out = tmp_path / "out"
    first = run_survey(out, machine=h200, suite=suite, budget_s=1e-9)
    assert "not finished: the time was up" in first.stages["sweep"].thin
    again = run_survey(out, machine=h200, suite=suite, resume=True)
    assert again.stages["sweep"].thin == "" and again.stages["map"].status == "done"


def test_the_sweeps_of_a_survey_are_one_run_of_blocks_and_processes_told_apart(surveyed):
    out, _ = surveyed
    parts = [read_blocks(folder) for folder in sorted((out / "sweeps").iterdir())]
    merged = read_blocks(out)
    assert len(parts) == 3 and len(merged) == sum(map(len, parts))
    assert [block.number for block in merged] == list(range(len(merged)))
    ends = [0]
    for blocks in parts:
        ends.append(ends[-1] + len(blocks))
    processes = [{b.process for b in merged[a:b]} for a, b in pairwise(ends)]
    assert not processes[0] & processes[1] and not processes[1] & processes[2]
    assert [b.calls for b in merged] == [b.calls for blocks in parts for b in blocks]


def test_an_interrupted_survey_is_gone_on_with(gpu, h200, suite, tmp_path, no_ncu, without_models):
    out, taken = tmp_path / "out", []

    def interrupting(point):
        taken.append(point)
        if len(taken) == 60:
            raise KeyboardInterrupt
        return gpu.latency_us(point)

    device = RecordedDevice(interrupting, gpu.environment)
    with pytest.raises(KeyboardInterrupt):
        run_survey(out, machine=replace(h200, device=device), suite=suite)
    state = json.loads((out / "survey.json").read_text())
    assert state["stages"]["sweep"]["status"] == "interrupted"
    assert state["calls"][0]["ended"] == "interrupted in sweep"
    done = run_survey(out, machine=h200, suite=suite, resume=True)
    assert done.stages["sweep"].status == done.stages["map"].status == "done"


def test_a_budget_that_runs_out_leaves_what_is_missing_in_words(
    h200, suite, tmp_path, no_ncu, monkeypatch
):
    monkeypatch.setattr("gacprof.survey.exhibits.figures", lambda setting: Outcome())
    done = run_survey(tmp_path / "out", machine=h200, suite=suite, budget_s=1e-9)
    assert "not finished: the time was up" in done.stages["sweep"].thin
    assert (tmp_path / "out" / "index.html").is_file()
    for name in ("end_to_end", "prediction"):
        assert done.stages[name].status == "skipped" and done.stages[name].reason
    # How many blocks fit before the first look at the clock is the machine's affair.
    built = done.stages["map"]
    assert built.status == "done" or "measured nothing yet" in built.reason


def test_counters_are_asked_of_ncu_at_the_edges(h200, suite, tmp_path, monkeypatch, without_models):
    """An ncu that may not read counters: its refusal is the stage's reason, with what to do."""
    program = tmp_path / "bin" / "ncu"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho ERR_NVGPUCTRPERM\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    done = run_survey(tmp_path / "out", machine=h200, suite=suite)
    assert done.stages["counters"].status == "skipped"
    assert "ERR_NVGPUCTRPERM" in done.stages["counters"].reason


def test_a_gpu_with_little_memory_runs_fewer_layers(h200, suite, tmp_path, monkeypatch):
    from gacprof.survey.end_to_end import fitting
    from gacprof.survey.setting import Setting
    from gacprof.survey.shapes import LLAMA_3_8B
    from gacprof.survey.variants import all_variants

    cliff_map = CliffMap.load("a100-published")
    variants, notes = all_variants(LLAMA_3_8B, cliff_map)
    assert all(
        "no plan" in note for note in notes
    )  # that map has no such shapes: said, not guessed
    setting = Setting(tmp_path, replace(h200, shape=LLAMA_3_8B), suite)

    def layers(free):
        monkeypatch.setattr("gacprof.survey.end_to_end.free_bytes", lambda device: free)
        return fitting(setting, variants)[0].layers

    assert layers(140 << 30) == 32
    assert 1 <= layers(8 << 30) < 4
    with pytest.raises(MeasurementError, match="one layer of every variant"):
        layers(1 << 30)


def test_a_folder_of_something_else_is_left_alone(h200, suite, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("x")
    with pytest.raises(MeasurementError, match="holds no survey"):
        run_survey(tmp_path / "mine", machine=h200, suite=suite, resume=True)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["precious"]


def test_another_device_or_a_call_without_resume_is_refused(
    gpu, h200, suite, own_survey, no_ncu, without_models
):
    out = own_survey
    with pytest.raises(MeasurementError, match="use --resume"):
        run_survey(out, machine=h200, suite=suite)
    other = RecordedDevice(gpu.latency_us, replace(gpu.environment, name="NVIDIA B200"))
    with pytest.raises(MeasurementError, match="name was NVIDIA H200, here it is NVIDIA B200"):
        run_survey(out, machine=replace(h200, device=other), suite=suite, resume=True)
    (out / "survey.json").write_text('{"schema": "gacprof.survey/9"}')
    with pytest.raises(MeasurementError, match="another version"):
        run_survey(out, machine=h200, suite=suite, resume=True)


def test_the_recorded_gpu_serves_multiples_of_8_faster(gpu):
    """What the other tests rest on."""
    from gacprof.operators import point

    odd, even = (point("linear", {"M": 8, "N": 64, "K": k}, "float16", {}) for k in (63, 64))
    assert gpu.latency_us(odd) > gpu.latency_us(even)
