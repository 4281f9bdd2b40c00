"""Mixtures: experts are compressed one by one, and the compressed model runs."""

import pytest
import torch
import transformers

import gacprof
from gacprof.checkpoint import scan

SHARED = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 128, "num_experts_per_tok": 2,
}  # fmt: skip
MODELS = {
    "mixtral": lambda: transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**SHARED, intermediate_size=48, num_local_experts=4)
    ),
    "qwen": lambda: transformers.Qwen2MoeForCausalLM(
        transformers.Qwen2MoeConfig(
            **SHARED, num_experts=4, moe_intermediate_size=24, shared_expert_intermediate_size=40
        )
    ),
}
METHODS = ["svd-llm", "llm-pruner", pytest.param("asvd", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=MODELS)
def mixture(request, tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("moe") / request.param
    MODELS[request.param]().save_pretrained(folder)
    return folder


def logits(model, ids):
    with torch.no_grad():
        return model(input_ids=ids).logits


def test_experts_loaded_one_by_one_give_what_transformers_gives(mixture, ids):
    own = transformers.AutoModelForCausalLM.from_pretrained(mixture, dtype=torch.float32)
    assert torch.allclose(
        logits(gacprof.load_model(mixture), ids), logits(own, ids), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("method", METHODS)
def test_experts_are_compressed_and_run(mixture, ids, method, tmp_path):
    done = gacprof.compress(mixture, tmp_path / "o", method=method, ratio=0.3, calib=ids)
    assert done.parameters_after < done.parameters_before and done.removed >= 0.3
    changed = [dim for dim in scan(tmp_path / "o").dims if ".experts." in dim.name]
    assert len({dim.name.rpartition(":")[0] for dim in changed}) >= 8
    assert not any("expert" in name for name in done.left if "shared_expert_gate" not in name)
    assert torch.isfinite(logits(gacprof.load_model(tmp_path / "o"), ids[:1])).all()


@pytest.mark.parametrize("method", ["svd-llm", "llm-pruner"])
def test_experts_are_judged_by_the_loss_and_one_that_saw_nothing_by_its_like(
    mixture, ids, tmp_path, method
):
    """One window of one repeated token is sent to two experts of four."""
    one = torch.full((1, 8), 7)
    for name, text in (("all", ids), ("few", one)):
        done = gacprof.compress(
            mixture, tmp_path / name, method=method, ratio=0.3, calib=text, round_to=4,
            objective="loss",
        )  # fmt: skip
        assert done.removed >= 0.3 and (done.loss_added is None or done.loss_added >= 0)
        sizes = {size for dim, size in done.sizes.items() if ".experts." in dim}
        assert len(sizes) > 1 and all(size is None or size % 4 == 0 for size in sizes)
        assert torch.isfinite(logits(gacprof.load_model(tmp_path / name), ids[:1])).all()


def test_at_full_rank_nothing_changes(mixture, ids, tmp_path):
    """The factors of every expert are in their right places."""
    done = gacprof.compress(mixture, tmp_path / "o", method="svd", ratio=0.01)
    assert done.sizes
    factored = logits(gacprof.load_model(tmp_path / "o"), ids[:2])
    dense = logits(gacprof.load_model(mixture), ids[:2])
    other = logits(gacprof.load_model(mixture), ids[2:4])
    assert (factored - dense).abs().mean() < 0.5 * (other - dense).abs().mean()
