"""Layouts in the names and shapes that their tools write."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from tool_checkpoints import checkpoint, write_safetensors

from gacprof.checkpoint.inventory import AttentionHeads, Dim, Inventory, Place
from gacprof.checkpoint.layouts.names import role_of_template
from gacprof.checkpoint.scan import scan
from gacprof.core.errors import CheckpointError

LAYER = "model.layers.0"
MLP, Q, K = f"{LAYER}.mlp", f"{LAYER}.self_attn.q_proj", f"{LAYER}.self_attn.k_proj"
Shapes = dict[str, tuple[int, ...]]


@pytest.fixture
def scanned(tmp_path: Path) -> Any:
    """The inventory of a checkpoint of these shapes and this config."""

    def scan_shapes(shapes: Shapes, config: dict[str, Any] | None = None, **more: Any) -> Inventory:
        return scan(checkpoint(tmp_path, shapes, config), **more)

    return scan_shapes


def gated(prefix: str, width: int, hidden: int = 8) -> Shapes:
    return {
        f"{prefix}.gate_proj.weight": (width, hidden),
        f"{prefix}.up_proj.weight": (width, hidden),
        f"{prefix}.down_proj.weight": (hidden, width),
    }


def ranks(inventory: Inventory) -> list[Dim]:
    return [dim for dim in inventory.dims if dim.kind == "rank"]


PAIRS = {
    "asvd": (f"{Q}.BLinear.weight", f"{Q}.ALinear.weight"),
    "svd-llm": (f"{LAYER}.self_attn.q_v_proj.weight", f"{LAYER}.self_attn.q_u_proj.weight"),
    "gacprof": (f"{Q}.inner.weight", f"{Q}.outer.weight"),
    "palu": (f"{Q}.VT.weight", f"{Q}.U.0.weight"),
    "factor-pairs": (f"{Q}.V.weight", f"{Q}.U.weight"),
}


@pytest.mark.parametrize("layout", PAIRS)
@pytest.mark.parametrize(
    ("n_out", "n_in", "dense"), [(205, 300, 205), (300, 205, 205), (131, 300, None)]
)
def test_a_pair_of_factors_is_one_rank(
    scanned: Any, layout: str, n_out: int, n_in: int, dense: int | None
) -> None:
    """The dense weight's rank is its smaller side; a full rank never was larger."""
    inner, outer = PAIRS[layout]
    inventory = scanned({inner: (131, n_in), outer: (n_out, 131)})
    (rank,) = ranks(inventory)
    assert inventory.layout == layout
    assert (rank.name, rank.size, rank.dense_size) == (f"{Q}:rank", 131, dense)
    assert rank.places == (Place(inner, 0), Place(outer, 1))
    assert rank.params_per_unit == n_out + n_in
    assert rank.ordered == (layout in ("asvd", "svd-llm", "palu"))
    (module,) = inventory.modules
    assert [(g.weight, g.N, g.K) for g in module.gemms] == [(inner, 131, n_in), (outer, n_out, 131)]


@pytest.mark.parametrize(("dense", "largest"), [(131, 144), (205, 208), (256, 256)])
def test_a_ranks_bound_leaves_room_for_an_aligned_one(
    scanned: Any, dense: int, largest: int
) -> None:
    inner, outer = PAIRS["asvd"]
    assert ranks(scanned({inner: (100, 300), outer: (dense, 100)}))[0].max_size == largest


def test_palus_groups_share_the_rows_of_one_factor(scanned: Any) -> None:
    shapes: Shapes = {f"{K}.VT.weight": (7, 8)}
    for i, rank in enumerate((3, 4)):
        shapes |= {f"{K}.U.{i}.weight": (5, rank), f"{K}.U.{i}.bias": (5,)}
    inventory = scanned(shapes)
    assert [dim.name for dim in inventory.dims] == [f"{K}:rank.0", f"{K}:rank.1"]
    assert [dim.places[0].start for dim in inventory.dims] == [0, 3]
    (module,) = inventory.modules
    assert (module.kind, module.out_features, module.in_features) == ("grouped", 10, 8)
    assert [gemm.bias for gemm in module.gemms] == [False, True, True]


def test_svdllm_names_of_opt(scanned: Any) -> None:
    layer = "model.decoder.layers.0"
    shapes: Shapes = {}
    for stem, (n_out, n_in) in {"self_attn.out": (8, 8), "fc1": (20, 8), "fc2": (8, 20)}.items():
        shapes[f"{layer}.{stem}_v_proj.weight"] = (3, n_in)
        shapes[f"{layer}.{stem}_u_proj.weight"] = (n_out, 3)
        shapes[f"{layer}.{stem}_u_proj.bias"] = (n_out,)
    inventory = scanned(shapes)
    names = {dim.name.removeprefix(f"{layer}.") for dim in ranks(inventory)}
    assert names == {"self_attn.out_proj:rank", "fc1:rank", "fc2:rank"}
    width = inventory.dim(f"{layer}:width")
    assert (width.size, width.params_per_unit) == (20, 3 + 1 + 3)


def test_users_patterns_go_before_everything(scanned: Any) -> None:
    shapes = {"enc.w.alpha": (5, 16), "enc.w.omega": (16, 5), "enc.b": (3, 3)}
    inventory = scanned(shapes, factors=("{module}.omega", "{module}.alpha"))
    assert [(dim.name, dim.size) for dim in inventory.dims] == [("enc.w:rank", 5)]
    with pytest.raises(CheckpointError, match="no pair"):
        scanned(shapes, factors=("{module}.x", "{module}.y"))


@pytest.mark.parametrize(
    "shapes",
    [
        {f"{Q}.BLinear.weight": (5, 16), f"{Q}.ALinear.weight": (16, 6)},
        {f"{Q}.VT.weight": (9, 8), f"{Q}.U.0.weight": (4, 3), f"{Q}.U.1.weight": (4, 4)},
        {
            f"{LAYER}.attn_shortcut_Q": (6, 6),
            f"{LAYER}.mlp_shortcut_Q": (6, 6),
            f"{Q}.weight": (8, 7),
        },
    ],
    ids=["asvd", "palu", "slicegpt"],
)
def test_factors_and_stretches_that_do_not_fit_are_refused(scanned: Any, shapes: Shapes) -> None:
    with pytest.raises(CheckpointError):
        scanned(shapes)


UNEVEN = gated(MLP, 20) | gated("model.layers.1.mlp", 13)


def test_widths_may_differ_by_layer(scanned: Any) -> None:
    inventory = scanned(UNEVEN, {"intermediate_size": 20})
    assert inventory.layout == "per-layer-widths"
    assert [(dim.size, dim.layer) for dim in inventory.dims] == [(20, 0), (13, 1)]
    assert len(inventory.warnings) == 1  # the config has one width for all


def test_gate_and_up_in_one_weight_are_two_places_of_one_dim(scanned: Any) -> None:
    """Phi-3 and GLM-4: the first half is gate, the second up."""
    fused = f"{MLP}.gate_up_proj.weight"
    width = scanned({fused: (40, 8), f"{MLP}.down_proj.weight": (8, 20)}).dim(f"{MLP}:width")
    assert width.size == 20
    assert width.places[:2] == (Place(fused, 0, 0), Place(fused, 0, 20))
    assert [feed.weight for feed in width.feeds].count(fused) == 2


def test_widths_that_disagree_are_no_dim(scanned: Any) -> None:
    assert scanned(gated(MLP, 20) | {f"{MLP}.down_proj.weight": (8, 19)}).dims == ()


@pytest.mark.parametrize("stranger", ["ffn_layernorm.weight", "scale", "fc1.lora_B.weight"])
@pytest.mark.parametrize("hidden", [24, 108])
def test_a_tensor_of_an_mlps_width_refuses_padding(
    scanned: Any, hidden: int, stranger: str
) -> None:
    """NormFormer's norm between fc1 and fc2, and any other; norms of the stream do not."""
    layer = "model.decoder.layers.0"
    shapes = {
        f"{layer}.fc1.weight": (108, hidden),
        f"{layer}.fc2.weight": (hidden, 108),
        f"{layer}.self_attn_layer_norm.weight": (hidden,),
        f"{layer}.self_attn.q_proj.weight": (hidden, hidden),
    }
    assert scanned(shapes).dim(f"{layer}:width").padding == "exact"
    width = scanned(shapes | {f"{layer}.{stranger}": (108,)}).dim(f"{layer}:width")
    assert width.padding == "refused" and stranger in width.why


@pytest.mark.parametrize("inputs_first", [True, False])
def test_gpt2_stores_its_weights_the_other_way_round_and_starcoder2_does_not(
    scanned: Any, inputs_first: bool
) -> None:
    up, down = ((8, 32), (32, 8)) if inputs_first else ((32, 8), (8, 32))
    shapes = {f"{MLP}.c_fc.weight": up, f"{MLP}.c_fc.bias": (32,), f"{MLP}.c_proj.weight": down}
    width = scanned(shapes).dim(f"{MLP}:width")
    assert width.size == 32
    assert {(place.tensor, place.axis) for place in width.places} == {
        (f"{MLP}.c_fc.weight", int(inputs_first)),
        (f"{MLP}.c_fc.bias", 0),
        (f"{MLP}.c_proj.weight", int(not inputs_first)),
    }


HEADS = {"hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("q", "kv", "config", "expected"),
    [
        (8, 4, HEADS, (4, 2, 2)),
        (24, 12, HEADS | {"head_dim": 6}, (4, 2, 6)),
        (6, 4, HEADS, (3, 2, 2)),  # a head was pruned
        (20, 10, HEADS | {"hidden_size": 7}, (4, 2, 5)),  # the hidden size was pruned
        (8, 4, {"text_config": HEADS}, (4, 2, 2)),
        (7, 7, HEADS, None),
    ],
)
def test_heads_come_from_shapes_first(
    scanned: Any, q: int, kv: int, config: dict[str, Any], expected: tuple[int, ...] | None
) -> None:
    inventory = scanned({f"{Q}.weight": (q, 8), f"{K}.weight": (kv, 8)}, config)
    assert inventory.attentions == ((AttentionHeads(0, *expected),) if expected else ())


@pytest.mark.parametrize(("rows", "kv_heads"), [(24, 4), (16, 2), (12, 1)])
def test_fused_q_k_v_tell_their_kv_heads_by_shape(scanned: Any, rows: int, kv_heads: int) -> None:
    """Falcon's config names 71 kv heads where its weights have one."""
    shapes = {"transformer.h.0.self_attention.query_key_value.weight": (rows, 8)}
    config = {"hidden_size": 8, "num_attention_heads": 4, "num_kv_heads": 4}
    assert scanned(shapes, config).attentions == (AttentionHeads(0, 4, kv_heads, 2),)


def test_each_expert_has_a_width(scanned: Any) -> None:
    shapes = gated(f"{MLP}.experts.0", 20) | gated(f"{MLP}.experts.1", 13)
    inventory = scanned(shapes | gated(f"{MLP}.shared_expert", 30))
    assert inventory.layout == "moe"
    assert {(dim.size, dim.role) for dim in inventory.dims} == {
        (20, "expert"),
        (13, "expert"),
        (30, "shared_expert"),
    }


@pytest.mark.parametrize("kind", ["llama4_text", "gpt_oss", "of nobody"])
def test_experts_in_one_tensor_share_a_width(scanned: Any, kind: str) -> None:
    """Llama 4 has gate and up one after the other, gpt-oss in turns; of others it is not known."""
    fused = f"{MLP}.experts.gate_up_proj"
    shapes = {fused: (4, 8, 24), f"{MLP}.experts.down_proj": (4, 12, 8)}
    inventory = scanned(shapes, {"model_type": kind, "intermediate_size": 12})
    (dim,) = inventory.dims
    places = [place for place in dim.places if place.tensor == fused]
    assert dim.size == 12
    if kind == "llama4_text":
        assert places == [Place(fused, 2, 0), Place(fused, 2, 12)]
    if kind == "gpt_oss":
        assert places == [Place(fused, 2, unit=Fraction(2))]
    assert (dim.padding == "refused") == (kind == "of nobody")


@pytest.mark.parametrize(
    ("shapes", "dtype"),
    [
        ({"qweight": (8, 48), "qzeros": (1, 6), "scales": (1, 48)}, "int4"),  # GPTQ
        ({"qweight": (64, 6), "qzeros": (1, 6), "scales": (1, 48)}, "int4"),  # AWQ
        ({"weight_packed": (48, 16)}, "int4"),  # compressed-tensors
    ],
)
def test_quantised_weights_have_their_true_sizes_and_stay(
    tmp_path: Path, shapes: Shapes, dtype: str
) -> None:
    parts = {f"{MLP}.up_proj.{name}": shape for name, shape in shapes.items()}
    parts |= {f"{MLP}.down_proj.weight": (64, 48)}
    path = write_safetensors(
        tmp_path / "model.safetensors",
        parts,
        qweight="int32",
        qzeros="int32",
        weight_packed="int32",
    )
    inventory = scan(path)
    (up,) = [module for module in inventory.modules if module.role == "up"]
    expected = (48, 128) if "weight_packed" in shapes else (48, 64)
    assert (up.out_features, up.in_features, up.dtype) == (*expected, dtype)
    assert inventory.is_quantised and not any(dim.adjustable for dim in inventory.dims)


def test_a_tied_head_is_a_product_of_the_embedding(scanned: Any) -> None:
    shapes = {"model.embed_tokens.weight": (50, 8)}
    inventory = scanned(shapes, {"tie_word_embeddings": True})
    (head,) = [module for module in inventory.modules if module.role == "head"]
    assert [(g.weight, g.N, g.K) for g in head.gemms] == [("model.embed_tokens.weight", 50, 8)]
    untied = scanned(shapes, {"tie_word_embeddings": False})
    assert [module.role for module in untied.modules] == ["embedding"]


def test_modules_come_in_the_order_of_the_model(scanned: Any) -> None:
    shapes: Shapes = {"lm_head.weight": (50, 8)}
    for i in (10, 9, 2):
        shapes |= gated(f"model.layers.{i}.mlp", 20)
    inventory = scanned(shapes | {"model.embed_tokens.weight": (50, 8)})
    layers = [(i, role) for i in (2, 9, 10) for role in ("gate", "up", "down")]
    modules = [(module.layer, module.role) for module in inventory.modules]
    assert modules == [(None, "embedding"), *layers, (None, "head")]


def test_what_names_mean_is_asked_once_a_template(tmp_path: Path) -> None:
    """A mixture of 500 weights has the seven questions of one of fourteen."""
    questions = set()
    for layers, experts in ((2, 2), (20, 8)):
        shapes: Shapes = {}
        for layer in range(layers):
            block = f"model.layers.{layer}"
            shapes |= {f"{block}.self_attn.{x}_proj.weight": (32, 32) for x in "qkvo"}
            for expert in range(experts):
                module = f"{block}.mlp.experts.{expert}"
                shapes |= gated(module, 48, 32)
        role_of_template.cache_clear()
        inventory = scan(checkpoint(tmp_path / str(layers), shapes))
        assert len(inventory.dims) == layers * experts
        questions.add((len(inventory.by_template), role_of_template.cache_info().misses))
    assert questions == {(7, 7)}
