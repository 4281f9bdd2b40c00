"""Perplexity: every token but the first predicted once, and the number is the definition's."""

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import tiny_model  # noqa: E402

from gacprof.evaluation import perplexity  # noqa: E402
from gacprof.evaluation.perplexity import (  # noqa: E402
    Scorer,
    perplexity_of,
    score_windows,
    windows,
)


def score(scorer, ids, window, stride, *more):
    return score_windows(scorer, ids, windows(len(ids), window, stride), *more)


def perplexity_by(scorer, ids, window, stride):
    return perplexity_of(score(scorer, ids, window, stride), len(ids) - 1)


SIZES = [(64, 64), (64, 32), (16, 5), (7, 7), (1, 1)]


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def ids(model):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(model.config.vocab_size, (70,), generator=generator)


@pytest.mark.parametrize(("window", "stride"), SIZES)
@pytest.mark.parametrize("tokens", [2, 3, 64, 65, 66, 97, 150])
def test_every_token_but_the_first_is_predicted_once(tokens, window, stride):
    seen = []
    for w in windows(tokens, window, stride):
        assert 0 < w.end - w.start <= window
        positions = range(w.first, w.end - w.start)
        assert len(positions) == w.predictions > 0
        seen += [w.start + position + 1 for position in positions]
        if w.start:  # the context that the module's first lines promise
            assert w.first + 1 >= window - stride + 1
    assert seen == list(range(1, tokens))


@pytest.mark.parametrize(("tokens", "window", "stride"), [(1, 4, 4), (9, 4, 0), (9, 4, 5)])
def test_windows_that_would_skip_tokens_are_refused(tokens, window, stride):
    with pytest.raises(ValueError, match="no windows"):
        windows(tokens, window, stride)


@pytest.mark.parametrize(("window", "stride"), SIZES)
def test_it_is_the_definition_computed_token_by_token(model, ids, window, stride):
    found = score(Scorer(model), ids, window, stride, 3)
    assert found == pytest.approx(score(Scorer(model), ids, window, stride), rel=1e-5)
    expected, starts = 0.0, [0]
    for token in range(1, len(ids)):
        # the first window whose inputs reach the token before this one
        while starts[-1] + window < token:
            starts.append(starts[-1] + stride)
        logits = model(ids[None, starts[-1] : token]).logits[0, -1].double()
        expected -= float(logits.log_softmax(-1)[ids[token]])
    assert sum(found) == pytest.approx(expected, rel=1e-5)
    value = perplexity_by(Scorer(model), ids, window, stride).value
    assert value == pytest.approx(math.exp(expected / (len(ids) - 1)), rel=1e-5)


def test_chunks_of_logits_change_nothing(model, ids, monkeypatch):
    whole = score(Scorer(model), ids, 64, 32)
    monkeypatch.setattr(perplexity, "CHUNK_BYTES", 4 * model.config.vocab_size * 5)
    scorer = Scorer(model)
    sizes = []
    handle = model.lm_head.register_forward_hook(lambda _, __, out: sizes.append(out.shape[0]))
    chunked = score(scorer, ids, 64, 32)
    handle.remove()
    assert max(sizes) == 5
    assert chunked == pytest.approx(whole, rel=1e-6)


def test_a_head_that_is_followed_by_a_cap_is_not_used_by_itself():
    import transformers

    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, initializer_range=0.5,
        final_logit_softcapping=2.0, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.Gemma2ForCausalLM(config).eval()
    ids = torch.arange(40) % 64
    scorer = Scorer(model)
    with torch.no_grad():
        loss = float(model(ids[None], labels=ids[None]).loss)
    assert perplexity_by(scorer, ids, 64, 64).value == pytest.approx(math.exp(loss), 1e-5)


def test_what_is_not_finite_has_no_value(ids):
    model = tiny_model()
    model.lm_head.weight[0, 0] = float("nan")
    found = perplexity_by(Scorer(model), ids, 32, 32)
    assert found.value is None and found.tokens == len(ids) - 1
    assert perplexity_of([1e6], 10).value is None
