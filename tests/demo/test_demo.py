"""The demo: its model, its folder, its texts, and what it says of the uncompressed model."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from gacprof.checkpoint import scan
from gacprof.core.errors import GacprofError
from gacprof.demo.models import ranks, write_demo_checkpoint, write_texts
from gacprof.demo.run import (
    DENSE,
    MARKER,
    OWN,
    PLANNED,
    ROUNDED,
    _fresh,
    perplexities,
    run_demo,
    standings,
)


def test_the_model_is_a_llama_with_the_published_ranks(tmp_path):
    inventory = scan(write_demo_checkpoint(tmp_path / "model"))
    assert inventory.layout == "asvd"
    found = {d.name.removesuffix(":rank"): d.size for d in inventory.dims if d.kind == "rank"}
    assert found == ranks() and len(found) == 28


def test_the_model_is_the_same_every_time(tmp_path):
    files = [
        (write_demo_checkpoint(tmp_path / name) / "model.safetensors").read_bytes()
        for name in ("a", "b")
    ]
    assert files[0] == files[1]


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
        run_demo(tmp_path / "demo", device="cpu", model="org/typo")
    for name, reason in (("typo", "no such folder"), ("asvd", "compressed already")):
        with pytest.raises(GacprofError, match=reason):
            run_demo(tmp_path / "demo", device="cpu", model=tmp_path / name)
    assert old.exists()


def bench(**ratios):
    """Two workloads of these ratios to the reference: (low, middle, high), prefill and decode."""
    timings = [
        SimpleNamespace(
            model=name, workload=workload, ratio=ratio, latency_us=1e4 * (ratio or (1, 1, 1))[1]
        )
        for name, own in {OWN: (None, None), **ratios}.items()
        for workload, ratio in zip(("prefill 256", "decode 256"), own, strict=True)
    ]
    of = {(t.model, t.workload): t for t in timings}
    return SimpleNamespace(timings=timings, of=lambda model, workload: of[model, workload])


def test_the_uncompressed_model_is_told_of_first_where_it_wins_and_phases_stay_apart():
    timed = bench(
        **{
            ROUNDED: ((0.94, 0.95, 0.96), (0.96, 0.97, 0.98)),
            PLANNED: ((0.80, 0.82, 0.84), (1.01, 1.03, 1.05)),
            DENSE: ((0.76, 0.78, 0.79), (0.78, 0.96, 1.2)),
        }
    )
    first, none, prefill, decode = standings(timed)
    assert first == f"the {DENSE} model is surely the fastest in prefill 256"
    assert none == f"no model is shown to be faster than the {DENSE} one in decode 256"
    assert prefill.startswith(f"prefill 256: {DENSE} 7.80 ms (-22.0 % (-24.0 to -21.0)), {PLANNED}")
    assert f"{OWN} 9.99 ms" not in decode and decode.index(DENSE) < decode.index(ROUNDED)


def test_where_a_compressed_model_is_surely_faster_it_comes_first():
    timed = bench(
        **{
            PLANNED: ((0.70, 0.72, 0.74), (0.80, 0.82, 0.84)),
            DENSE: ((0.76, 0.78, 0.80), (1.1, 1.2, 1.3)),
        }
    )
    prefill, decode = standings(timed)
    assert prefill.startswith(f"prefill 256: {PLANNED}") and decode.endswith(
        "(+20.0 % (+10.0 to +30.0))"
    )


def test_perplexities_stand_with_their_change_the_best_first():
    ends = ("low", "value", "high")

    def model(name, value, change=None):
        return SimpleNamespace(
            model=name, perplexity=SimpleNamespace(value=value),
            perplexity_change=change and SimpleNamespace(**dict(zip(ends, change, strict=True))),
        )  # fmt: skip

    models = [model(OWN, 40.0), model(PLANNED, 19.5, (-0.55, -0.5125, -0.47)), model(DENSE, None)]
    assert perplexities(SimpleNamespace(models=models)) == (
        f"{PLANNED} 19.50 (-51.2 % (-55.0 to -47.0)), {OWN} 40.00 (the reference), "
        f"{DENSE} not finite"
    )
