"""Models of the tools' checkpoints give the frozen logits; what misfits is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from decoders import write_decoder
from golden_answers import is_made_here, logits_answer, logits_of, read_golden
from model_types import tiny_of
from safetensors.torch import load_file, save_file
from tiny_models import write_llama
from tool_folders import filled

from gacprof.check.bench import bench
from gacprof.checkpoint.load import load_model
from gacprof.checkpoint.scan import scan
from gacprof.core.errors import CheckpointError, ConfigError

FROZEN = read_golden("logits")


@pytest.mark.parametrize("name", [name for name in FROZEN if is_made_here(name)])
def test_logits_are_the_frozen_ones(name: str, tmp_path: Path) -> None:
    answer, frozen = logits_answer(name, tmp_path), FROZEN[name]
    assert answer["shape"] == frozen["shape"]
    assert answer["parameters"] == frozen["parameters"]
    tolerance = 4e-5 * max(map(abs, frozen["last_first_32"]))
    for key in ("last_first_32", "mean", "std"):
        assert answer[key] == pytest.approx(frozen[key], rel=0, abs=tolerance)


@pytest.mark.parametrize("kind", ["qwen2_moe", "granitemoe", "gpt2", "gpt_oss"])
def test_plain_models_compute_what_transformers_computes(kind: str, tmp_path: Path) -> None:
    model = tiny_of(kind)
    model.save_pretrained(tmp_path)
    assert torch.allclose(logits_of(load_model(tmp_path)), logits_of(model), atol=1e-4)


def test_the_widest_stored_dtype_is_computed_in_unless_one_is_named(tmp_path: Path) -> None:
    folder = filled("palu_mha_gs4_block1", tmp_path)
    assert next(load_model(folder).parameters()).dtype == torch.float16
    assert next(load_model(scan(folder), dtype="bf16").parameters()).dtype == torch.bfloat16


def edited(folder: Path, **settings: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    return folder


@pytest.mark.parametrize(
    "settings",
    [
        {"num_hidden_layers": 3},
        {"num_hidden_layers": 1},
        {"hidden_size": 128},
        {"model_type": "no_such_model"},
        {"model_type": ""},
    ],
)
def test_no_weight_stays_random_and_none_unused(settings: dict[str, Any], tmp_path: Path) -> None:
    folder = edited(write_llama(tmp_path / "model"), **settings)
    with pytest.raises(CheckpointError):
        load_model(folder)


def test_a_config_runs_no_code(tmp_path: Path) -> None:
    """Neither the checkpoint's own modules nor kernels from a hub."""
    folder = write_decoder(tmp_path / "model", ranks={"model.layers.0.mlp.up_proj": 7})
    before = logits_of(load_model(folder))
    (folder / "modeling_evil.py").write_text("raise SystemExit('was run')")
    edited(
        folder,
        auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"},
        attn_implementation="org/kernel",
        _attn_implementation="org/kernel",
        experts_implementation="org/kernel",
        use_kernels="org/kernel",
    )
    assert torch.equal(logits_of(load_model(folder)), before)


def test_a_shard_that_is_missing_is_refused(tmp_path: Path) -> None:
    folder = write_decoder(tmp_path / "model", sharded=True)
    assert len(scan(folder).tensors) == 21
    shutil.move(folder / "model-1.safetensors", tmp_path)
    with pytest.raises(CheckpointError, match=r"model-1\.safetensors"):
        scan(folder)


def with_types(folder: Path, dtype: torch.dtype) -> Path:
    state = load_file(folder / "model.safetensors")
    changed = {name: tensor.to(dtype) for name, tensor in state.items()}
    save_file(changed, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_models_are_computed_in_types_that_have_every_operation(tmp_path: Path) -> None:
    folder = write_decoder(tmp_path / "model")
    for dtype in ("fp8", "int8", "no_such_type", torch.float8_e5m2):
        with pytest.raises(ConfigError):
            load_model(folder, dtype=dtype)
    with pytest.raises(CheckpointError):
        load_model(with_types(folder, torch.float8_e4m3fn))
    with pytest.raises(CheckpointError):
        bench([folder], device="cpu")


@pytest.mark.parametrize(
    "settings",
    [{"hidden_act": "no_such_function"}, {"num_attention_heads": "four"}, {"vocab_size": -1}],
)
def test_what_transformers_refuses_is_refused_in_one_line(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = edited(write_llama(tmp_path / "model"), **settings)
    with pytest.raises(CheckpointError) as refusal:
        load_model(folder)
    assert "\n" not in str(refusal.value)


def test_the_class_is_the_one_that_the_config_names(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=45
    )
    for kind in (transformers.BertForMaskedLM, transformers.BertForSequenceClassification):
        kind(config).save_pretrained(tmp_path / kind.__name__)
        assert type(load_model(tmp_path / kind.__name__)) is kind
    folder = edited(write_llama(tmp_path / "model"), architectures=["GPT2LMHeadModel", "Trainer"])
    assert type(load_model(folder)) is transformers.LlamaForCausalLM


def test_towers_with_layers_of_the_same_numbers_keep_their_heads(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 45, "num_hidden_layers": 1}
    text = {**sizes, "model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.Idefics3Config(
        text_config={**text, "vocab_size": 96, "pad_token_id": 0},
        vision_config={**sizes, "num_attention_heads": 4, "image_size": 28, "patch_size": 14},
    )
    model = transformers.Idefics3ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    assert torch.allclose(logits_of(load_model(tmp_path)), logits_of(model), atol=1e-5)
