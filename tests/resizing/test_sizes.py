"""What realigning accepts as sizes: by dim, by a strategy, uniform widths, no rank at all."""

import json
from dataclasses import replace

import numpy as np
import pytest

from gacprof.checkpoint import open_tensors, scan
from gacprof.core.errors import CheckpointError, PlanError
from gacprof.resizing import Fuse, realign
from gacprof.resizing.sizes import Padding

Q = "model.layers.{}.self_attn.q_proj".format
DIM = f"{Q(0)}:rank"


@pytest.mark.parametrize("size", ["8", 8.5, 8.0, True, 0, -8, 2**31, 10**400])
def test_a_size_is_a_whole_number_that_can_be(make_factored, tmp_path, size):
    with pytest.raises(PlanError, match="cannot have size"):
        realign(make_factored([5]), {DIM: size}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_dims_that_are_not_there_or_may_not_change_are_refused(make_factored, tmp_path):
    inventory = scan(make_factored([13]))
    (dim,) = inventory.dims
    refused = replace(dim, padding="refused", why="because of a test")
    for own, sizes, error, why in (
        (dim, {"somewhere:rank": 8}, PlanError, "no dim 'somewhere:rank'"),
        (dim, {dim.name: 0}, PlanError, "size 0"),
        (refused, {dim.name: 16}, CheckpointError, "because of a test"),
        (replace(dim, kind="hidden", ordered=False), {dim.name: 8}, CheckpointError, "only be pad"),
    ):
        with pytest.raises(error, match=why):
            realign(replace(inventory, dims=(own,)), sizes, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_strategy_leaves_refused_dims_and_names_them(make_factored, tmp_path):
    inventory = scan(make_factored([13, 11]))
    first = replace(inventory.dims[0], padding="refused", why="because of a test")
    found = Padding(8).request(replace(inventory, dims=(first, *inventory.dims[1:])))
    assert found.sizes == {"model.layers.1.self_attn.q_proj:rank": 16}
    assert found.notes == ("model.layers.0.self_attn.q_proj:rank stays 13: because of a test",)
    with pytest.raises(PlanError, match="boldest"):
        realign(inventory.path, "boldest", tmp_path / "out")
    with pytest.raises(PlanError, match="a multiple of 0"):
        realign(inventory.path, Padding(0), tmp_path / "out")


def test_uniform_widths_make_a_plain_model_that_transformers_loads(tools_checkpoints, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    source, out = tools_checkpoints / "llmpruner_mha_global_mlp_0.3", tmp_path / "out"
    result = realign(source, "uniform", out)
    assert {d.size for d in scan(out).dims} == {600}
    assert result.parameters_after - result.parameters_before == 3 * 256 * (152 + 2 * 161)
    model = transformers.AutoModelForCausalLM.from_pretrained(out, torch_dtype=torch.float32)
    truth = np.load(source / "ground_truth.npz")
    with torch.no_grad():
        logits = model(torch.from_numpy(truth["input_ids"])).logits
    np.testing.assert_allclose(logits.numpy(), truth["logits_fp32_rope"], atol=2e-5)


def test_factored_checkpoints_cannot_be_made_uniform(make_factored, tmp_path):
    with pytest.raises(CheckpointError, match="factored layers"):
        realign(make_factored([13]), "uniform", tmp_path / "out")


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
