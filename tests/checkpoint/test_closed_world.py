"""The products of a config are the matrices of the model that transformers builds of it."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from model_types import default_config, tiny_config, without_weights
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto

from gacprof.checkpoint.coverage import Gap, tensor_gaps
from gacprof.checkpoint.from_config import TABLES, ConfigSizes, inventory_of_sizes
from gacprof.checkpoint.scan import inventory_of

KNOWN_HOLES = {"jetmoe": "attention whose q and o are routed to experts"}
"""Types some of whose products no row of families.toml describes. The list may only shrink."""
NO_CLASS = {"pixtral", "qwen3_omni_moe", "step3p5"}
"""Types of whose config transformers builds a part that is no language model."""
NEEDS = {"gemma3n": "timm"}
"""Types that need a library that isn't installed here."""
HEADS = {"head_dim": 128}
TINY: dict[str, dict[str, Any]] = {
    "dots1": {"n_shared_experts": 1},
    "gemma4": {"text_config": {"enable_moe_block": True}},
    "lfm2_moe": {"num_dense_layers": 1},
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "dbrx": {"attn_config": {"kv_n_heads": 8, "rope_theta": 1e4}},
    "dots1": {"n_shared_experts": 2, "n_routed_experts": 8, **HEADS},
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
    return [name for name in dict.fromkeys(listed) if name in names - NO_CLASS - NEEDS.keys()]


def gaps_of(config: Any) -> list[Gap]:
    described = inventory_of_sizes(ConfigSizes(config.to_dict()))
    return list(tensor_gaps(described, inventory_of(without_weights(config))))


@pytest.mark.parametrize("kind", types())
def test_products_of_a_tiny_config_are_the_matrices_of_its_model(kind: str) -> None:
    gaps = gaps_of(tiny_config(kind, **TINY.get(kind, {})))
    assert bool(gaps) == (kind in KNOWN_HOLES), gaps


@pytest.mark.parametrize("kind", types())
def test_products_of_the_default_sizes_are_the_matrices_of_the_model(kind: str) -> None:
    gaps = gaps_of(default_config(kind, **DEFAULTS.get(kind, {})))
    assert bool(gaps) == (kind in KNOWN_HOLES), gaps
