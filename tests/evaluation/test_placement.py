"""Weights that are copied to other memory between two rounds: same model, other addresses."""

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch import nn  # noqa: E402

from gacprof.core.errors import CheckpointError, MeasurementError  # noqa: E402
from gacprof.evaluation import bench, benchmark, models  # noqa: E402
from gacprof.evaluation.benchmark import move, weights_of  # noqa: E402

DRAW = np.random.default_rng(0)


def llama(seed=0, tied=False):
    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "vocab_size": 64}
    config = transformers.LlamaConfig(num_hidden_layers=2, tie_word_embeddings=tied, **shape)
    return transformers.LlamaForCausalLM(config).eval()


def addresses(model):
    return [parameter.data_ptr() for parameter in model.parameters()]


def test_every_weight_moves_and_the_model_computes_the_same():
    model, ids = llama(), torch.arange(8)[None]
    before, logits = addresses(model), model(input_ids=ids).logits
    move(weights_of([model]), DRAW)
    assert all(old != new for old, new in zip(before, addresses(model), strict=True))
    assert torch.equal(model(input_ids=ids).logits, logits)


def test_tied_weights_stay_tied_also_across_models():
    model, other = llama(tied=True), nn.Linear(32, 64, bias=False)
    other.weight = nn.Parameter(model.lm_head.weight.data)
    before = other.weight.data_ptr()
    move(weights_of([model, other]), DRAW)
    one = {m.weight.data_ptr() for m in (model.lm_head, model.model.embed_tokens, other)}
    assert len(one) == 1 and before not in one


def test_views_of_one_storage_move_with_their_strides():
    held, whole = nn.Module(), torch.randn(8, 8)
    held.a, held.b = nn.Parameter(whole[:4].t()), nn.Parameter(whole[4:])
    move(weights_of([held]), DRAW)
    assert torch.equal(held.a, whole[:4].t()) and held.a.stride() == whole[:4].t().stride()
    assert torch.equal(held.b, whole[4:])
    assert held.a.untyped_storage().data_ptr() != held.b.untyped_storage().data_ptr()


def bench_moving(monkeypatch, given):
    """How many weights a bench of these models moved in each round."""
    moved = []
    monkeypatch.setattr(benchmark, "move", lambda weights, draw: moved.append(len(weights)))
    bench(given, tokens=(8,), decode_steps=0, rounds=12, time_cap_s=0)
    assert len(moved) == 4
    return set(moved)


def test_a_bench_moves_the_weights_of_all_models_and_of_the_replicate(monkeypatch):
    given = [llama(0), llama(1)]
    tensors = sum(1 for _ in given[0].parameters()) + sum(1 for _ in given[0].buffers())
    assert bench_moving(monkeypatch, given) == {3 * tensors}


def locked():
    model = llama()
    model.lock = threading.Lock()
    return model


@pytest.mark.parametrize("why", ["no room", "no copy"])
def test_a_callers_weights_stay_where_they_cannot_be_copied(why, monkeypatch):
    if why == "no room":
        monkeypatch.setattr(models, "free_bytes", lambda device: 1000)
    assert bench_moving(monkeypatch, [locked() if why == "no copy" else llama()]) == {0}


@pytest.mark.parametrize("make", [llama, locked])
def test_a_callers_model_is_left_as_it_was_also_where_it_is_interrupted(make):
    model, other = make().train(), llama(1)
    model.lm_head.eval()
    before, seen = addresses(model), torch.get_rng_state()

    def stop(done, total, what):
        if done > 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench([model, other], tokens=(8,), decode_steps=1, time_cap_s=None, progress=stop)
    assert addresses(model) == before and torch.equal(torch.get_rng_state(), seen)
    assert model.training and not model.lm_head.training and model.model.training


def test_models_of_inference_mode_stay_usable():
    ids = torch.arange(8)[None]
    with torch.inference_mode():
        model = llama()
        bench([model], tokens=(8,), decode_steps=0, rounds=12, time_cap_s=0)
    ordinary = llama()
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, ordinary(input_ids=ids).logits)


def test_what_is_no_model_or_no_list_of_token_counts_is_refused():
    for model in (nn.ReLU(), nn.Linear(2, 2), 3):
        with pytest.raises(CheckpointError, match="no model that can be run"):
            bench([model], tokens=(8,))
    for tokens in (16, (16.5,)):
        with pytest.raises(MeasurementError, match="token counts in a list"):
            bench([llama()], tokens=tokens)
