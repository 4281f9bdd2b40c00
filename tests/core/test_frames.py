"""Results as tables, for pandas and for notebooks."""

from __future__ import annotations

import pytest

import gacprof


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from gacprof.demonstrating.models import write_demo_checkpoint

    return write_demo_checkpoint(tmp_path_factory.mktemp("demo") / "model")


def test_a_curve_has_a_row_for_each_dim():
    curve = gacprof.CliffMap.load("h100-published").curve("attention", "head_dim")
    frame = curve.to_frame().set_index("head_dim")
    assert list(frame.index) == curve.points.d
    assert frame.latency_us[107] == pytest.approx(1332.05, rel=1e-4)
    assert frame.verdict[107] == "misaligned" and frame.verdict[128] == "safe"
    assert list(frame.index[frame.on_frontier]) == curve.frontier


def test_a_map_has_all_of_them():
    loaded = gacprof.CliffMap.load("h100-published")
    frame = loaded.to_frame()
    assert len(frame) == sum(len(curve.points.d) for curve in loaded.curves)
    assert set(frame.axis) == {"head_dim", "K", "N"} and frame.curve.nunique() == 4


def test_a_diagnosis_and_a_plan(model):
    found = gacprof.diagnose(model, "cpu-example")
    frame = found.to_frame()
    assert len(frame) == len(found.dims)
    assert frame.lost_us.sum() == pytest.approx(found.totals()["lost_us"])
    made = gacprof.plan(model, "cpu-example")
    sizes = made.to_frame().set_index("dim").after
    assert dict(sizes) == {choice.dim: choice.after for choice in made.choices}


def test_a_notebook_shows_few_rows_and_escapes_names(model):
    html = gacprof.CliffMap.load("a100-published")._repr_html_()
    assert html.startswith("<p>a100-published: NVIDIA A100 80GB") and html.count("<tr") < 30
    found = gacprof.diagnose(model, "cpu-example")
    assert "misaligned" in found._repr_html_() and "<Diagnosis" not in found._repr_html_()
