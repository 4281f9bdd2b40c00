"""Loading: every layout gives its own model's logits, and no weight is ever made up."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_models import write_llama

from gacprof.checkpoint import scan
from gacprof.checkpoint.foreign import effective_config
from gacprof.core.errors import CheckpointError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from gacprof.checkpoint.layers import FactorPair, GroupedFactors  # noqa: E402
from gacprof.checkpoint.load import load, load_model, tokenizer_of  # noqa: E402

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 64,
}


def logits_of(model, ids) -> np.ndarray:
    with torch.no_grad():
        return model(torch.as_tensor(ids)).logits.numpy()


def saved(folder: Path, config) -> torch.nn.Module:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder)
    return model


def cut(folder: Path, module: str, **parts: slice | tuple[slice, ...]) -> None:
    """Keep only those parts of a module's weights."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for part, stays in parts.items():
        name = f"{module}.{part}_proj.weight"
        tensors[name] = np.ascontiguousarray(tensors[name][stays])
    save_file(tensors, file, {"format": "pt"})


@pytest.fixture
def asvd(fixtures: Path, tmp_path: Path) -> Path:
    """A copy of the ASVD fixture that a test may spoil."""
    return Path(shutil.copytree(fixtures / "checkpoints" / "asvd_mha_r1", tmp_path / "asvd"))


def test_asvd_gives_its_own_models_logits_with_factor_pairs_as_modules(fixtures):
    folder = fixtures / "checkpoints" / "asvd_mha_r1"
    model = load_model(folder, "float32")
    truth = np.load(folder / "ground_truth.npz")
    np.testing.assert_allclose(logits_of(model, truth["input_ids"]), truth["logits"], atol=1e-5)
    pair = model.model.layers[0].self_attn.v_proj
    assert isinstance(pair, FactorPair) and pair.rank == 76
    assert isinstance(model.model.layers[0].self_attn.q_proj, torch.nn.Linear)
    assert not model.training and not any(p.requires_grad for p in model.parameters())


RECORDED = {
    "base_mha": "logits",
    "palu_mha_gs4_block1": "logits",
    "svdllm_mha_0.6": "logits",
    "llmpruner_mha_global_mlp_0.3": "logits_fp32_rope",
    "slicegpt_mha_s0.22_r1": "logits_fp32_rope",
    "torchpruning_mha_0.3": "logits",
}


@pytest.mark.parametrize("name", RECORDED)
def test_every_tools_checkpoint_gives_its_own_models_logits(name, tools_checkpoints):
    folder = tools_checkpoints / name
    loaded = load(folder, "float32")
    truth = np.load(folder / "ground_truth.npz")
    logits = logits_of(loaded.model, truth["input_ids"])
    np.testing.assert_allclose(logits, truth[RECORDED[name]], atol=1e-5)
    assert all(tensor.endswith("rotary_emb.inv_freq") for tensor in loaded.ignored)


def test_palu_groups_become_one_module(tools_checkpoints):
    model = load_model(tools_checkpoints / "palu_mha_gs4_block1")
    grouped = model.model.layers[1].self_attn.k_proj
    assert isinstance(grouped, GroupedFactors) and grouped.ranks == [57, 50]
    assert next(model.parameters()).dtype == torch.float16  # as stored


def test_slicegpt_decodes_with_a_cache_as_it_reads(tools_checkpoints):
    model = load_model(tools_checkpoints / "slicegpt_mha_s0.22_r1", "float32")
    ids = torch.randint(512, (1, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = model(ids).logits
        first = model(ids[:, :8], use_cache=True)
        rest = model(ids[:, 8:], past_key_values=first.past_key_values, use_cache=True)
    torch.testing.assert_close(rest.logits, whole[:, 8:])


def test_mixed_dtypes_load_as_the_widest(tools_checkpoints):
    loaded = load(tools_checkpoints / "svdllm_mha_0.6")  # factors float32, the rest float16
    assert loaded.dtype == torch.float32
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}


CONFIGS = {
    "tied": lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "biased": lambda: transformers.Qwen2Config(**SIZES),
    "mistral": lambda: transformers.MistralConfig(**SIZES),
    "scaled embedding": lambda: transformers.Gemma2Config(**SIZES, head_dim=16),
    "fused": lambda: transformers.Phi3Config(**SIZES, pad_token_id=0),
    "transposed": lambda: transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=128, bos_token_id=0, eos_token_id=0
    ),
    "experts": lambda: transformers.MixtralConfig(**SIZES, num_local_experts=4),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_plain_models_of_many_kinds_load_as_they_were(kind, tmp_path):
    theirs = saved(tmp_path / "model", CONFIGS[kind]())
    ids = torch.randint(128, (2, 12), generator=torch.Generator().manual_seed(1))
    ours = load_model(tmp_path / "model")
    np.testing.assert_allclose(logits_of(ours, ids), logits_of(theirs, ids), atol=1e-6)


def test_widths_that_differ_between_layers_are_right(tmp_path):
    model = saved(tmp_path / "model", transformers.LlamaConfig(**SIZES))
    rows, columns = np.s_[:50], np.s_[:, :50]
    cut(tmp_path / "model", "model.layers.0.mlp", gate=rows, up=rows, down=columns)
    ids = torch.arange(10)[None]
    pruned = load_model(tmp_path / "model")
    assert pruned.model.layers[0].mlp.gate_proj.out_features == 50
    with torch.no_grad():
        for part in ("gate", "up"):
            getattr(model.model.layers[0].mlp, f"{part}_proj").weight[50:] = 0
    np.testing.assert_allclose(logits_of(pruned, ids), logits_of(model, ids), atol=1e-6)


def test_a_layer_with_fewer_heads_is_right(tmp_path):
    """One of two key-value groups cut off in one layer, as LLM-Pruner does it."""
    model = saved(tmp_path / "model", transformers.LlamaConfig(**SIZES))
    parts = {"q": np.s_[:32], "k": np.s_[:16], "v": np.s_[:16], "o": np.s_[:, :32]}
    cut(tmp_path / "model", "model.layers.1.self_attn", **parts)
    with torch.no_grad():
        model.model.layers[1].self_attn.o_proj.weight[:, 32:] = 0
    ids = torch.arange(10)[None]
    np.testing.assert_allclose(
        logits_of(load_model(tmp_path / "model"), ids), logits_of(model, ids), atol=1e-6
    )


def test_a_head_that_is_stored_is_not_tied_away(tmp_path):
    """SliceGPT of a tied model: the config still says tied, the head is a matrix of its own."""
    saved(tmp_path / "model", transformers.LlamaConfig(**SIZES, tie_word_embeddings=True))
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.weight"] = 2 * tensors["model.embed_tokens.weight"]
    save_file(tensors, file, {"format": "pt"})
    model = load_model(tmp_path / "model")
    torch.testing.assert_close(model.lm_head.weight, 2 * model.model.embed_tokens.weight)


def test_a_factored_head_of_a_tied_model_is_not_tied_away(tmp_path):
    """ASVD factors the head too."""
    model = saved(tmp_path / "model", transformers.LlamaConfig(**SIZES, tie_word_embeddings=True))
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    rng = np.random.default_rng(0)
    tensors["lm_head.ALinear.weight"] = rng.standard_normal((128, 7)).astype(np.float32)
    tensors["lm_head.BLinear.weight"] = rng.standard_normal((7, 64)).astype(np.float32)
    save_file(tensors, file, {"format": "pt"})
    ids = torch.arange(10)[None]
    with torch.no_grad():
        hidden = model.model(ids).last_hidden_state.numpy()
    product = tensors["lm_head.ALinear.weight"] @ tensors["lm_head.BLinear.weight"]
    np.testing.assert_allclose(
        logits_of(load_model(tmp_path / "model"), ids), hidden @ product.T, atol=1e-4
    )


def test_a_missing_weight_is_an_error_never_random(asvd):
    tensors = load_file(asvd / "model.safetensors")
    del tensors["model.layers.2.input_layernorm.weight"]
    save_file(tensors, asvd / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"layers\.2\.input_layernorm\.weight.*random"):
        load_model(asvd)


def test_a_tensor_without_a_place_is_an_error(asvd):
    tensors = load_file(asvd / "model.safetensors")
    tensors["model.layers.0.adapter.scale"] = np.ones(3, np.float16)
    save_file(tensors, asvd / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"no place for model\.layers\.0\.adapter\.scale"):
        load_model(asvd)


def test_config_and_tensors_that_disagree_are_an_error(asvd):
    config = json.loads((asvd / "config.json").read_text())
    for change, message in (
        ({"hidden_size": 128}, "disagree|heads of"),
        ({"num_hidden_layers": 3}, "no place for|not in LlamaForCausalLM"),
        ({"model_type": "nosuchmodel"}, "no model type 'nosuchmodel'"),
        ({"rope_theta": "far"}, "builds no causal language model"),
    ):
        (asvd / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(CheckpointError, match=message):
            load_model(asvd)


def test_without_a_config_there_is_no_model(asvd):
    (asvd / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_model(asvd)


def test_code_that_comes_with_a_checkpoint_is_not_run(asvd):
    trap = asvd / "run"
    (asvd / "modeling_asvd_llama.py").write_text(f"open({str(trap)!r}, 'w')\n")
    (asvd / "configuration_asvd_llama.py").write_text(f"open({str(trap)!r}, 'w')\n")
    load_model(asvd)
    assert not trap.exists()


def test_quantised_checkpoints_are_refused_with_the_reason(asvd):
    config = json.loads((asvd / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (asvd / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="gptq"):
        load_model(asvd)
    (asvd / "config.json").write_text(json.dumps(config | {"quantization_config": [1]}))
    with pytest.raises(CheckpointError, match=f"{asvd}: .*quantization_config is no table"):
        load_model(asvd)


def test_an_unknown_dtype_is_refused(fixtures):
    with pytest.raises(CheckpointError, match="use float32, bfloat16 or float16"):
        load_model(fixtures / "checkpoints" / "asvd_mha_r1", "int8")


def test_without_transformers_the_way_to_get_it_is_said(fixtures, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(CheckpointError, match=r"pip install gacprof\[models\]"):
        load_model(fixtures / "checkpoints" / "asvd_mha_r1")


def test_what_a_pickled_models_modules_know_corrects_its_config(tools_checkpoints):
    """SVD-LLM's own rotary embedding ignores the config's base."""
    from dataclasses import replace

    inventory = scan(tools_checkpoints / "svdllm_mha_0.6")
    other = replace(inventory, config={**inventory.config, "rope_theta": 5e5, "rms_norm_eps": 1.0})
    config = effective_config(other)
    assert (config["rope_theta"], config["rms_norm_eps"]) == (10000.0, 1e-6)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_never_ends_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match="no regular file"):
        tokenizer_of(tmp_path)


@pytest.mark.parametrize("dtype", ["int8", "int64", "bool"])
def test_weights_of_whole_numbers_are_no_model_that_runs(tmp_path: Path, dtype: str) -> None:
    name = "model.layers.0.input_layernorm.weight"
    state = load_file(write_llama(tmp_path) / "model.safetensors")
    save_file(state | {name: state[name].astype(dtype)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"is stored as {dtype}"):
        load_model(tmp_path)
