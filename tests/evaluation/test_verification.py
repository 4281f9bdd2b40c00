"""Verifying: the numbers are those of the definition, and the verdict tells models apart."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gacprof.core.errors import CheckpointError, MeasurementError
from gacprof.resizing import realign

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tiny_models import write_llama  # noqa: E402

from gacprof.checkpoint.load import load_model  # noqa: E402
from gacprof.evaluation import verify  # noqa: E402
from gacprof.evaluation.verification import tolerance_of  # noqa: E402


@pytest.fixture(scope="module")
def padded(asvd, tmp_path_factory):
    out = tmp_path_factory.mktemp("padded") / "out"
    realign(asvd, "minimal", out)
    return out


@pytest.fixture(scope="module")
def disturbed(asvd, tmp_path_factory):
    """The same checkpoint with one head weight moved by a hundredth."""
    out = tmp_path_factory.mktemp("disturbed")
    tensors = load_file(asvd / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"].copy()
    tensors["lm_head.weight"][3, 5] += np.float16(0.01)
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_bytes((asvd / "config.json").read_bytes())
    return out


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """The same in float16 with PaLU's names: two groups of a rank in every k and v."""
    return palu_of(tmp_path_factory.mktemp("palu"))


def palu_of(folder):
    rng = np.random.default_rng(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
        vocab_size=128, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).half().save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    ranks = {}
    for name in [n for n in tensors if n.endswith(("k_proj.weight", "v_proj.weight"))]:
        module, scale = name.removesuffix(".weight"), 0.3
        ranks[module] = [23, 21]
        tensors.pop(name)
        tensors[f"{module}.VT.weight"] = (scale * rng.standard_normal((44, 64))).astype("float16")
        for i, rank in enumerate(ranks[module]):
            outer = scale * rng.standard_normal((32, rank))
            tensors[f"{module}.U.{i}.weight"] = outer.astype("float16")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    made = json.loads((folder / "config.json").read_text())
    made |= {"model_type": "palullama", "head_wise_ranks": ranks}
    (folder / "config.json").write_text(json.dumps(made))
    return folder


def test_merged_factors_pass_by_the_rounding_of_their_stored_type(half, tmp_path):
    """Above the rounding of the computation, below the budget that realigning reported."""
    result = realign(half, "fuse", tmp_path / "dense")
    assert len(result.fused) == 8 and f"{result.rounding:.1e}" in result.meaning
    found = verify(half, tmp_path / "dense")
    assert found.passed and found.merged == 8
    alone = tolerance_of(torch.float32, 4)
    assert alone < found.max_rel_error < result.rounding
    assert found.tolerance == pytest.approx(np.hypot(alone, result.rounding))
    model = load_model(half, "float32")
    assert verify(model, tmp_path / "dense").passed  # in memory its layers are factors too
    assert verify(tmp_path / "dense", half).merged == 8 and verify(half, half).merged == 0


def test_a_merged_weight_that_is_wrong_still_fails(half, tmp_path):
    realign(half, "fuse", tmp_path / "dense")
    tensors = load_file(tmp_path / "dense" / "model.safetensors")
    name = "model.layers.1.self_attn.v_proj.weight"
    tensors[name] = np.roll(tensors[name], 1, axis=0)
    save_file(tensors, tmp_path / "dense" / "model.safetensors", {"format": "pt"})
    assert not verify(half, tmp_path / "dense").passed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_padded_checkpoint_passes_in_every_dtype(asvd, padded, dtype):
    found = verify(asvd, padded, dtype=dtype)
    assert found.passed and found.dtype == dtype and found.positions == 64
    assert found.max_rel_error <= found.tolerance
    assert found.argmax_agreement >= 0.95


def test_one_weight_moved_by_a_hundredth_fails(asvd, disturbed):
    found = verify(asvd, disturbed)
    assert not found.passed
    assert found.max_rel_error > found.tolerance and found.max_kl > 0


def test_the_numbers_are_those_of_the_definition(asvd, disturbed):
    ids = torch.arange(24).reshape(2, 12)
    found = verify(asvd, disturbed, inputs=ids)
    with torch.no_grad():
        a, b = (load_model(p, "float32")(ids).logits.double() for p in (asvd, disturbed))
    assert found.max_abs_error == pytest.approx(float((a - b).abs().max()))
    assert found.scale == pytest.approx(float(a.abs().max()))
    assert found.max_rel_error == pytest.approx(found.max_abs_error / found.scale)
    kl = torch.nn.functional.kl_div(
        b.log_softmax(-1), a.log_softmax(-1), log_target=True, reduction="none"
    ).sum(-1)
    assert found.mean_kl == pytest.approx(float(kl.mean()), rel=1e-6)
    assert found.max_kl == pytest.approx(float(kl.max()), rel=1e-6)


def test_models_in_memory_are_compared_as_they_are(asvd, padded):
    model = load_model(asvd, "float32")
    assert verify(model, padded).passed
    with pytest.raises(CheckpointError, match=r"torch\.bfloat16 on cpu is asked for"):
        verify(model, padded, dtype="bfloat16")


def test_infinite_logits_fail_and_are_still_json(asvd):
    model = load_model(asvd, "float32")
    model.lm_head.weight[0, 0] = float("inf")
    found = verify(asvd, model)
    assert not found.passed and found.finite_a and not found.finite_b
    json.dumps(found.as_dict(), allow_nan=False)
    found = verify(model, model)
    assert not found.passed and not found.finite_a and not found.finite_b


def test_a_model_that_cannot_be_run_is_refused_in_one_line(asvd, monkeypatch):
    model = load_model(asvd, "float32")
    monkeypatch.setattr(model.model.layers[0].mlp, "forward", lambda x: x[..., :3])
    with pytest.raises(CheckpointError, match="its forward pass fails") as refused:
        verify(asvd, model)
    assert "\n" not in str(refused.value)


def test_models_that_cannot_be_compared_are_refused(asvd, tmp_path):
    write_llama(tmp_path / "other", vocab_size=700)
    with pytest.raises(CheckpointError, match="cannot be compared"):
        verify(asvd, tmp_path / "other")
    with pytest.raises(CheckpointError, match="knows 512 tokens"):
        verify(tmp_path / "other", asvd, inputs=[[600]])
    for wrong in ([1, 2], [[-1]], "text", [[]]):
        with pytest.raises(CheckpointError, match="token ids"):
            verify(asvd, asvd, inputs=wrong)
    for device in ("nowhere", "meta", "cuda:99"):
        with pytest.raises(MeasurementError):
            verify(asvd, asvd, device=device)


def test_perplexity_takes_the_tokenizer_that_is_named(asvd, tools_checkpoints, tmp_path):
    base = tools_checkpoints / "base_mha"
    (tmp_path / "text.txt").write_text("Return the number of items.\n" * 5)
    with pytest.raises(CheckpointError, match="needs a tokenizer"):
        verify(asvd, asvd, text=tmp_path / "text.txt")
    named = verify(asvd, asvd, text=tmp_path / "text.txt", tokenizer=base)
    own = verify(base, base, text=tmp_path / "text.txt")
    assert named.perplexity_a.tokens == own.perplexity_a.tokens
