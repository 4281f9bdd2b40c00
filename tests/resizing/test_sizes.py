"""What realigning accepts as sizes: by dim, by a strategy, uniform widths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gacprof.checkpoint import scan
from gacprof.core.errors import CheckpointError, PlanError
from gacprof.resizing import realign
from gacprof.resizing.sizes import Padding

DIM = "model.layers.0.self_attn.q_proj:rank"


def test_a_checkpoint_on_disk_takes_strategies_and_sizes_too(make_factored, tmp_path):
    source = make_factored([5])
    assert realign(source, "minimal", tmp_path / "eight").resized[0].after == 8
    assert realign(source, {DIM: 7}, tmp_path / "seven").resized[0].after == 7
    assert scan(tmp_path / "seven").dim(DIM).size == 7


@pytest.mark.parametrize("size", ["8", 8.5, 8.0, True, 0, -8, 2**31, 10**12])
def test_a_size_is_a_whole_number_that_can_be(make_factored, tmp_path, size):
    with pytest.raises(PlanError, match="cannot have size"):
        realign(make_factored([5]), {DIM: size}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_dim_that_is_not_there_is_named_with_what_is(make_factored):
    inventory = scan(make_factored([5]))
    with pytest.raises(CheckpointError, match=f"no dim 'nope'; dims are named like '{DIM}'"):
        inventory.dim("nope")
    with pytest.raises(CheckpointError, match="no product of a weight 'nope'"):
        inventory.gemm("nope")


def test_dims_that_are_not_there_or_may_not_change_are_refused(make_factored, tmp_path):
    inventory = scan(make_factored([13]))
    with pytest.raises(PlanError, match="no dim 'somewhere:rank'"):
        realign(inventory, {"somewhere:rank": 8}, tmp_path / "out")
    name = inventory.dims[0].name
    with pytest.raises(PlanError, match="size 0"):
        realign(inventory, {name: 0}, tmp_path / "out")
    refused = replace(inventory.dims[0], padding="refused", why="because of a test")
    frozen = replace(inventory, dims=(refused,))
    with pytest.raises(CheckpointError, match="because of a test"):
        realign(frozen, {name: 16}, tmp_path / "out")
    hidden = replace(inventory, dims=(replace(inventory.dims[0], kind="hidden", ordered=False),))
    with pytest.raises(CheckpointError, match="only be padded"):
        realign(hidden, {name: 8}, tmp_path / "out")
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
