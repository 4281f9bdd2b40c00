"""A size that is stored is never taken for an earlier, larger one; only evidence of one counts."""

from __future__ import annotations

from typing import Any

import pytest
from test_layouts import dim, found, gated

LAYER = "model.layers.0"
MLP = f"{LAYER}.mlp"
Q = f"{LAYER}.self_attn.q_proj"
EXPERT = f"{MLP}.experts.0"


def mixtral(width: int) -> dict[str, tuple[int, ...]]:
    expert = f"{LAYER}.block_sparse_moe.experts.0"
    return {
        f"{expert}.w1.weight": (width, 8),
        f"{expert}.w3.weight": (width, 8),
        f"{expert}.w2.weight": (8, width),
    }


def opt(width: int) -> dict[str, tuple[int, ...]]:
    layer = "model.decoder.layers.0"
    return {f"{layer}.fc1.weight": (width, 8), f"{layer}.fc2.weight": (8, width)}


def gpt2(width: int) -> dict[str, tuple[int, ...]]:
    mlp = "transformer.h.0.mlp"
    return {
        f"{mlp}.c_fc.weight": (8, width),
        f"{mlp}.c_fc.bias": (width,),
        f"{mlp}.c_proj.weight": (width, 8),
    }


def fused(width: int) -> dict[str, tuple[int, ...]]:
    return {f"{MLP}.gate_up_proj.weight": (2 * width, 8), f"{MLP}.down_proj.weight": (8, width)}


def factored(width: int) -> dict[str, tuple[int, ...]]:
    """ASVD's, with all three factored."""
    return {
        f"{MLP}.gate_proj.ALinear.weight": (width, 4),
        f"{MLP}.gate_proj.BLinear.weight": (4, 8),
        f"{MLP}.up_proj.ALinear.weight": (width, 4),
        f"{MLP}.up_proj.BLinear.weight": (4, 8),
        f"{MLP}.down_proj.ALinear.weight": (8, 4),
        f"{MLP}.down_proj.BLinear.weight": (4, width),
    }


WIDTHS: dict[str, tuple[Any, Any]] = {
    # name: (shapes at a width, config that says a width)
    "plain": (lambda w: gated(MLP, w), lambda w: {"intermediate_size": w}),
    "multimodal": (
        lambda w: gated(MLP, w),
        lambda w: {"text_config": {"intermediate_size": w}, "intermediate_size": 5632},
    ),
    "gate and up fused": (fused, lambda w: {"intermediate_size": w}),
    "OPT": (opt, lambda w: {"ffn_dim": w}),
    "GPT-2": (gpt2, lambda w: {"n_inner": w, "n_embd": 8}),
    "Mixtral": (mixtral, lambda w: {"intermediate_size": w}),
    "Qwen-MoE": (
        lambda w: gated(EXPERT, w),
        lambda w: {"moe_intermediate_size": w, "intermediate_size": 5632},
    ),
    "a shared expert": (
        lambda w: gated(EXPERT, 16) | gated(f"{MLP}.shared_expert", w),
        lambda w: {
            "shared_expert_intermediate_size": w,
            "moe_intermediate_size": 16,
            "intermediate_size": 5632,
        },
    ),
    "ASVD": (factored, lambda w: {"intermediate_size": w, "truncation_ranks": {}}),
}


def width_of(kind: str, stored: int, declared: int) -> Any:
    shapes, config = WIDTHS[kind]
    _, findings = found(shapes(stored), config(declared))
    return next(d for d in findings.dims if d.kind == "width" and d.size == stored)


@pytest.mark.parametrize(("declared", "dense"), [(683, None), (1376, 1376), (600, None)])
@pytest.mark.parametrize("kind", WIDTHS)
def test_only_a_config_that_still_says_a_larger_width_knows_of_one(
    kind: str, declared: int, dense: int | None
) -> None:
    assert width_of(kind, 683, declared).dense_size == dense


@pytest.mark.parametrize("config", [{}, {"intermediate_size": None}, {"intermediate_size": "no"}])
def test_without_a_width_in_the_config_nothing_is_known(config: Any) -> None:
    _, findings = found(gated(MLP, 683), config)
    assert findings.dims[0].dense_size is None


def test_the_other_kinds_width_is_not_an_experts() -> None:
    """A true moe_intermediate_size beside the dense layers' larger intermediate_size."""
    config = {"moe_intermediate_size": 683, "intermediate_size": 5632}
    _, findings = found(gated(EXPERT, 683) | gated("model.layers.1.mlp", 5632), config)
    assert {d.dense_size for d in findings.dims} == {None}


def test_only_the_layers_that_were_cut_were_larger() -> None:
    shapes = gated("model.layers.0.mlp", 683) | gated("model.layers.1.mlp", 601)
    _, findings = found(shapes, {"intermediate_size": 683})
    assert [(d.size, d.dense_size) for d in findings.dims] == [(683, None), (601, 683)]


PAIRS = {
    "asvd": (f"{Q}.ALinear.weight", f"{Q}.BLinear.weight"),
    "svd-llm": (f"{LAYER}.self_attn.q_u_proj.weight", f"{LAYER}.self_attn.q_v_proj.weight"),
    "gacprof": (f"{Q}.outer.weight", f"{Q}.inner.weight"),
    "palu": (f"{Q}.U.0.weight", f"{Q}.VT.weight"),
    "factor-pairs": (f"{Q}.U.weight", f"{Q}.V.weight"),
}


@pytest.mark.parametrize("layout", PAIRS)
@pytest.mark.parametrize(
    ("n_out", "n_in", "rank", "dense"),
    [
        (205, 300, 131, 205),  # the dense weight's rank is its smaller side
        (300, 205, 131, 205),
        (131, 300, 131, None),  # of full rank already: it never was larger
        (300, 131, 131, None),
    ],
)
def test_a_rank_was_larger_only_if_it_is_below_the_dense_weights(
    layout: str, n_out: int, n_in: int, rank: int, dense: int | None
) -> None:
    outer, inner = PAIRS[layout]
    name, findings = found(
        {inner: (rank, n_in), outer: (n_out, rank)}, {"truncation_ranks": {Q: rank}}
    )
    assert name == layout
    (only,) = [d for d in findings.dims if d.kind == "rank"]
    assert (only.size, only.dense_size) == (rank, dense)


@pytest.mark.parametrize("layout", [name for name in PAIRS if name != "factor-pairs"])
def test_a_rank_padded_beyond_the_dense_weights_has_no_larger_one(layout: str) -> None:
    outer, inner = PAIRS[layout]
    _, findings = found({inner: (136, 300), outer: (131, 136)})
    assert [(d.size, d.dense_size, d.most) for d in findings.dims] == [(136, None, None)]


def test_each_of_palus_groups_has_its_own_dense_rank() -> None:
    shapes = {
        f"{Q}.VT.weight": (41 + 30, 300),
        f"{Q}.U.0.weight": (41, 41),
        f"{Q}.U.1.weight": (41, 30),
    }
    _, findings = found(shapes, {"head_wise_ranks": {Q: [41, 30]}})
    assert [(d.size, d.dense_size) for d in findings.dims] == [(41, None), (30, 41)]


@pytest.mark.parametrize(("dense", "most"), [(131, 144), (205, 208), (208, 208), (256, 256)])
def test_a_ranks_bound_leaves_room_for_an_aligned_one(dense: int, most: int) -> None:
    outer, inner = PAIRS["asvd"]
    _, findings = found({inner: (100, 300), outer: (dense, 100)})
    assert findings.dims[0].most == most


def sliced(hidden: int, last: int) -> dict[str, tuple[int, ...]]:
    """One SliceGPT layer whose last stretch of the residual stream has another size."""
    attention = {f"{LAYER}.self_attn.{x}_proj.weight": (8, hidden) for x in "qkv"}
    return {
        "model.embed_tokens.weight": (50, hidden),
        **attention,
        f"{LAYER}.self_attn.o_proj.weight": (hidden, 8),
        f"{LAYER}.attn_shortcut_Q": (hidden, hidden),
        **gated(MLP, 16, hidden),
        f"{MLP}.down_proj.weight": (last, 16),
        f"{LAYER}.mlp_shortcut_Q": (hidden, last),
        "lm_head.weight": (50, last),
    }


@pytest.mark.parametrize("where", ["config", "side"])
def test_the_hidden_size_was_larger_where_it_was_sliced(where: str) -> None:
    side = {"model.json": {"hidden_size": 251, "embedding_dimensions": {"0": 199}}}
    given = {"side": side} if where == "side" else {}
    config = {"hidden_size": 251} if where == "config" else {}
    _, findings = found(sliced(199, 251), config, **given)
    assert dim(findings, "embedding:hidden").dense_size == 251
    assert dim(findings, f"{LAYER}.mlp:hidden").dense_size is None  # SliceGPT leaves the last whole


def test_a_sliced_config_that_says_the_stored_size_says_nothing() -> None:
    _, findings = found(sliced(199, 199), {"hidden_size": 199})
    assert {d.dense_size for d in findings.dims if d.kind == "hidden"} == {None}


@pytest.mark.parametrize(("heads", "head_dim"), [(5, 41), (7, 41), (13, 32)])
def test_odd_heads_are_no_evidence_of_more(heads: int, head_dim: int) -> None:
    """Heads and head_dim are no dims of their own; what they give is the config's own count."""
    n = heads * head_dim
    shapes = {f"{LAYER}.self_attn.{x}_proj.weight": (n, 64) for x in "qkv"}
    shapes[f"{LAYER}.self_attn.o_proj.weight"] = (64, n)
    config = {"num_attention_heads": heads, "head_dim": head_dim, "intermediate_size": 683}
    _, findings = found(shapes | gated(MLP, 683), config | {"hidden_size": 64})
    (attention,) = findings.attentions
    assert (attention.heads, attention.head_dim) == (heads, head_dim)
    assert [(d.size, d.dense_size) for d in findings.dims] == [(683, None)]
