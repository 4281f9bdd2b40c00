"""Perplexity: the definition by brute force, and changes with their intervals."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from decoders import VOCABULARY, write_decoder
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from gacprof.check.perplexity import perplexity, sliding_windows
from gacprof.checkpoint.load import load_model
from gacprof.core.errors import CheckpointError, ConfigError

TEXT = "the jury said that no evidence was found and the mayor who was asked had none " * 6


def with_tokenizer(folder: Path) -> Path:
    """One token a character; an id that the model knows for each."""
    vocabulary = {chr(i): i for i in range(VOCABULARY)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize(("tokens", "window", "stride"), [(50, 16, 8), (50, 49, 7), (2, 9, 9)])
def test_windows_predict_each_token_once(tokens: int, window: int, stride: int) -> None:
    predicted: list[int] = []
    for start, end, first in sliding_windows(tokens, window, stride):
        assert 0 <= first < end - start <= window
        predicted += range(start + first + 1, end + 1)
    assert predicted == list(range(1, tokens))


def test_one_window_is_the_definition(tmp_path: Path, text: Path) -> None:
    folder = with_tokenizer(write_decoder(tmp_path / "model"))
    result = perplexity([folder], text, window=1024, tokens=64, device="cpu")
    ids = torch.tensor([[ord(c) for c in TEXT[:64]]])
    with torch.no_grad():
        logits = load_model(folder)(ids).logits[0, :-1]
    nats = torch.nn.functional.cross_entropy(logits, ids[0, 1:])
    assert result.models[0].value == pytest.approx(math.exp(nats), rel=1e-5)
    assert result.predictions == (63,) and result.models[0].change is None


def test_windows_agree_with_one_context_a_prediction(tmp_path: Path, text: Path) -> None:
    folder = with_tokenizer(write_decoder(tmp_path / "model"))
    result = perplexity([folder], text, window=8, stride=1, tokens=24, device="cpu")
    ids = torch.tensor([ord(c) for c in TEXT[:24]])
    model = load_model(folder)
    nats = 0.0
    for i in range(1, 24):
        with torch.no_grad():
            logits = model(ids[None, max(0, i - 8) : i]).logits[0, -1]
        nats -= float(logits.log_softmax(-1)[ids[i]])
    assert result.models[0].value == pytest.approx(math.exp(nats / 23), rel=1e-5)


def test_changes_are_paired_with_the_first_model(tmp_path: Path, text: Path) -> None:
    folder = with_tokenizer(write_decoder(tmp_path / "model"))
    other = write_decoder(tmp_path / "other")
    state = load_file(other / "model.safetensors")
    state["model.norm.weight"] *= 1.5
    save_file(state, other / "model.safetensors")
    result = perplexity([folder, folder, other], text, window=32, stride=16, device="cpu")
    first, same, changed = result.models
    assert first.change is None
    assert same.change is not None and changed.change is not None
    assert same.change.low == same.change.value == same.change.high == 0.0
    assert 1 + changed.change.value == pytest.approx(changed.value / first.value, rel=1e-9)
    assert changed.change.low < changed.change.value < changed.change.high
    assert np.sum(changed.nats) / np.sum(result.predictions) == pytest.approx(
        math.log(changed.value)
    )


def test_what_has_no_perplexity_is_refused(tmp_path: Path, text: Path) -> None:
    bare = write_decoder(tmp_path / "bare")
    with pytest.raises(CheckpointError):
        perplexity([bare], text, device="cpu")
    folder = with_tokenizer(write_decoder(tmp_path / "model"))
    for stride in (0, 17):
        with pytest.raises(ConfigError):
            perplexity([folder], text, window=16, stride=stride, device="cpu")
    text.write_text("x")
    with pytest.raises(CheckpointError):
        perplexity([folder], text, device="cpu")


def test_a_model_that_is_no_decoder_has_no_perplexity(tmp_path: Path, text: Path) -> None:
    config = BertConfig(
        **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{"intermediate_size": 48, "vocab_size": VOCABULARY},
    )
    BertForMaskedLM(config).save_pretrained(tmp_path / "model")
    with pytest.raises(CheckpointError):
        perplexity([with_tokenizer(tmp_path / "model")], text, device="cpu")
