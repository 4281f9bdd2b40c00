"""``import gacprof``: its names, what importing it costs, and one rule for Python and the verbs."""

from contextlib import nullcontext

import pytest
import torch
from planted import planted_device

import gacprof
from gacprof.core.errors import CheckpointError, MapError, SuiteError
from gacprof.evaluation.harness import TaskScore, TaskScores


def test_every_public_name_is_there():
    assert all(getattr(gacprof, name) is not None for name in gacprof.__all__)
    assert dir(gacprof) == sorted(gacprof.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonesuch'"):
        _ = gacprof.nonesuch


@pytest.fixture
def planted(monkeypatch, tmp_path):
    monkeypatch.setattr(
        "gacprof.api.sweeps.sweeper", lambda *_, **__: nullcontext(planted_device())
    )
    monkeypatch.chdir(tmp_path)


def test_a_sweep_goes_on_by_its_folder_alone(planted, asvd):
    first = gacprof.sweep(model=asvd, tokens=[64], window=0.01)
    assert str(first.folder).startswith("runs/")  # where no folder is named
    again = gacprof.sweep(out=first.folder, resume=True)
    assert (again.points, again.blocks) == (first.points, first.blocks)


def test_tokens_with_a_suite_are_refused_by_both(planted, run, tmp_path):
    with pytest.raises(SuiteError, match="names its own dims"):
        gacprof.sweep("quick", tokens=[1], out=tmp_path / "a")
    run("sweep", "quick", "--tokens", "1", "--out", tmp_path / "a").refused("names its own dims")


def test_ranks_of_shapes(planted):
    summary = gacprof.sweep(ranks_of=[(64, 48)], ranks=(8, 12), tokens=[4], dtype="float32")
    found = gacprof.safe_ranks((64, 48), gacprof.build_map(summary.folder))
    assert found


def test_frames_of_lints_and_intersections(asvd):
    found = gacprof.lint(asvd / "config.json", gpu="h100")
    assert list(found.to_frame()["name"]) == [row.name for row in found.products]
    both = gacprof.intersect(["a100-published", "h100-published"], "attention", "head_dim")
    assert list(both.to_frame()["d"]) == [dim.d for dim in both.dims]


def test_frames_of_comparisons_and_scores(a100):
    diff = gacprof.diff_maps(a100, "a100-published")
    assert set(diff.to_frame()["curve"]) == {curve.curve for curve in diff.curves} != set()
    score = TaskScore("m", "arc_easy", "acc,none", 0.5, 0.1, (1.0, 0.0))
    row = TaskScores((score,), "0.4").to_frame().iloc[0]
    assert (row["task"], row["value"], "examples" in row) == ("arc_easy", 0.5, False)


def test_one_map_as_a_name_or_a_value_stands_for_a_list_of_one(a100):
    asked = {"operator": "attention", "axis": "head_dim", "near": 107}
    by_value, by_name = (gacprof.candidates(maps=m, **asked) for m in (a100, "a100-published"))
    assert by_value == by_name and list(by_name.to_frame()["d"]) == [c.d for c in by_name]
    with pytest.raises(MapError, match="two different maps, not a100-published"):
        gacprof.intersect("a100-published", "attention", "head_dim")


def test_what_is_no_path_is_refused_in_a_line():
    with pytest.raises(CheckpointError, match="is no path: give a checkpoint's folder"):
        gacprof.scan(torch.nn.Parameter(torch.zeros(2, 2)))
    with pytest.raises(MapError, match="3 is no path: give a sweep's folder"):
        gacprof.build_map(3)
