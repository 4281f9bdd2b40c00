"""The products of 20 published models hold the parameters that their model cards count."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from gacprof.demands.configs import config_of
from gacprof.demands.model import products
from gacprof.demands.products import Ranks
from gacprof.linting import lint
from gacprof.linting.judging import parameters

FILE = Path(__file__).parents[2] / "tools" / "lint_models.toml"
MODELS = tomllib.loads(FILE.read_text(encoding="utf-8"))

BILLIONS = {
    "Llama-3_1-8B": 8.03, "Llama-3_3-70B": 70.55, "Llama-3_1-405B": 405.85, "Gemma-3-27B": 27.01,
    "Phi-4": 14.66, "Qwen2_5-72B": 72.71, "Qwen3-8B": 8.19, "Qwen3-32B": 32.76,
    "Qwen3-30B-A3B": 30.53, "Qwen3-235B-A22B": 235.09, "Qwen3-Coder-480B": 480.15,
    "Qwen3-Next-80B-A3B": 79.67, "DeepSeek-V2-Lite": 15.71, "DeepSeek-V3": 671.03,
    "Kimi-K2": 1026.4, "GLM-4_5-Air": 106.85, "MiniMax-M2": 228.7, "Mixtral-8x7B": 46.70,
    "gpt-oss-120b": 116.83, "Nemotron-3-Nano-30B-A3B": 31.58,
}  # fmt: skip
"""By the models' cards and weight indices, without layers that predict further tokens."""


@pytest.mark.parametrize("name", MODELS)
def test_the_products_hold_the_published_parameters(name):
    """But norms, biases, routers and other small weights: under 0.1 %."""
    assert parameters(config_of(MODELS[name])) == pytest.approx(BILLIONS[name] * 1e9, rel=1e-3)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tp", [2, 8])
def test_all_ranks_hold_the_whole_model_and_what_is_repeated(name, tp):
    config = config_of(MODELS[name])
    whole = {p.name: p for p in products(config, Ranks())}
    for one in products(config, Ranks(tp, tp, tp)):
        if one.kind in ("count", "vocab") or None in (one.n.value, one.k.value):
            continue
        held, alone = one.n.value * one.k.value, whole[one.name].n.value * whole[one.name].k.value
        repeats = one.split == "replicated" or one.name in ("qkv", "mamba.in_proj")
        assert held * tp >= alone if repeats else held * tp == alone


@pytest.mark.parametrize("name", MODELS)
def test_every_family_is_known(name):
    assert config_of(MODELS[name]).family is not None
    assert not lint(MODELS[name]).notes
