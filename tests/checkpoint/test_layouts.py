"""Layouts that no fixture shows, in the names and shapes that their tools write; and what bounds a
rank: the dense weight's, where that is larger."""

import pytest
from checkpoint_making import checkpoint, contents

from gacprof.checkpoint import AttentionHeads, Place, scan
from gacprof.checkpoint.layouts import recognise
from gacprof.core.errors import CheckpointError

LAYER = "model.layers.0"
MLP, Q, K = f"{LAYER}.mlp", f"{LAYER}.self_attn.q_proj", f"{LAYER}.self_attn.k_proj"


def found(shapes, config=None, **more):
    seen = contents(shapes, config, **more)
    layout = recognise(seen)
    return layout.name, layout.describe(seen)


def dim(findings, name):
    return next(d for d in findings.dims if d.name == name)


def gated(prefix, width, hidden=8):
    return {
        f"{prefix}.gate_proj.weight": (width, hidden),
        f"{prefix}.up_proj.weight": (width, hidden),
        f"{prefix}.down_proj.weight": (hidden, width),
    }


def attention(q, kv):
    sides = {"q": (q, 8), "k": (kv, 8), "v": (kv, 8), "o": (8, q)}
    return {f"{LAYER}.self_attn.{x}_proj.weight": shape for x, shape in sides.items()}


UNEVEN = gated(MLP, 20) | gated("model.layers.1.mlp", 13)


def test_widths_may_differ_per_layer():
    name, findings = found(UNEVEN, {"intermediate_size": 20})
    assert name == "per-layer-widths"
    widths = [(d.name, d.size, d.layer) for d in findings.dims]
    assert widths == [(f"{MLP}:width", 20, 0), ("model.layers.1.mlp:width", 13, 1)]
    assert any("13, 20" in note for note in findings.notes)


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("LLMPruner.models.hf_llama.modeling_llama.LlamaMLP", "llm-pruner"),
        ("transformers.models.llama.modeling_llama.LlamaMLP", "per-layer-widths"),
        ("mine.LLMPruner.MLP", "per-layer-widths"),
    ],
)
def test_a_tool_is_named_only_where_its_own_classes_are_there(kind, layout):
    """Torch-Pruning pickles whole models too; uneven widths are nobody's signature."""
    name, _ = found(UNEVEN, {"intermediate_size": 24}, attributes={MLP: {"class": kind}})
    assert name == layout


def test_gate_and_up_in_one_weight_are_two_places_of_one_dim():
    """Phi-3 and GLM-4: the first half is gate, the second up."""
    fused = f"{MLP}.gate_up_proj.weight"
    _, findings = found({fused: (40, 8), f"{MLP}.down_proj.weight": (8, 20)})
    width = dim(findings, f"{MLP}:width")
    assert width.size == 20
    assert width.places[:2] == (Place(fused, 0, 0), Place(fused, 0, 20))
    assert [f.weight for f in width.feeds].count(fused) == 2


def test_widths_that_disagree_are_told_and_not_adjustable():
    _, findings = found(gated(MLP, 20) | {f"{MLP}.down_proj.weight": (8, 19)})
    assert findings.dims == () and any(MLP in note for note in findings.notes)


def mlp_with_norms(width, hidden, **more):
    """An MLP whose fc1 and fc2 stand beside the norms of the layer."""
    layer = "model.decoder.layers.0"
    shapes = {"fc1.weight": (width, hidden), "fc1.bias": (width,), "fc2.weight": (hidden, width)}
    shapes |= {"fc2.bias": (hidden,), "self_attn_layer_norm.weight": (hidden,)}
    shapes |= {f"self_attn.{x}_proj.weight": (hidden, hidden) for x in "qkv"}
    shapes |= {f"self_attn.{x}_proj.bias": (hidden,) for x in "qkv"}
    _, findings = found({f"{layer}.{name}": shape for name, shape in (shapes | more).items()})
    return dim(findings, f"{layer}:width")


@pytest.mark.parametrize("hidden", [24, 108])
def test_a_norm_between_fc1_and_fc2_refuses_padding(hidden):
    """NormFormer's names, and any other tensor of the width, a matrix as well."""
    sound = mlp_with_norms(108, hidden)
    assert (sound.padding, sound.params_per_unit) == ("exact", 2 * hidden + 1)
    for stranger in ("ffn_layernorm.weight", "scale", "fc1.lora_B.weight", "dwconv.weight"):
        shape = (108,) if "." not in stranger or "norm" in stranger else (108, 1)
        width = mlp_with_norms(108, hidden, **{stranger: shape})
        assert width.padding == "refused" and stranger in width.why


@pytest.mark.parametrize("inputs_first", [True, False])
def test_gpt2_stores_its_weights_the_other_way_round_and_starcoder2_does_not(inputs_first):
    mlp = "transformer.h.0.mlp" if inputs_first else MLP
    up, down = ((8, 32), (32, 8)) if inputs_first else ((32, 8), (8, 32))
    shapes = {f"{mlp}.c_fc.weight": up, f"{mlp}.c_fc.bias": (32,)}
    _, findings = found(shapes | {f"{mlp}.c_proj.weight": down, f"{mlp}.c_proj.bias": (8,)})
    width = dim(findings, f"{mlp}:width")
    assert width.size == 32
    assert {(p.tensor, p.axis) for p in width.places} == {
        (f"{mlp}.c_fc.weight", int(inputs_first)),
        (f"{mlp}.c_fc.bias", 0),
        (f"{mlp}.c_proj.weight", int(not inputs_first)),
    }
    gemm = next(m for m in findings.modules if m.role == "up").gemms[0]
    assert (gemm.N, gemm.K, gemm.bias) == (32, 8, True)


def test_a_tied_head_is_a_gemm_of_the_embedding():
    shapes = {"model.embed_tokens.weight": (50, 8)}
    _, findings = found(shapes, {"tie_word_embeddings": True})
    head = next(m for m in findings.modules if m.role == "head")
    assert [(g.weight, g.N, g.K) for g in head.gemms] == [("model.embed_tokens.weight", 50, 8)]
    for tied, more in ((False, {}), (True, {"lm_head.weight": (50, 8)})):
        _, findings = found(shapes | more, {"tie_word_embeddings": tied})
        assert [m.role for m in findings.modules] == ["embedding", *(["head"] if more else [])]


HEADS = {"hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("q", "kv", "config", "expected"),
    [
        (8, 4, HEADS, (AttentionHeads(0, 4, 2, 2),)),
        (24, 12, HEADS | {"head_dim": 6}, (AttentionHeads(0, 4, 2, 6),)),
        (6, 4, HEADS, (AttentionHeads(0, 3, 2, 2),)),  # a head was pruned
        (20, 10, HEADS | {"hidden_size": 7}, (AttentionHeads(0, 4, 2, 5),)),  # hidden pruned
        (8, 4, {"text_config": HEADS}, (AttentionHeads(0, 4, 2, 2),)),
        (7, 7, HEADS, ()),
    ],
)
def test_heads_come_from_shapes_first(q, kv, config, expected):
    _, findings = found(attention(q, kv), config)
    assert findings.attentions == expected
    assert expected or any("7" in note for note in findings.notes)


@pytest.mark.parametrize(("rows", "kv_heads"), [(24, 4), (16, 2), (12, 1)])
def test_fused_q_k_v_tell_their_kv_heads_by_shape(rows, kv_heads):
    """Falcon's config names 71 kv heads where its weights have one."""
    shapes = {"transformer.h.0.self_attention.query_key_value.weight": (rows, 8)}
    config = {"hidden_size": 8, "num_attention_heads": 4, "num_kv_heads": 4}
    _, findings = found(shapes, config)
    assert findings.attentions == (AttentionHeads(0, 4, kv_heads, 2),)


def test_a_vision_tower_has_its_own_heads_and_width():
    tower = "vision_tower.encoder.layers.0"
    shapes = gated("language_model.model.layers.0.mlp", 20)
    shapes |= {f"{tower}.mlp.fc1.weight": (30, 6), f"{tower}.mlp.fc2.weight": (6, 30)}
    shapes |= {f"{tower}.self_attn.{x}_proj.weight": (6, 6) for x in "qk"}
    vision = {"hidden_size": 6, "num_attention_heads": 3}
    config = {"text_config": HEADS | {"intermediate_size": 20}, "vision_config": vision}
    _, findings = found(shapes, config)
    assert {d.role: d.size for d in findings.dims} == {"mlp": 20, "tower": 30}
    assert findings.attentions == (AttentionHeads(0, 3, 3, 2),) and findings.notes == ()


@pytest.mark.parametrize("names", [("w1", "w3", "w2"), ("gate_proj", "up_proj", "down_proj")])
@pytest.mark.parametrize("block", ["block_sparse_moe", "mlp"])
def test_experts(names, block):
    moe = f"model.layers.1.{block}"
    shapes = {f"{moe}.gate.weight": (2, 8)} | gated(f"{moe}.shared_expert", 30)
    for e, width in enumerate((20, 13)):
        sizes = ((width, 8), (width, 8), (8, width))
        shapes |= {f"{moe}.experts.{e}.{n}.weight": s for n, s in zip(names, sizes, strict=True)}
    name, findings = found(shapes)
    assert name == "moe"
    assert {(d.name, d.size, d.role) for d in findings.dims} == {
        (f"{moe}.experts.0:width", 20, "expert"),
        (f"{moe}.experts.1:width", 13, "expert"),
        (f"{moe}.shared_expert:width", 30, "shared_expert"),
    }
    roles = {m.name.rsplit(".", 2)[-2] + "." + m.role for m in findings.modules}
    assert {"0.expert_gate", "1.expert_down", f"{block}.expert_router"} <= roles


@pytest.mark.parametrize("inputs_first", [True, False])
def test_experts_in_one_tensor_are_told_and_not_adjustable(inputs_first):
    up, down = ((4, 8, 24), (4, 12, 8)) if inputs_first else ((4, 24, 8), (4, 8, 12))
    shapes = {f"{MLP}.experts.gate_up_proj": up, f"{MLP}.experts.down_proj": down}
    _, findings = found(shapes, {"hidden_size": 8})
    gemms = {m.role: (m.gemms[0].N, m.gemms[0].K) for m in findings.modules}
    assert gemms == {"expert_gate_up": (24, 8), "expert_down": (8, 12)}
    assert [(d.size, d.padding) for d in findings.dims] == [(12, "refused")]


@pytest.mark.parametrize(
    ("outer", "inner"),
    [(f"{Q}.U.weight", f"{Q}.V.weight"), (f"{Q}.1.weight", f"{Q}.0.weight"),
     (f"{Q}.left", f"{Q}.right"), (f"{Q}_b.weight", f"{Q}_a.weight")],
)  # fmt: skip
@pytest.mark.parametrize("n_in", [16, 24])
def test_factor_pairs_of_unknown_tools_are_found_by_shape(outer, inner, n_in):
    name, findings = found({inner: (5, n_in), outer: (16, 5)})
    assert name == "factor-pairs"
    rank = dim(findings, f"{Q}:rank")
    assert rank.places == (Place(inner, 0), Place(outer, 1))
    assert (rank.size, rank.dense_size, rank.params_per_unit) == (5, 16, 16 + n_in)
    assert not rank.ordered


@pytest.mark.parametrize(
    "shapes",
    [
        {f"{Q}.U.weight": (16, 5), f"{Q}.V.weight": (6, 16)},  # do not fit
        {f"{Q}.U.weight": (16, 20), f"{Q}.V.weight": (20, 24)},  # no low rank
        {f"{Q}.U.weight": (8, 8), f"{Q}.V.weight": (8, 8)},  # fit in both orders
        {f"{Q}.lora_A.weight": (5, 16), f"{Q}.lora_B.weight": (16, 5)},  # an adapter
        {f"{Q}.weight": (16, 16), f"{Q}.U.weight": (16, 5), f"{Q}.V.weight": (5, 16)},
        {f"{LAYER}.fc1.weight": (20, 8), f"{LAYER}.fc2.weight": (8, 20)},
        {"a.q_a_proj.weight": (5, 16), "a.q_b_proj.weight": (16, 5)},  # DeepSeek: norm between
    ],
)
def test_what_only_looks_like_factors_is_not(shapes):
    name, findings = found(shapes)
    assert name == "plain" and not [d for d in findings.dims if d.kind == "rank"]


def test_something_between_the_factors_refuses_padding():
    shapes = {f"{Q}.V.weight": (5, 16), f"{Q}.U.weight": (16, 5), f"{Q}.norm.weight": (5,)}
    _, findings = found(shapes)
    assert findings.dims[0].padding == "refused" and "norm" in findings.dims[0].why


def test_the_user_may_name_the_factors():
    shapes = {"enc.w.alpha": (5, 16), "enc.w.omega": (16, 5), "enc.b": (3, 3)}
    name, findings = found(shapes, factors=("{module}.omega", "{module}.alpha"))
    assert name == "factor-pairs"
    assert [(d.name, d.size) for d in findings.dims] == [("enc.w:rank", 5)]


@pytest.mark.parametrize(
    ("factors", "complaint"),
    [
        (("a.U.weight", "{module}.V"), "needs"),
        (("{module}.X", "{module}.Y"), "match no pair"),
        (("{module}.V.weight", "{module}.U.weight"), "do not fit"),
    ],
)
def test_patterns_that_cannot_be_meant(factors, complaint, tmp_path):
    shapes = {f"{Q}.V.weight": (5, 16), f"{Q}.U.weight": (24, 5)}
    with pytest.raises(CheckpointError, match=complaint):
        scan(checkpoint(tmp_path, shapes), factors=factors)


def test_asvd_biases_and_a_factored_head():
    shapes = {f"{Q}.BLinear.weight": (5, 16), f"{Q}.ALinear.weight": (16, 5)}
    shapes |= {f"{Q}.ALinear.bias": (16,), "lm_head.BLinear.weight": (9, 16)}
    shapes |= {"lm_head.ALinear.weight": (50, 9)}
    _, findings = found(shapes, {"truncation_ranks": {Q: 6, "lm_head": 9}})
    ranks = [(d.name, d.role) for d in findings.dims]
    assert ranks == [(f"{Q}:rank", "q"), ("lm_head:rank", "head")]
    gemms = next(m for m in findings.modules if m.name == Q).gemms
    assert [g.bias for g in gemms] == [False, True]
    assert any("config says rank 6, the tensors have 5" in note for note in findings.notes)


def test_svdllm_names_of_opt():
    layer, shapes = "model.decoder.layers.0", {}
    for stem, (n_out, n_in) in {"self_attn.out": (8, 8), "fc1": (20, 8), "fc2": (8, 20)}.items():
        shapes[f"{layer}.{stem}_v_proj.weight"] = (3, n_in)
        shapes[f"{layer}.{stem}_u_proj.weight"] = (n_out, 3)
        shapes[f"{layer}.{stem}_u_proj.bias"] = (n_out,)
    name, findings = found(shapes)
    assert name == "svd-llm"
    ranks = {d.name.removeprefix(f"{layer}.") for d in findings.dims if d.kind == "rank"}
    assert ranks == {"self_attn.out_proj:rank", "fc1:rank", "fc2:rank"}
    width = dim(findings, f"{layer}:width")
    assert (width.size, width.params_per_unit) == (20, 3 + 1 + 3)


def test_palu_with_biases_and_a_config_that_disagrees():
    shapes = {f"{K}.VT.weight": (7, 8)}
    for i, rank in enumerate((3, 4)):
        shapes |= {f"{K}.U.{i}.weight": (4, rank), f"{K}.U.{i}.bias": (4,)}
    _, findings = found(shapes, {"head_wise_ranks": {K: [3, 3]}})
    assert [d.size for d in findings.dims] == [3, 4]
    assert [g.bias for m in findings.modules for g in m.gemms] == [False, True, True]
    assert any("[3, 3]" in note and "[3, 4]" in note for note in findings.notes)


@pytest.mark.parametrize(
    ("shapes", "complaint"),
    [
        ({f"{Q}.BLinear.weight": (5, 16), f"{Q}.ALinear.weight": (16, 6)}, "do not fit"),
        ({f"{Q}.VT.weight": (9, 8), f"{Q}.U.0.weight": (4, 3), f"{Q}.U.1.weight": (4, 4)},
         "do not fit"),
        ({f"{LAYER}.attn_shortcut_Q": (6, 6), f"{Q}.weight": (8, 7)}, "should be one"),
    ],
    ids=["asvd", "palu", "slicegpt"],
)  # fmt: skip
def test_factors_and_stretches_that_do_not_fit_are_refused(shapes, complaint):
    with pytest.raises(CheckpointError, match=complaint):
        found(shapes)


def test_modules_come_in_the_order_of_the_model():
    shapes = {"lm_head.weight": (50, 8)}
    for i in (10, 9, 2):
        shapes |= gated(f"model.layers.{i}.mlp", 20)
    _, findings = found(shapes | {"model.embed_tokens.weight": (50, 8)})
    layers = [(i, role) for i in (2, 9, 10) for role in ("gate", "up", "down")]
    modules = [(m.layer, m.role) for m in findings.modules]
    assert modules == [(None, "embedding"), *layers, (None, "head")]


PAIRS = {
    "asvd": (f"{Q}.ALinear.weight", f"{Q}.BLinear.weight"),
    "svd-llm": (f"{LAYER}.self_attn.q_u_proj.weight", f"{LAYER}.self_attn.q_v_proj.weight"),
    "gacprof": (f"{Q}.outer.weight", f"{Q}.inner.weight"),
    "palu": (f"{Q}.U.0.weight", f"{Q}.VT.weight"),
    "factor-pairs": (f"{Q}.U.weight", f"{Q}.V.weight"),
}


@pytest.mark.parametrize("layout", PAIRS)
def test_a_rank_was_larger_only_if_it_is_below_the_dense_weights(layout):
    """The dense weight's rank is its smaller side; what is of full rank never was larger."""
    outer, inner = PAIRS[layout]
    for n_out, n_in, dense in (
        (205, 300, 205), (300, 205, 205), (131, 300, None), (300, 131, None)
    ):  # fmt: skip
        name, findings = found({inner: (131, n_in), outer: (n_out, 131)})
        assert name == layout
        (only,) = [d for d in findings.dims if d.kind == "rank"]
        assert (only.size, only.dense_size) == (131, dense)


def test_each_of_palus_groups_has_its_own_dense_rank():
    shapes = {f"{Q}.VT.weight": (71, 300), f"{Q}.U.0.weight": (41, 41), f"{Q}.U.1.weight": (41, 30)}
    _, findings = found(shapes, {"head_wise_ranks": {Q: [41, 30]}})
    assert [(d.size, d.dense_size) for d in findings.dims] == [(41, None), (30, 41)]


@pytest.mark.parametrize(("dense", "most"), [(131, 144), (205, 208), (208, 208), (256, 256)])
def test_a_ranks_bound_leaves_room_for_an_aligned_one(dense, most):
    outer, inner = PAIRS["asvd"]
    _, findings = found({inner: (100, 300), outer: (dense, 100)})
    assert findings.dims[0].most == most
