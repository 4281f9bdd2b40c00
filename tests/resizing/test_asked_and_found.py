"""What realigning accepts as sizes, and checkpoints that are not as they should be."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gacprof
from gacprof.checkpoint import scan
from gacprof.core.errors import CheckpointError, PlanError
from gacprof.resizing.result import EXACT

DIM = "model.layers.0.self_attn.q_proj:rank"


def test_a_checkpoint_on_disk_takes_strategies_and_sizes_too(make_factored, tmp_path):
    source = make_factored([5])
    assert gacprof.realign(source, "minimal", tmp_path / "eight").resized[0].after == 8
    assert gacprof.realign(source, {DIM: 7}, tmp_path / "seven").resized[0].after == 7
    assert scan(tmp_path / "seven").dim(DIM).size == 7


@pytest.mark.parametrize("size", ["8", 8.5, 8.0, True, 0, -8, 2**31, 10**12])
def test_a_size_is_a_whole_number_that_can_be(make_factored, tmp_path, size):
    with pytest.raises(PlanError, match="cannot have size"):
        gacprof.realign(make_factored([5]), {DIM: size}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_dim_that_is_not_there_is_named_with_what_is(make_factored):
    inventory = scan(make_factored([5]))
    with pytest.raises(CheckpointError, match=f"no dim 'nope'; dims are named like '{DIM}'"):
        inventory.dim("nope")
    with pytest.raises(CheckpointError, match="no product of a weight 'nope'"):
        inventory.gemm("nope")


def forget(folder, name):
    """Take a tensor out of the index; it stays in its shard."""
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"][name]
    path.write_text(json.dumps(index))


def test_a_tensor_lost_from_the_index_is_refused_and_not_dropped(make_factored, tmp_path):
    source = make_factored([5, 6], shards=2)
    lost = "model.layers.1.self_attn.q_proj.ALinear.weight"
    forget(source, lost)
    assert any(f"the shards hold '{lost}'" in note for note in scan(source).notes)
    with pytest.raises(CheckpointError, match=f"index leaves out '{lost}'.*belongs with"):
        gacprof.realign(source, "minimal", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_whole_layer_that_the_index_does_not_know_is_left_out_and_noted(make_factored, tmp_path):
    source = make_factored([5, 6], shards=2)
    shard = source / "model-00001-of-00002.safetensors"
    tensors = load_file(shard) | {"extra.head.weight": np.ones((2, 2), np.float32)}
    save_file(tensors, shard, {"format": "pt"})
    result = gacprof.realign(source, "minimal", tmp_path / "out")
    assert any("'extra.head.weight'" in note and "left out" in note for note in result.notes)
    assert "extra.head.weight" not in scan(tmp_path / "out").tensors


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nothing_exact_is_claimed_of_weights_that_are_not_finite(make_factored, tmp_path, value):
    source = make_factored([5])
    file = source / "model.safetensors"
    tensors = load_file(file)
    inner = "model.layers.0.self_attn.q_proj.BLinear.weight"
    tensors[inner] = tensors[inner].copy()
    tensors[inner][1, 2] = value
    save_file(tensors, file, {"format": "pt"})
    result = gacprof.realign(source, "minimal", tmp_path / "out")
    assert result.not_finite == (inner,) and not result.exact
    assert "NaN or infinity" in result.meaning and result.meaning != EXACT
