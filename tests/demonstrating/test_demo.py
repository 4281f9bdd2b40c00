"""The demo: its model, its folder, its texts, and what it says of the uncompressed model."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from gacprof.checkpoint import scan
from gacprof.core.errors import GacprofError
from gacprof.demonstrating.models import ranks, write_demo_checkpoint, write_texts
from gacprof.demonstrating.run import (
    DENSE,
    MARKER,
    OWN,
    PLANNED,
    ROUNDED,
    _fresh,
    bench_lines,
    demo,
    quality_lines,
)


def test_the_model_is_a_llama_with_the_published_ranks(tmp_path):
    inventory = scan(write_demo_checkpoint(tmp_path / "model"))
    assert inventory.layout == "asvd"
    found = {d.name.removesuffix(":rank"): d.size for d in inventory.dims if d.kind == "rank"}
    assert found == ranks() and len(found) == 28
    again = write_demo_checkpoint(tmp_path / "again") / "model.safetensors"
    assert again.read_bytes() == (tmp_path / "model" / "model.safetensors").read_bytes()


def test_only_a_demos_folder_is_replaced(tmp_path):
    folder = _fresh(tmp_path / "demo")
    (folder / "old").write_text("x")
    assert not (_fresh(tmp_path / "demo") / "old").exists()
    assert (tmp_path / "demo" / MARKER).exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("x")
    with pytest.raises(GacprofError, match="holds no demo"):
        _fresh(tmp_path / "mine")
    assert (tmp_path / "mine" / "precious").exists()


def test_calibration_and_evaluation_text_are_disjoint(tmp_path):
    calibration, evaluation = (path.read_text() for path in write_texts(tmp_path))
    paragraphs = [{p.strip() for p in t.split("\n\n")} for t in (calibration, evaluation)]
    assert not paragraphs[0] & paragraphs[1]
    assert min(len(calibration), len(evaluation)) > 100_000


def test_a_model_that_cannot_be_used_is_refused_and_nothing_is_removed(tmp_path, fixtures):
    old = _fresh(tmp_path / "demo") / "old"
    old.write_text("x")
    shutil.copytree(fixtures / "checkpoints" / "asvd_mha_r1", tmp_path / "asvd")
    with pytest.raises(GacprofError, match="no such folder"):  # no hub is asked
        demo(tmp_path / "demo", device="cpu", model="org/typo")
    for name, reason in (("typo", "no such folder"), ("asvd", "compressed already")):
        with pytest.raises(GacprofError, match=reason):
            demo(tmp_path / "demo", device="cpu", model=tmp_path / name)
    assert old.exists()


def test_times_stand_beside_the_planned_models_and_each_verdict_has_its_line():
    found = {
        PLANNED: (None, "reference"),
        ROUNDED: ((0.98, 1.0, 1.02), "no difference shown"),
        OWN: ((1.05, 1.1, 1.15), "slower"),
        DENSE: ((0.8, 0.85, 0.9), "faster"),
    }
    timings = [
        SimpleNamespace(
            model=name, workload="decode 128", ratio=ratio, verdict=verdict, latency_us=1e4
        )
        for name, (ratio, verdict) in found.items()
    ]
    times, *sure = bench_lines(SimpleNamespace(timings=timings))
    assert times.startswith(f"decode 128: {PLANNED} 10.00 ms, {ROUNDED} 10.00 ms (+0.0 % (-2.0 to")
    assert sure == [
        f"decode 128: {PLANNED} is surely faster than {OWN}",
        f"decode 128: {PLANNED} is surely slower than {DENSE}",
        f"decode 128: no difference is shown between {PLANNED} and {ROUNDED}",
    ]


def test_perplexities_stand_beside_the_planned_models():
    def model(name, value, change=None):
        ends = ("low", "value", "high", "finding")
        return SimpleNamespace(
            model=name, perplexity=SimpleNamespace(value=value),
            perplexity_change=change and SimpleNamespace(**dict(zip(ends, change, strict=True))),
        )  # fmt: skip

    models = [
        model(PLANNED, 20.0), model(OWN, 40.0, (0.9, 1.0, 1.1, "worse")),
        model(ROUNDED, 42.0, (1.0, 1.1, 1.2, "worse")), model(DENSE, None),
    ]  # fmt: skip
    shown, *sure = quality_lines(SimpleNamespace(models=models))
    assert f"{PLANNED} 20.00, {OWN} 40.00 (+100.0 % (+90.0 to +110.0))" in shown
    assert shown.endswith(f"{DENSE} not finite")
    assert sure == [
        f"perplexity: {PLANNED} is surely better than {OWN} and {ROUNDED}",
        f"perplexity: no difference is shown between {PLANNED} and {DENSE}",
    ]
