"""Models in memory: the same bits as through files, the same function as before."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from decoders import DECODERS, write_decoder
from tool_folders import FIXTURES
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from gacprof.checkpoint.load import load_model
from gacprof.checkpoint.scan import inventory_of
from gacprof.core.errors import GacprofError
from gacprof.realigning.realign import realign, realign_model

ASVD = FIXTURES / "asvd_mha_r1"
IDS = torch.arange(2 * 24).reshape(2, 24) * 7 % 288


def logits_of(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("word", ["pad8", "pad16", "fuse"])
@pytest.mark.parametrize("kind", ["asvd", "groups"])
def test_files_and_memory_give_the_same_bits(kind: str, word: str, tmp_path: Path) -> None:
    source = ASVD
    if kind != "asvd":
        source = write_decoder(tmp_path / "source", **DECODERS[kind])  # type: ignore[arg-type]
    stored = load_model(realign(source, word, tmp_path / "out"))
    model = realign_model(load_model(source), word)
    assert stored.state_dict().keys() == model.state_dict().keys()
    for name, tensor in stored.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    for module in model.modules():
        if isinstance(module, nn.Linear):
            assert (module.out_features, module.in_features) == module.weight.shape


def test_the_function_stays_and_the_ranks_say_their_sizes() -> None:
    model = load_model(ASVD, dtype="float32")
    expected = logits_of(model)
    padded = realign_model(copy.deepcopy(model), "pad16")
    torch.testing.assert_close(logits_of(padded), expected, atol=1e-5, rtol=1e-4)
    sizes = {dim.name: dim.size for dim in inventory_of(padded).dims}
    assert all(size % 16 == 0 for size in sizes.values())
    assert sizes != {dim.name: dim.size for dim in inventory_of(model).dims}
    ranks = padded.config.truncation_ranks
    assert {f"{name}:rank": rank for name, rank in ranks.items()}.items() <= sizes.items()


def test_a_merged_model_is_a_plain_one(tmp_path: Path) -> None:
    model = load_model(ASVD, dtype="float32")
    expected = logits_of(model)
    merged = realign_model(model, "fuse")
    merged.save_pretrained(tmp_path / "plain")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "plain").eval()
    torch.testing.assert_close(logits_of(plain), expected, atol=1e-4, rtol=1e-4)


def test_a_common_width_is_in_the_config_and_weights_stay_tied(tmp_path: Path) -> None:
    settings = {"hidden_size": 32, "intermediate_size": 50, "num_attention_heads": 2}
    config = LlamaConfig(**settings, vocab_size=288, num_hidden_layers=2, tie_word_embeddings=True)
    model = LlamaForCausalLM(config).eval()
    expected = logits_of(model)
    realign_model(model, "pad8")
    assert model.config.intermediate_size == 56
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model.save_pretrained(tmp_path / "padded")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "padded").eval()
    torch.testing.assert_close(logits_of(again), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("sizes", [{"nowhere:rank": 8}, {"model.layers.0.mlp:width": 0}, "uniform"])
def test_a_refusal_changes_nothing(sizes: object) -> None:
    model = load_model(ASVD)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(GacprofError):
        realign_model(model, sizes)  # type: ignore[arg-type]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_quantised_weights_in_memory_stay(tmp_path: Path) -> None:
    model = load_model(ASVD)
    model.config.quantization_config = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    with pytest.raises(GacprofError):
        realign_model(model, "pad8")
