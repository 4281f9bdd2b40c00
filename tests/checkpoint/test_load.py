"""Loading: every layout gives its own model's logits, and no weight is ever made up."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_models import write_llama

from gacprof.checkpoint import scan
from gacprof.checkpoint.config import effective_config
from gacprof.core.errors import CheckpointError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from gacprof.checkpoint.load import load, load_model, tokenizer_of  # noqa: E402

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 64,
}  # fmt: skip


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.as_tensor(ids)).logits.numpy()


def saved(folder, config):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.fixture
def asvd(fixtures, tmp_path):
    """A copy of the ASVD fixture that a test may spoil."""
    return Path(shutil.copytree(fixtures / "checkpoints" / "asvd_mha_r1", tmp_path / "asvd"))


RECORDED = {
    "asvd_mha_r1": "logits",
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
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


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
    assert {loaded.dtype, *(p.dtype for p in loaded.model.parameters())} == {torch.float32}


@pytest.mark.parametrize("factored", [False, True])
def test_a_head_that_is_stored_is_not_tied_away(tmp_path, factored):
    """SliceGPT and ASVD of a tied model: the config still says tied, the head is its own."""
    model = saved(tmp_path / "model", transformers.LlamaConfig(**SIZES, tie_word_embeddings=True))
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    rng = np.random.default_rng(0)
    u, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((128, 7), (7, 64)))
    head = {"ALinear.weight": u, "BLinear.weight": v} if factored else {"weight": u @ v}
    save_file(tensors | {f"lm_head.{n}": t for n, t in head.items()}, file, {"format": "pt"})
    ids = torch.arange(10)[None]
    with torch.no_grad():
        hidden = model.model(ids).last_hidden_state.numpy()
    logits = logits_of(load_model(tmp_path / "model"), ids)
    np.testing.assert_allclose(logits, hidden @ (u @ v).T, atol=1e-4)
    assert scan(tmp_path / "model").has_own_head


def test_a_head_that_only_names_the_embedding_is_none_of_its_own(tmp_path):
    """In a pickle two names may be one tensor; in safetensors the head is then left out."""
    model = saved(tmp_path / "model", transformers.LlamaConfig(**SIZES, tie_word_embeddings=True))
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    shutil.copy(tmp_path / "model" / "config.json", tmp_path)
    for path in (tmp_path / "model", tmp_path / "pytorch_model.bin"):
        inventory = scan(path)
        assert inventory.ties_head and not inventory.has_own_head
    assert "lm_head.weight" in inventory.tensors


@pytest.mark.parametrize(
    ("lost", "added", "message"),
    [
        ("model.layers.2.input_layernorm.weight", (), r"layers\.2\.input_layernorm.*random"),
        (None, ["model.layers.0.adapter.scale"], r"no place for model\.layers\.0\.adapter\.scale"),
    ],
)
def test_a_weight_too_few_or_too_many_is_an_error_never_random(asvd, lost, added, message):
    tensors = load_file(asvd / "model.safetensors")
    tensors.pop(lost, None)
    more = dict.fromkeys(added, np.ones(3, np.float16))
    save_file(tensors | more, asvd / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=message):
        load_model(asvd)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 128}, "disagree|heads of"),
        ({"num_hidden_layers": 3}, "no place for|not in LlamaForCausalLM"),
        ({"model_type": "nosuchmodel"}, "no model type 'nosuchmodel'"),
        ({"rope_theta": "far"}, "builds no causal language model"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"quantization_config": [1]}, "asvd: .*quantization_config is no table"),
        (None, r"config\.json"),
    ],
)
def test_a_config_that_does_not_fit_is_an_error(asvd, change, message):
    config = json.loads((asvd / "config.json").read_text())
    (asvd / "config.json").write_text(json.dumps(config | (change or {})))
    if change is None:
        (asvd / "config.json").unlink()
    with pytest.raises(CheckpointError, match=message):
        load_model(asvd)


def test_code_that_comes_with_a_checkpoint_is_not_run(asvd):
    trap = asvd / "run"
    for name in ("modeling_asvd_llama.py", "configuration_asvd_llama.py"):
        (asvd / name).write_text(f"open({str(trap)!r}, 'w')\n")
    load_model(asvd)
    assert not trap.exists()


def test_an_unknown_dtype_and_a_missing_library_are_said(fixtures, monkeypatch):
    folder = fixtures / "checkpoints" / "asvd_mha_r1"
    with pytest.raises(CheckpointError, match="use float32, bfloat16 or float16"):
        load_model(folder, "int8")
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(CheckpointError, match=r"pip install gacprof\[models\]"):
        load_model(folder)


def test_what_a_pickled_models_modules_know_corrects_its_config(tools_checkpoints):
    """SVD-LLM's own rotary embedding ignores the config's base."""
    inventory = scan(tools_checkpoints / "svdllm_mha_0.6")
    other = replace(inventory, config={**inventory.config, "rope_theta": 5e5, "rms_norm_eps": 1.0})
    config = effective_config(other)
    assert (config["rope_theta"], config["rms_norm_eps"]) == (10000.0, 1e-6)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_never_ends_is_refused(tmp_path, name):
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match="no regular file"):
        tokenizer_of(tmp_path)


@pytest.mark.parametrize("dtype", ["int8", "bool"])
def test_weights_of_whole_numbers_are_no_model_that_runs(tmp_path, dtype):
    name = "model.layers.0.input_layernorm.weight"
    state = load_file(write_llama(tmp_path) / "model.safetensors")
    save_file(state | {name: state[name].astype(dtype)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"is stored as {dtype}"):
        load_model(tmp_path)
