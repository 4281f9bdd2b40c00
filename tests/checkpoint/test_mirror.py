"""Configs and side files say the new sizes, and keep everything else."""

import json

import pytest
from checkpoint_making import checkpoint, restored
from test_layouts import gated

from gacprof.checkpoint import mirrored_files, scan


@pytest.fixture
def inventory_of(fixtures, tmp_path):
    return lambda name: scan(restored(fixtures / "checkpoints" / f"{name}.headers", tmp_path))


def test_slicegpt_side_file(inventory_of):
    inventory = inventory_of("slicegpt_mha_s0.22_r1")
    (file,) = inventory.side
    old = inventory.side[file]
    sizes = {
        "embedding:hidden": 208,
        "model.layers.1.attn:hidden": 200,
        "model.layers.3.mlp:hidden": 264,
    }
    new = mirrored_files(inventory, sizes)[file]
    expected = json.loads(json.dumps(old))
    expected["embedding_dimensions"]["0"] = 208
    expected["attention_input_dimensions"]["0"] = 208
    expected["attention_output_dimensions"]["1"] = 200
    expected["mlp_input_dimensions"]["1"] = 200
    expected["mlp_output_dimensions"]["3"] = 264
    expected["head_dimension"] = 264
    assert new == expected


def test_the_width_is_written_where_it_becomes_uniform(inventory_of):
    inventory = inventory_of("llmpruner_mha_global_mlp_0.3")
    widths = {dim.name: 608 for dim in inventory.dims}
    assert mirrored_files(inventory, widths)["config.json"]["intermediate_size"] == 608
    first = {inventory.dims[0].name: 608}
    assert mirrored_files(inventory, first)["config.json"]["intermediate_size"] == 688


@pytest.mark.parametrize("part", ["text_config", "llm_config", "language_config"])
def test_a_multimodal_config_keeps_its_width_inside(tmp_path, part):
    config = {part: {"intermediate_size": 20, "a": 1}, "b": 2}
    inventory = scan(checkpoint(tmp_path, gated("model.layers.0.mlp", 20), config))
    new = mirrored_files(inventory, {"model.layers.0.mlp:width": 24})["config.json"]
    assert new == {part: {"intermediate_size": 24, "a": 1}, "b": 2}
    assert inventory.config == config


@pytest.mark.parametrize(
    ("prefix", "key"),
    [
        ("model.layers.0.mlp", "intermediate_size"),
        ("model.layers.0.mlp.experts.0", "moe_intermediate_size"),
        ("model.layers.0.mlp.shared_expert", "shared_expert_intermediate_size"),
    ],
)
def test_each_kind_of_width_has_its_own_key(tmp_path, prefix, key):
    config = {"intermediate_size": 20, "moe_intermediate_size": 20, "mine": {"kept": [1]}}
    config["shared_expert_intermediate_size"] = 20
    inventory = scan(checkpoint(tmp_path, gated(prefix, 20), config))
    new = mirrored_files(inventory, {f"{prefix}:width": 24})["config.json"]
    assert new == config | {key: 24}


@pytest.mark.parametrize(
    ("name", "key", "classes"),
    [
        ("asvd_mha_r1", "truncation_ranks", "ASVDLlamaForCausalLM"),
        ("palu_mha_gs4_block1", "head_wise_ranks", "PaluLlamaForCausalLM"),
    ],
)
def test_a_model_without_any_factors_left_is_a_plain_one(
    name, key, classes, fixtures, inventory_of
):
    whole = fixtures / "checkpoints" / name
    inventory = scan(whole) if whole.is_dir() else inventory_of(name)
    assert inventory.config["architectures"] == [classes]
    sizes = {dim.name: None for dim in inventory.dims if dim.kind == "rank"}
    new = mirrored_files(inventory, sizes)["config.json"]
    assert new["architectures"] == ["LlamaForCausalLM"] and new["model_type"] == "llama"
    assert key not in new and "auto_map" not in new
    kept = {"architectures", "model_type", "auto_map", key}
    assert {k: v for k, v in new.items() if k not in kept} == {
        k: v for k, v in inventory.config.items() if k not in kept
    }


def test_gpt2s_width_is_written_even_where_the_config_left_it_out(tmp_path):
    shapes = {
        "transformer.wte.weight": (50, 12),
        "transformer.h.0.mlp.c_fc.weight": (12, 48),
        "transformer.h.0.mlp.c_fc.bias": (48,),
        "transformer.h.0.mlp.c_proj.weight": (48, 12),
        "transformer.h.0.mlp.c_proj.bias": (12,),
    }
    config = {"model_type": "gpt2", "n_embd": 12, "n_head": 2, "intermediate_size": 7}
    for given, key in ((config | {"n_inner": 48}, "n_inner"), ({"n_embd": 12}, "n_inner")):
        inventory = scan(checkpoint(tmp_path / f"c{len(given)}", shapes, given))
        new = mirrored_files(inventory, {"transformer.h.0.mlp:width": 56})["config.json"]
        assert new == given | {key: 56}
