"""Exported folders: transformers alone computes what the checkpoint computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from decoders import write_decoder
from tool_folders import FIXTURES, filled
from torch import nn
from transformers import AutoModelForCausalLM

from gacprof.checkpoint.load import load_model
from gacprof.checkpoint.scan import scan
from gacprof.core.errors import CheckpointError
from gacprof.export.export import export

IDS = torch.arange(12)[None] * 7 % 288
EVERYTHING: dict[str, Any] = {
    "widths": (70, 96, 33),
    "heads": ((4, 2), (2, 1), (4, 2)),
    "ranks": {
        "model.layers.0.self_attn.q_proj": 13,
        "model.layers.0.self_attn.k_proj": [5, 7],
        "model.layers.1.mlp.down_proj": 19,
        "model.layers.2.mlp.gate_proj": 9,
        "lm_head": 21,
    },
}
"""Sizes that only our own model code has: factors, groups, widths and heads by layer."""


@pytest.fixture(autouse=True)
def modules_beside_the_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remote code is copied beside the test, not into the user's cache."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))


def in_transformers(folder: Path) -> nn.Module:
    load = AutoModelForCausalLM.from_pretrained
    model: nn.Module = load(folder, trust_remote_code=True, dtype=torch.float32).eval()
    return model


def logits_of(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.slow
def test_a_process_without_gacprof_gives_the_same_logits(tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "source", **EVERYTHING)
    result = export(source, tmp_path / "out")
    assert result.max_error is not None and result.max_error < 1e-5
    assert result.serve.keys() == {"transformers"}  # heads differ, and the head is factored
    assert scan(tmp_path / "out").parameters == scan(source).parameters
    expected = logits_of(load_model(source))
    torch.testing.assert_close(logits_of(load_model(tmp_path / "out")), expected)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_families(family: str, tmp_path: Path) -> None:
    ranks = {"model.layers.0.self_attn.q_proj": 13, "model.layers.1.mlp.up_proj": 11}
    source = write_decoder(tmp_path / "source", family=family, widths=(70, 33), ranks=ranks)
    result = export(source, tmp_path / f"out-{family}", check=False)
    assert result.serve.keys() == {"transformers", "vllm"} and result.max_error is None
    model = in_transformers(tmp_path / f"out-{family}")
    torch.testing.assert_close(logits_of(model), logits_of(load_model(source)))


@pytest.mark.parametrize(
    "name",
    ["asvd_mha_r1", "palu_mha_gs4_block1", "svdllm_mha_0.6", "llmpruner_mha_global_mlp_0.3"],
)
def test_the_tools_checkpoints(name: str, tmp_path: Path) -> None:
    source = FIXTURES / name
    if not source.exists():
        source = filled(name, tmp_path)
    export(source, tmp_path / "tool", check=False)
    expected = logits_of(load_model(source, dtype="float32"))
    torch.testing.assert_close(logits_of(in_transformers(tmp_path / "tool")), expected)


def test_modules_with_other_factors_have_other_classes(tmp_path: Path) -> None:
    """vLLM's Transformers backend looks at one module of every class."""
    export(write_decoder(tmp_path / "source", **EVERYTHING), tmp_path / "classes", check=False)
    layers = in_transformers(tmp_path / "classes").model.layers
    attentions = {type(layer.self_attn).__name__ for layer in layers[:2]}  # type: ignore[index]
    mlps = {type(layer.mlp).__name__ for layer in layers}  # type: ignore[union-attr]
    assert len(attentions) == 2 and len(mlps) == 3


def test_factors_are_split_where_the_model_is(tmp_path: Path) -> None:
    ranks: dict[str, int | list[int]] = {f"model.layers.{i}.self_attn.o_proj": 8 for i in range(2)}
    ranks["model.layers.0.self_attn.q_proj"] = 13
    export(write_decoder(tmp_path / "source", ranks=ranks), tmp_path / "tp", check=False)
    plan = in_transformers(tmp_path / "tp").config.base_model_tp_plan
    q, o = "layers.*.self_attn.q_proj", "layers.*.self_attn.o_proj"
    assert [key for key in plan if key.startswith(q)] == [f"{q}.inner", f"{q}.outer", q]
    assert (plan[f"{q}.inner"], plan[f"{q}.outer"]) == ("replicate", "colwise")
    assert (plan[f"{o}.inner"], plan[f"{o}.outer"], o in plan) == ("rowwise", "replicate", False)


def test_no_config_names_foreign_code(tmp_path: Path) -> None:
    foreign = {
        "attn_implementation": "org/kernel",
        "kernel_config": {"RMSNorm": "org/kernel:Norm"},
        "auto_map": {"AutoModelForCausalLM": "modeling_theirs.Model"},
    }
    plain = write_decoder(tmp_path / "plain")
    source = write_decoder(tmp_path / "source", **foreign)
    settings = {"auto_map": {"AutoTokenizer": ["theirs.Theirs", None]}, "eos_token": "</s>"}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    (source / "modeling_theirs.py").write_text("raise SystemExit\n")
    export(plain, tmp_path / "a", check=False)
    export(source, tmp_path / "b", check=False)
    assert (tmp_path / "a/config.json").read_text() == (tmp_path / "b/config.json").read_text()
    assert json.loads((tmp_path / "b/tokenizer_config.json").read_text()) == {"eos_token": "</s>"}
    assert not (tmp_path / "b/modeling_theirs.py").exists()


def test_what_is_no_decoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        export(filled("slicegpt_mha_s0.22_r1", tmp_path), tmp_path / "out")
    source = write_decoder(tmp_path / "source", family="qwen2")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))
    with pytest.raises(CheckpointError):
        export(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
