"""Pruned units: a whole function left, and the importance that the definition gives."""

import pytest
import torch
from compressing_models import logits_of

import gacprof
from gacprof.checkpoint import open_tensors, scan
from gacprof.core.errors import CompressionError
from gacprof.extras.compress.methods.llmpruner import TaylorPruning, Units

WIDTH, GROUPS, HEAD = 160, 2, 16


def masked(dense, pruned):
    """The dense model with the weights of all pruned units set to zero."""
    model = gacprof.load_model(dense)
    reader, kept = open_tensors(pruned), open_tensors(dense)
    for layer in range(3):
        own = f"model.layers.{layer}."
        small, full = (r.torch(f"{own}mlp.down_proj.weight") for r in (reader, kept))
        stay = {tuple(column.tolist()) for column in small.T}
        dead = [i for i, column in enumerate(full.T) if tuple(column.tolist()) not in stay]
        assert len(dead) == WIDTH - small.shape[1]
        mlp = model.get_submodule(f"{own}mlp")
        mlp.down_proj.weight[:, dead] = 0
        heads, whole = (r.torch(f"{own}self_attn.o_proj.weight") for r in (reader, kept))
        columns = {tuple(column.tolist()) for column in heads.T}
        gone = [i for i, column in enumerate(whole.T) if tuple(column.tolist()) not in columns]
        assert len(gone) == whole.shape[1] - heads.shape[1]
        model.get_submodule(f"{own}self_attn").o_proj.weight[:, gone] = 0
    return model


@pytest.mark.parametrize("scope", ["local", "global"])
@pytest.mark.parametrize("ratio", [0.3, 0.6])
def test_a_pruned_model_is_the_dense_one_with_masked_units(dense, ids, tmp_path, scope, ratio):
    gacprof.compress(
        dense, tmp_path / "out", method="llm-pruner", ratio=ratio, calib=ids,
        options={"scope": scope},
    )  # fmt: skip
    with torch.no_grad():
        expected = masked(dense, tmp_path / "out")(ids[:2]).logits
    assert torch.allclose(logits_of(tmp_path / "out", ids[:2]), expected, atol=1e-4)


def test_whole_groups_of_heads_go_and_the_loader_knows(dense, ids, tmp_path):
    out = tmp_path / "out"
    result = gacprof.compress(dense, out, method="llm-pruner", ratio=0.6, calib=ids)
    counts = {(a.heads, a.kv_heads, a.head_dim) for a in scan(out).attentions}
    assert counts == {(3, 1, HEAD)}
    (width,) = {d.size for d in scan(out).dims}  # the same share of every layer
    assert result.removed >= 0.6 and scan(out).config["intermediate_size"] == width
    config = scan(out).config
    assert (config["num_attention_heads"], config["head_dim"]) == (3, HEAD)


def test_global_pruning_gives_layers_widths_of_their_own(dense, ids, tmp_path):
    out = tmp_path / "out"
    gacprof.compress(
        dense, out, method="llm-pruner", ratio=0.3, calib=ids, options={"scope": "global"}
    )
    assert len({d.size for d in scan(out).dims if d.kind == "width"}) > 1
    assert scan(out).layout == "per-layer-widths"
    assert scan(out).config["intermediate_size"] == WIDTH  # as LLM-Pruner leaves it


def test_importance_is_first_order_taylor_summed_over_the_units_weights(dense, ids, tmp_path):
    model = gacprof.load_model(dense).requires_grad_(True)
    for window in ids:
        logits = model(window[None]).logits[0, :-1]
        torch.nn.functional.cross_entropy(logits, window[1:]).backward()
    mlp = model.model.layers[1].mlp
    expected = sum((p.weight * p.weight.grad).abs().sum(1) for p in (mlp.gate_proj, mlp.up_proj))
    expected = expected + (mlp.down_proj.weight * mlp.down_proj.weight.grad).abs().sum(0)
    attention = model.model.layers[1].self_attn
    heads = sum(
        (p.weight * p.weight.grad).abs().sum(1).reshape(GROUPS, -1).sum(1)
        for p in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    o = attention.o_proj.weight
    heads = heads + (o * o.grad).abs().sum(0).reshape(GROUPS, -1).sum(1)
    work = tmp_path / "work"
    gacprof.compress(dense, tmp_path / "o", method="llm-pruner", ratio=0.3, calib=ids, work=work)
    from safetensors.torch import load_file

    (file,) = work.glob("*/importance.safetensors")
    found = load_file(file)
    assert torch.allclose(
        found["model.layers.1.mlp:width"].float(), expected.detach(), rtol=1e-3, atol=1e-6
    )
    assert torch.allclose(
        found["model.layers.1.self_attn:heads"].float(), heads.detach(), rtol=1e-3, atol=1e-6
    )


def test_the_least_important_units_of_all_layers_go_first():
    units = [Units("a", 10, 5, list(range(10))), Units("b", 10, 5, [100.0] * 10)]
    assert TaylorPruning("global").sizes(units, 25) == {"a": 5, "b": 10}
    assert TaylorPruning("local").sizes(units, 50) == {"a": 5, "b": 5}


def test_a_ratio_beyond_what_units_have_is_refused():
    units = [Units("a", 10, 5, list(range(10)))]
    for scope in ("local", "global"):
        with pytest.raises(CompressionError, match=r"cannot be met: 48 parameters.* have 45"):
            TaylorPruning(scope).sizes(units, 48)
