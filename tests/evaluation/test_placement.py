"""Weights that are copied to other memory between two rounds: same model, other addresses."""

from __future__ import annotations

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch import nn  # noqa: E402

from gacprof.core.errors import CheckpointError, MeasurementError  # noqa: E402
from gacprof.evaluation import bench, benchmark  # noqa: E402
from gacprof.evaluation.benchmark import movable, move  # noqa: E402
from gacprof.evaluation.summary import Rounds  # noqa: E402
from gacprof.evaluation.workloads import Clock  # noqa: E402

DRAW = np.random.default_rng(0)


def llama(seed: int = 0, tied: bool = False):
    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "vocab_size": 64}
    config = transformers.LlamaConfig(num_hidden_layers=2, tie_word_embeddings=tied, **shape)
    return transformers.LlamaForCausalLM(config).eval()


def addresses(model: nn.Module) -> list[int]:
    return [parameter.data_ptr() for parameter in model.parameters()]


def test_every_weight_moves_and_the_model_computes_the_same():
    model, ids = llama(), torch.arange(8)[None]
    before, logits = addresses(model), model(input_ids=ids).logits
    move(movable([model]), DRAW)
    assert all(old != new for old, new in zip(before, addresses(model), strict=True))
    assert torch.equal(model(input_ids=ids).logits, logits)


def test_a_moved_weight_can_still_be_trained():
    model = llama()
    with torch.inference_mode():
        move(movable([model]), DRAW)
    model(input_ids=torch.arange(8)[None]).logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_tied_weights_stay_tied_also_across_models():
    model, other = llama(tied=True), nn.Linear(32, 64, bias=False)
    other.weight = nn.Parameter(model.lm_head.weight.data)
    before = other.weight.data_ptr()
    move(movable([model, other]), DRAW)
    one = {m.weight.data_ptr() for m in (model.lm_head, model.model.embed_tokens, other)}
    assert len(one) == 1 and before not in one


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda x: x[:6], lambda x: x[4:]),  # overlap
        (lambda x: x, lambda x: x[2:4]),  # one within the other
        (lambda x: x[:, :4], lambda x: x[:, 4:]),  # gaps
        (lambda x: x, lambda x: x.t()),  # the same numbers in another order
    ],
)
def test_what_cannot_move_alone_stays(first, second):
    held, whole = nn.Module(), torch.randn(8, 8)
    held.a, held.b = nn.Parameter(first(whole)), nn.Parameter(second(whole))
    assert movable([held]) == []


def test_views_side_by_side_move_with_their_strides():
    held, whole = nn.Module(), torch.randn(8, 8)
    held.a, held.b = nn.Parameter(whole[:4].t()), nn.Parameter(whole[4:])
    move(movable([held]), DRAW)
    assert torch.equal(held.a, whole[:4].t()) and held.a.stride() == whole[:4].t().stride()
    assert torch.equal(held.b, whole[4:])
    assert held.a.untyped_storage().data_ptr() != held.b.untyped_storage().data_ptr()


def test_nothing_without_bytes_and_no_other_device_moves():
    held = nn.Module()
    held.a, held.b = nn.Parameter(torch.empty(0, 4)), nn.Parameter(torch.empty(4, device="meta"))
    assert movable([held]) == []


def test_rounds_begin_anew():
    calls: list[int] = []
    rounds = Rounds([], [], Clock(torch.device("cpu")), 12, anew=lambda: calls.append(rounds.count))
    rounds.run(lambda: False)
    assert calls == list(range(12))


def test_a_bench_moves_the_weights_of_all_models_and_of_the_replicate(monkeypatch):
    moved: list[int] = []
    monkeypatch.setattr(benchmark, "move", lambda weights, draw: moved.append(len(weights)))
    models = [llama(0), llama(1)]
    bench(models, tokens=(8,), decode_steps=0, rounds=12, time_cap_s=0)
    tensors = sum(1 for _ in models[0].parameters()) + sum(1 for _ in models[0].buffers())
    assert moved == [3 * tensors] * 4


def tied_by_storage():
    model = llama()
    model.lm_head.weight = nn.Parameter(model.model.embed_tokens.weight.data)
    return model


@pytest.mark.parametrize("cap", [0, None])
def test_a_callers_model_is_left_as_it_was(cap):
    """Its mode, its tensors' places, and no hook is left, also where it is interrupted."""
    model, other = tied_by_storage().train(), llama(1)
    model.lm_head.eval()
    model.share_memory()
    before, alias = addresses(model), model.lm_head.weight.detach()
    seen = torch.get_rng_state()

    def stop(done, total, what):
        if done > 40 and cap is None:
            raise KeyboardInterrupt

    try:
        bench([model, other], tokens=(8,), decode_steps=1, time_cap_s=cap, progress=stop)
    except KeyboardInterrupt:
        assert cap is None
    assert addresses(model) == before and all(p.is_shared() for p in model.parameters())
    assert alias.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert model.training and not model.lm_head.training and model.model.training
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), seen)


@pytest.mark.parametrize("in_memory", [True, False])
def test_without_room_for_the_callers_weights_none_moves(in_memory, monkeypatch, tmp_path):
    moved: list[int] = []
    monkeypatch.setattr(benchmark, "move", lambda weights, draw: moved.append(len(weights)))
    monkeypatch.setattr(benchmark, "free_bytes", lambda device: 0)
    model = llama()
    model.save_pretrained(tmp_path)
    given = model if in_memory else tmp_path
    bench([given], tokens=(8,), decode_steps=0, rounds=12, time_cap_s=0)
    assert all(count == 0 if in_memory else count > 0 for count in moved) and moved


def test_models_of_inference_mode_stay_where_they_are_and_usable():
    ids = torch.arange(8)[None]
    with torch.inference_mode():
        model = llama()
        bench([model], tokens=(8,), decode_steps=0, rounds=12, time_cap_s=0)
    ordinary = llama()
    with torch.inference_mode():
        bench([ordinary, model], tokens=(8,), decode_steps=0, rounds=12, time_cap_s=0)
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, ordinary(input_ids=ids).logits)


def test_a_model_that_cannot_be_copied_is_its_own_replicate():
    model = llama()
    model.lock = threading.Lock()
    message = bench([model], tokens=(8,), decode_steps=0, rounds=12, time_cap_s=0)
    assert any("cannot be copied" in note for note in message.notes)


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Linear(2, 2), 3])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(CheckpointError, match="no model that can be run"):
        bench([model], tokens=(8,))


@pytest.mark.parametrize("tokens", [16, (16.5,)])
def test_token_counts_are_whole_numbers_in_a_list(tokens):
    with pytest.raises(MeasurementError, match="token counts in a list"):
        bench([llama()], tokens=tokens)
