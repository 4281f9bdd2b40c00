"""Factors multiplied out: dense weights with plain names, and the same function."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gacprof.checkpoint import open_tensors, scan
from gacprof.core.errors import PlanError
from gacprof.resizing import Fuse, realign

Q = "model.layers.{}.self_attn.q_proj".format


def test_one_module_becomes_dense_and_the_others_stay(make_factored, tmp_path):
    source, out = make_factored([13, 11]), tmp_path / "out"
    result = realign(source, Fuse((Q(0),)), out)
    old, new = open_tensors(source), open_tensors(out)
    product = old.read(f"{Q(0)}.ALinear.weight").astype(np.float64) @ old.read(
        f"{Q(0)}.BLinear.weight"
    ).astype(np.float64)
    np.testing.assert_array_equal(new.read(f"{Q(0)}.weight"), product.astype(np.float32))
    np.testing.assert_array_equal(new.read(f"{Q(0)}.bias"), old.read(f"{Q(0)}.ALinear.bias"))
    assert not any(name.startswith(f"{Q(0)}.ALinear") for name in new)
    np.testing.assert_array_equal(
        new.read(f"{Q(1)}.ALinear.weight"), old.read(f"{Q(1)}.ALinear.weight")
    )
    config = json.loads((out / "config.json").read_text())
    assert config["truncation_ranks"] == {Q(1): 11}
    assert result.fused == (Q(0),) and not result.exact
    assert result.parameters_after == scan(out).parameters
    assert result.parameters_after - result.parameters_before == 24 * 24 - 2 * 24 * 13


def test_fusing_and_padding_in_one_pass(make_factored, tmp_path):
    out = tmp_path / "out"
    sizes = {f"{Q(0)}:rank": None, f"{Q(1)}:rank": 16}
    realign(scan(make_factored([13, 11])), sizes, out)
    found = scan(out)
    assert [d.size for d in found.dims] == [16]
    assert found.tensors[f"{Q(0)}.weight"].shape == (24, 24)


@pytest.mark.parametrize("folder", ["asvd_mha_r1", "palu_mha_gs4_block1", "svdllm_mha_0.6"])
def test_a_fused_checkpoint_is_a_plain_model_with_its_own_models_logits(
    folder, tools_checkpoints, tmp_path
):
    """Grouped factors too. The tolerance is that of rounding each fused weight to float16."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from gacprof.checkpoint.load import load_model

    source, out = tools_checkpoints / folder, tmp_path / "out"
    realign(source, "fuse", out)
    assert {m.kind for m in scan(out).modules} <= {"dense", "embedding"}
    truth = np.load(source / "ground_truth.npz")
    with torch.no_grad():
        model = load_model(out, "float32")
        logits = model(torch.from_numpy(truth["input_ids"])).logits
    np.testing.assert_allclose(logits.numpy(), truth["logits"], atol=1e-3)


def test_what_cannot_be_fused_is_refused(make_factored, tools_checkpoints, tmp_path):
    source = make_factored([13])
    with pytest.raises(PlanError, match="not a factored module"):
        realign(source, Fuse(("model.norm",)), tmp_path / "out")
    palu = scan(tools_checkpoints / "palu_mha_gs4_block1")
    half = {"model.layers.1.self_attn.k_proj:rank.0": None}
    with pytest.raises(PlanError, match="all its ranks or not at all"):
        realign(palu, half, tmp_path / "out")
    with pytest.raises(PlanError, match="no rank"):
        realign(palu, {"model.layers.1.mlp:width": None}, tmp_path / "out")
    assert not (tmp_path / "out").exists()
