"""Depth pruning: the layers that the loss can spare go, and what is left is what they were."""

from itertools import combinations

import pytest
import torch
import transformers
from compressing_models import logits_of, make_model

import gacprof
from gacprof.core.errors import CompressionError
from gacprof.core.files import read_json, write_json

LAYERS = 6


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("deep") / "model", num_hidden_layers=LAYERS)


def skipping(folder, gone):
    """transformers' own model with these layers taken out of its list."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    layers = model.model.layers
    model.model.layers = torch.nn.ModuleList([m for i, m in enumerate(layers) if i not in gone])
    model.config.num_hidden_layers = len(model.model.layers)
    return model


@torch.no_grad()
def loss_of(model, ids):
    return float(model(ids, labels=ids, use_cache=False).loss)


def gone_of(result):
    return [int(name.rpartition(".")[2]) for name in result.dropped]


def drop(model, out, ids, ratio, **asked):
    return gacprof.compress(model, out, method="drop-layers", ratio=ratio, calib=ids, **asked)


def test_transformers_computes_what_it_did_without_those_layers(deep, ids, tmp_path):
    result = drop(deep, tmp_path / "out", ids, 0.5)
    assert result.removed == pytest.approx(0.5) and len(result.dropped) == 3
    written = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert written.config.num_hidden_layers == len(written.model.layers) == 3
    with torch.no_grad():
        expected = skipping(deep, gone_of(result))(ids, use_cache=False).logits
        assert torch.equal(written(ids, use_cache=False).logits, expected)
        cached = written.generate(ids[:1], max_new_tokens=4, do_sample=False)
    assert cached.shape == (1, ids.shape[1] + 4)
    assert torch.allclose(logits_of(tmp_path / "out", ids), expected, atol=1e-5)


def test_one_by_one_the_layer_goes_that_the_measured_loss_can_spare(deep, ids, tmp_path):
    gone = []
    for _ in range(2):
        rest = [i for i in range(LAYERS) if i not in gone]
        losses = {i: loss_of(skipping(deep, [*gone, i]), ids) for i in rest}
        gone.append(min(losses, key=lambda i: losses[i]))
    result = drop(deep, tmp_path / "out", ids, 0.2)  # 1.2 layers: at least the ratio goes
    assert gone_of(result) == sorted(gone)
    added = loss_of(skipping(deep, gone), ids) - loss_of(skipping(deep, []), ids)
    assert result.loss_added == pytest.approx(added, abs=1e-5)
    pairs = (loss_of(skipping(deep, pair), ids) for pair in combinations(range(LAYERS), 2))
    assert loss_of(skipping(deep, gone), ids) < sum(pairs) / 15


def test_lists_with_an_entry_a_layer_and_patterns_are_cut(ids, tmp_path):
    """Gemma 3: every third layer sees the whole text, by a pattern that a cut would shift."""
    config = transformers.Gemma3TextConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=6, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, vocab_size=128, sliding_window=8,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.Gemma3ForCausalLM(config).save_pretrained(tmp_path / "gemma")
    result = drop(tmp_path / "gemma", tmp_path / "out", ids, 0.3)
    kept = [i for i in range(6) if i not in gone_of(result)]
    types = read_json(tmp_path / "out" / "config.json")["layer_types"]
    assert types == [config.layer_types[i] for i in kept]
    shorter = skipping(tmp_path / "gemma", gone_of(result))
    shorter.config.layer_types = types
    with torch.no_grad():
        expected = shorter(ids, use_cache=False).logits
    assert torch.allclose(logits_of(tmp_path / "out", ids), expected, atol=1e-5)


def test_a_killed_search_goes_on_from_what_it_has_measured(deep, ids, tmp_path, monkeypatch):
    from gacprof.extras.compress import depth

    measured, calls = depth.losses_without, []

    def interrupted(model, text, choices):
        calls.append(choices)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measured(model, text, choices)

    monkeypatch.setattr(depth, "losses_without", interrupted)
    with pytest.raises(KeyboardInterrupt):
        drop(deep, tmp_path / "out", ids, 0.5)
    assert not (tmp_path / "out").exists()
    result = drop(deep, tmp_path / "out", ids, 0.5)
    again = [choice for call in (*calls[:2], *calls[3:]) for choice in call]
    assert len(again) == len(set(again))
    whole = drop(deep, tmp_path / "whole", ids, 0.5)
    assert whole.sizes == result.sizes


SMALL = {"vocab_size": 128, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = transformers.GPT2Config(n_embd=32, n_layer=12, n_head=2, **SMALL)
DIFFERING = transformers.DiffLlamaConfig(
    hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=2,
    num_key_value_heads=2, **SMALL,
)  # fmt: skip


@pytest.mark.parametrize(
    ("config", "change", "why"),
    [
        (GPT2, {"n_layer": None}, "no entry of its config says that there are 12"),
        (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "differ by their numbers"),
        (DIFFERING, {}, r"as layer 0 layer 1 has self_attn\.lambda_init 0\.2"),
    ],
)
def test_layers_that_cannot_be_renumbered_are_refused(ids, tmp_path, config, change, why):
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    write_json(file, {k: v for k, v in (read_json(file) | change).items() if v is not None})
    with pytest.raises(CompressionError, match=why):
        drop(tmp_path / "model", tmp_path / "out", ids, 0.3)
    assert not (tmp_path / "out").exists()


def test_what_does_not_go_with_whole_layers_is_refused(deep, ids, tmp_path):
    for asked in ({"round_to": 8}, {"gpu": "h100"}, {"objective": "loss"}, {"score": "fisher"}):
        with pytest.raises(CompressionError, match="changes no size"):
            drop(deep, tmp_path / "out", ids, 0.3, **asked)
    with pytest.raises(CompressionError, match="of 6 layers one must stay"):
        drop(deep, tmp_path / "out", ids, 0.9)
    with pytest.raises(CompressionError, match="calibration text"):
        gacprof.compress(deep, tmp_path / "out", method="drop-layers", ratio=0.3)
