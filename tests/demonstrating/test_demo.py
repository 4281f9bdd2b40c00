"""The demo: its model, its folder, its texts, and what it says of perplexities."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from gacprof.checkpoint import scan
from gacprof.core.errors import GacprofError
from gacprof.demonstrating.models import ranks, write_demo_checkpoint, write_texts
from gacprof.demonstrating.run import DENSE, MARKER, OWN, PLANNED, _fresh, _quality, demo


def test_the_model_is_a_llama_with_the_published_ranks(tmp_path):
    inventory = scan(write_demo_checkpoint(tmp_path / "model"))
    assert inventory.layout == "asvd"
    found = {d.name.removesuffix(":rank"): d.size for d in inventory.dims if d.kind == "rank"}
    assert found == ranks() and len(found) == 28
    again = write_demo_checkpoint(tmp_path / "again") / "model.safetensors"
    assert again.read_bytes() == (tmp_path / "model" / "model.safetensors").read_bytes()


def test_only_a_demos_folder_is_replaced(tmp_path):
    folder = _fresh(tmp_path / "demo", None)
    (folder / "old").write_text("x")
    assert not (_fresh(tmp_path / "demo", None) / "old").exists()
    assert (tmp_path / "demo" / MARKER).exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("x")
    with pytest.raises(GacprofError, match="holds no demo"):
        _fresh(tmp_path / "mine", None)
    assert (tmp_path / "mine" / "precious").exists()


def test_calibration_and_evaluation_text_are_disjoint(tmp_path):
    calibration, evaluation = (path.read_text() for path in write_texts(tmp_path))
    paragraphs = [{p.strip() for p in t.split("\n\n")} for t in (calibration, evaluation)]
    assert not paragraphs[0] & paragraphs[1]
    assert min(len(calibration), len(evaluation)) > 100_000


def test_a_model_that_cannot_be_used_is_refused_and_nothing_is_removed(tmp_path, fixtures):
    old = _fresh(tmp_path / "demo", None) / "old"
    old.write_text("x")
    shutil.copytree(fixtures / "checkpoints" / "asvd_mha_r1", tmp_path / "asvd")
    with pytest.raises(GacprofError, match="no such folder"):  # no hub is asked
        demo(tmp_path / "demo", device="cpu", model="org/typo")
    for name, reason in (("typo", "no such folder"), ("asvd", "compressed already")):
        with pytest.raises(GacprofError, match=reason):
            demo(tmp_path / "demo", device="cpu", model=tmp_path / name)
    assert old.exists()


def test_each_perplexity_has_what_it_is_beside_the_planned_models():
    rows = [
        {"model": PLANNED, "perplexity": 20.0, "finding": None},
        {"model": OWN, "perplexity": 40.0, "finding": "worse"},
        {"model": DENSE, "perplexity": None, "finding": None},
    ]
    said = _quality(SimpleNamespace(frame_rows=lambda: rows))
    assert said.endswith(f": {PLANNED} 20.00; {OWN} 40.00, worse; {DENSE} not finite.")
