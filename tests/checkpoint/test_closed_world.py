"""The products of a config are the matrices of the model that transformers builds of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from model_types import default_config, tiny_config, without_weights
from tool_checkpoints import checkpoint, write_safetensors
from transformers.models.auto import modeling_auto

from gacprof.checkpoint.coverage import Gap, key_gaps
from gacprof.checkpoint.from_config import TABLES, ConfigSizes, inventory_of_sizes
from gacprof.checkpoint.scan import inventory_of, scan
from gacprof.checkpoint.storage import PLAIN
from gacprof.checkpoint.tensor_fit import (
    bias_gaps,
    factor_gaps,
    fit,
    odd_layers,
    part_gaps,
    tensor_gaps,
    unrecognised,
)
from gacprof.core.errors import ConfigError

ASVD = Path(__file__).parents[1] / "fixtures" / "checkpoints" / "asvd_mha_r1"
KNOWN_HOLES = {"jetmoe": "attention whose q and o are routed to experts"}
"""Types some of whose products no row of families.toml describes. The list may only shrink."""
NO_CLASS = {"pixtral", "qwen3_omni_moe", "step3p5"}
"""Types of whose config transformers builds a part that is no language model."""
TEXT_ONLY = {"gemma3n": "its vision tower needs timm"}
"""Types of which the text part alone is built."""
HEADS = {"head_dim": 128}
TINY: dict[str, dict[str, Any]] = {
    "dots1": {"n_shared_experts": 1},
    "gemma4": {"text_config": {"enable_moe_block": True}},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "lfm2_moe": {"num_dense_layers": 1},
    "nemotron_h": {"moe_latent_size": 24},
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "dbrx": {"attn_config": {"kv_n_heads": 8, "rope_theta": 1e4}},
    "dots1": {"n_shared_experts": 2, "n_routed_experts": 8, **HEADS},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "glm4_moe": HEADS,
    "glm4v_moe": {"text_config": HEADS},
    "gpt_neo": {"num_layers": 24},
    "hunyuan_v1_dense": HEADS,
    "hunyuan_v1_moe": {"num_experts": 4, "num_shared_expert": 1, **HEADS},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 4},
    "ministral": HEADS,
    "nemotron": {"num_key_value_heads": 8},
    "zamba2": {"num_hidden_layers": 54},
}
"""What published configs say, and the tiny sizes or the classes leave open."""


def types() -> list[str]:
    listed = chain.from_iterable(row["types"] for row in TABLES["families"].values())
    names = {
        *modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    }
    known = [name for name in dict.fromkeys(listed) if name in names - NO_CLASS]
    return [f"{name}_text" if name in TEXT_ONLY else name for name in known]


def gaps_of(config: Any) -> list[Gap]:
    sizes = ConfigSizes(config.to_dict())
    stored = inventory_of(without_weights(config))
    described = inventory_of_sizes(sizes)
    gaps = [*tensor_gaps(described, stored), *part_gaps(sizes, described, stored)]
    gaps += factor_gaps(stored)
    return [*gaps, *bias_gaps(sizes, stored), *odd_layers(sizes, PLAIN, stored)]


@pytest.mark.parametrize("kind", types())
def test_products_of_a_tiny_config_are_the_matrices_of_its_model(kind: str) -> None:
    gaps = gaps_of(tiny_config(kind, **TINY.get(kind, {})))
    assert bool(gaps) == (kind in KNOWN_HOLES), gaps


@pytest.mark.parametrize("kind", types())
def test_products_of_the_default_sizes_are_the_matrices_of_the_model(kind: str) -> None:
    gaps = gaps_of(default_config(kind, **DEFAULTS.get(kind, {})))
    assert bool(gaps) == (kind in KNOWN_HOLES), gaps


LLAMA = {
    **{"model_type": "llama", "hidden_size": 512, "intermediate_size": 1376, "vocab_size": 999},
    **{"num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 2},
}
ATTENTION = {"q": (512, 512), "k": (128, 512), "v": (128, 512), "o": (512, 512)}
MLP = {"gate": (1376, 512), "up": (1376, 512), "down": (512, 1376)}


def llama(**changed: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The shapes of a Llama of LLAMA's sizes but for those ``changed``, by tensor name."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (999, 512),
        "model.norm.weight": (512,),
        "lm_head.weight": (999, 512),
    }
    for layer in range(2):
        for block, parts in (("self_attn", ATTENTION), ("mlp", MLP)):
            for role, shape in parts.items():
                name = f"model.layers.{layer}.{block}.{role}_proj.weight"
                shapes[name] = changed.get(role, shape)
    return shapes


def gaps_in(
    folder: Path, shapes: Mapping[str, tuple[int, ...]], **sizes: Any
) -> set[tuple[str, str]]:
    """The kinds and names of gaps."""
    config = {**LLAMA, **sizes}
    stored = scan(checkpoint(folder, shapes, config))
    gaps = tensor_gaps(inventory_of_sizes(ConfigSizes(config)), stored)
    return {(gap.kind, gap.name) for gap in gaps}


def test_a_checkpoint_of_its_config_has_no_gap(tmp_path: Path) -> None:
    assert not gaps_in(tmp_path, llama())


def test_a_stale_width_is_a_role_of_another_size(tmp_path: Path) -> None:
    """A tool cut 8 hidden units and left the config as it was."""
    cut = llama(gate=(1368, 512), up=(1368, 512), down=(512, 1368))
    assert gaps_in(tmp_path, cut) == {("size", role) for role in MLP}


def test_factors_under_unknown_names_are_foreign_and_leave_a_product_without_tensor(
    tmp_path: Path,
) -> None:
    """o has the shape of q: by role it hides q no more than the embedding does."""
    factored = llama()
    for layer in range(2):
        q = f"model.layers.{layer}.self_attn.q_proj"
        del factored[f"{q}.weight"]
        factored |= {f"{q}.up.weight": (512, 119), f"{q}.down.weight": (119, 512)}
    gaps = gaps_in(tmp_path, factored)
    names = [f"model.layers.#.self_attn.q_proj.{factor}" for factor in ("up", "down")]
    assert gaps == {*(("tensor", name) for name in names), ("product", "q")}


def test_factors_under_unknown_names_are_gaps_where_no_config_describes_the_model(
    tmp_path: Path,
) -> None:
    """The config of a tool's own model says nothing of its products."""
    factored = llama()
    q = "model.layers.0.self_attn.q_proj"
    del factored[f"{q}.weight"]
    factored |= {f"{q}.left.weight": (512, 119), f"{q}.right.weight": (119, 512)}
    stored = scan(checkpoint(tmp_path, factored, {**LLAMA, "truncation_ranks": {}}))
    assert [gap.kind for gap in unrecognised(stored)] == ["factors"]
    assert not unrecognised(scan(ASVD))


def test_factors_that_a_layout_knows_count_as_their_dense_weight(tmp_path: Path) -> None:
    factored = llama()
    for layer in range(2):
        q = f"model.layers.{layer}.self_attn.q_proj"
        del factored[f"{q}.weight"]
        factored |= {f"{q}.ALinear.weight": (512, 119), f"{q}.BLinear.weight": (119, 512)}
    assert not gaps_in(tmp_path, factored)


def test_fused_and_stacked_weights_are_sums_of_products(tmp_path: Path) -> None:
    fused = {name: shape for name, shape in llama().items() if not name.endswith("k_proj.weight")}
    for layer in range(2):
        block = f"model.layers.{layer}.self_attn"
        del fused[f"{block}.q_proj.weight"], fused[f"{block}.v_proj.weight"]
        fused[f"{block}.qkv_proj.weight"] = (512 + 2 * 128, 512)
    assert not gaps_in(tmp_path, fused)


def test_packed_weights_count_as_what_they_hold(tmp_path: Path) -> None:
    """GPTQ's words of eight values of 4 bits, and bytes of two in MXFP4's blocks."""
    shapes = llama()
    for name in [name for name in shapes if name.endswith("up_proj.weight")]:
        n, k = shapes.pop(name)
        up = name.removesuffix(".weight")
        shapes |= {f"{up}.qweight": (k // 8, n), f"{up}.scales": (k // 32, n)}
        shapes |= {f"{up}.qzeros": (k // 32, n // 8)}
    for layer in range(2):
        mlp = f"model.layers.{layer}.mlp"
        shapes[f"{mlp}.experts.gate_up_proj_blocks"] = (4, 2 * 96, 512 // 32, 16)
        shapes[f"{mlp}.experts.gate_up_proj_scales"] = (4, 2 * 96, 512 // 32)
        shapes[f"{mlp}.experts.down_proj_blocks"] = (4, 512, 96 // 32, 16)
    config = LLAMA | {"model_type": "unlisted", "num_experts": 4, "moe_intermediate_size": 96}
    (tmp_path / "config.json").write_text(json.dumps(config))
    packed = dict.fromkeys(("gate_up_proj_blocks", "gate_up_proj_scales"), "uint8")
    packed |= {"down_proj_blocks": "uint8", "qweight": "int32", "qzeros": "int32"}
    write_safetensors(tmp_path / "model.safetensors", shapes, **packed)
    assert not list(tensor_gaps(inventory_of_sizes(ConfigSizes(config)), scan(tmp_path)))


def test_a_config_of_more_heads_than_the_tensors_have_names_each_role(tmp_path: Path) -> None:
    gaps = gaps_in(tmp_path, llama(), num_key_value_heads=8)
    assert gaps == {("size", "k"), ("size", "v")}


def test_the_three_cases_are_told_apart(tmp_path: Path) -> None:
    shapes = llama(gate=(1368, 512)) | {"model.layers.0.adapter.weight": (7, 512)}
    del shapes["model.layers.0.mlp.down_proj.weight"], shapes["model.layers.1.mlp.down_proj.weight"]
    stored = scan(checkpoint(tmp_path, shapes, LLAMA))
    found = fit(inventory_of_sizes(ConfigSizes(LLAMA)), stored)
    assert found.foreign == {"model.layers.#.adapter": [(7, 512)]}
    assert found.differing == {"gate": [(1368, 512)] * 2}
    assert [module.role for module in found.missing] == ["down"]


WIDTHS = {
    "LFM2-1.2B": (8192, {"model_type": "lfm2", "block_auto_adjust_ff_dim": True}, 12288),
    "LFM2-1.2B of fixed width": (12288, {"model_type": "lfm2"}, 12288),
    "Qwen-7B": (11008, {"model_type": "qwen"}, 22016),
    "Molmo-7B-D": (18944, {"model_type": "molmo"}, 37888),
}
"""Widths of gate that engines build, by models, with what the config says."""


@pytest.mark.parametrize("model", WIDTHS)
def test_widths_that_a_class_derives_from_the_stated_one(model: str) -> None:
    width, config, stated = WIDTHS[model]
    sizes = ConfigSizes({**LLAMA, **config, "intermediate_size": stated})
    gates = [m.out_features for m in inventory_of_sizes(sizes).modules if m.role == "gate"]
    assert gates == [width]


def shapes_of(config: Mapping[str, Any], role: str) -> list[tuple[int, int]]:
    modules = inventory_of_sizes(ConfigSizes(config)).modules
    return [(m.out_features, m.in_features) for m in modules if m.role == role]


def test_sliding_layers_have_heads_of_their_own() -> None:
    """MiMo-V2-Flash, as published: 39 of its 48 layers have 8 heads of keys and values."""
    config = {
        **{"model_type": "mimo_v2_flash", "hidden_size": 4096, "num_attention_heads": 64},
        **{"num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128},
        **{"swa_num_attention_heads": 64, "swa_num_key_value_heads": 8},
        **{"swa_head_dim": 192, "swa_v_head_dim": 128},
    }
    assert shapes_of(config, "k") == [(768, 4096), (1536, 4096)]
    assert shapes_of(config, "v") == [(512, 4096), (1024, 4096)]
    assert shapes_of(config, "o") == [(4096, 8192)] * 2


def test_kimi_linears_published_config_has_a_table_of_its_delta_attention() -> None:
    linear = {"num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4, "kda_layers": [1, 2]}
    config = {
        **{"model_type": "kimi_linear", "hidden_size": 2304, "num_attention_heads": 32},
        **{"head_dim": 72, "kv_lora_rank": 512, "linear_attn_config": linear},
    }
    assert shapes_of(config, "kda_out") == [(2304, 4096)]


def block(group: int | None, width: int | None = None, **ffn: Any) -> dict[str, Any]:
    """A block of a Puzzle model: so many heads share keys and values; None leaves a part out."""
    attention = {"no_op": group is None, "n_heads_in_group": group}
    if width:
        ffn["intermediate_size"] = width
    return {"attention": attention, "ffn": {"no_op": not ffn, **ffn}}


PUZZLE = LLAMA | {"model_type": "nemotron-nas", "num_key_value_heads": None}


def test_a_puzzle_models_blocks_are_read() -> None:
    """Widths and groups of each layer; a multiplier makes 2/3 of it a multiple of 256."""
    blocks = [block(4, 1024), block(4, ffn_mult=2.0), block(2, 1024), block(None, 640), block(8)]
    config = PUZZLE | {"block_configs": blocks}
    assert shapes_of(config, "gate") == [(640, 512), (768, 512), (1024, 512)]
    assert shapes_of(config, "k") == [(128, 512), (256, 512), (64, 512)]
    heads = inventory_of_sizes(ConfigSizes(config)).attentions
    assert [(a.layer, a.heads, a.kv_heads) for a in heads] == [(0, 8, 2), (1, 8, 4), (2, 8, 1)]


@pytest.mark.parametrize(
    "odd",
    [
        {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
        {"attention": {"no_op": True}, "ffn": {"moe": {"num_local_experts": 8}}},
        {"mamba": {"state_dim": 128}},
        {"attention": {"no_op": True}, "ffn": {"no_op": False}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": float("inf")}},
        {"attention": {}, "ffn": {"intermediate_size": 1024}},
    ],
)
def test_a_block_that_is_not_understood_whole_is_refused(odd: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="block_configs"):
        ConfigSizes(PUZZLE | {"block_configs": [block(4, 1024), odd]})


PER_LAYER = {"per_layer_config": {"0": {"intermediate_size": 1001}}}


def test_a_table_of_layers_that_no_engine_reads_is_judged_and_named() -> None:
    sizes = ConfigSizes(LLAMA | PER_LAYER)
    assert shapes_of(LLAMA | PER_LAYER, "gate") == [(1001, 512), (1376, 512)]
    assert [gap.name for gap in key_gaps(sizes)] == ["per_layer_config"]


def test_gemma_4s_table_of_layers_is_read() -> None:
    table = {"per_layer_config": {"01": {"head_dim": 128}}}
    config = LLAMA | {"model_type": "gemma4", "head_dim": 64} | table
    assert shapes_of(config, "q") == [(512, 512), (1024, 512)]
    assert not list(key_gaps(ConfigSizes(config)))
