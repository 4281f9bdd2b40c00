"""What is read of a config, and what is refused in one line."""

import json

import pytest
from checkpoint_making import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from gacprof.core.errors import GacprofError, LintError
from gacprof.demands.configs import config_of
from gacprof.demands.model import products
from gacprof.demands.products import Ranks
from gacprof.demands.quantisation import of_config, scheme
from gacprof.linting import lint


def test_what_a_partial_config_leaves_out_is_named():
    found = lint({"model_type": "llama", "intermediate_size": 14336}, tp=2)
    rows = {row.name: row for row in found.products}
    assert rows["qkv"].outcome == "unknown"
    assert {"hidden_size", "num_attention_heads"} <= set(rows["qkv"].missing)
    assert rows["down"].local == {"N": None, "K": 7168}
    assert "hidden_size" in found.notes[-1]


def test_an_unknown_family_is_judged_by_field_names_and_said(qwen):
    found = lint(qwen | {"model_type": "brand_new"}, tp=8, quant="fp8-block", gpu="h100")
    assert "brand_new" in found.notes[0]
    assert found.outcome == "falls_back"


def test_factor_pairs_are_not_judged_by_the_sizes_of_their_config(fixtures):
    folder = fixtures / "checkpoints" / "asvd_mha_r1"
    with pytest.raises(LintError, match="weights are factor pairs"):
        lint(folder)
    assert lint(folder / "config.json").outcome == "ok"


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("hidden_size", "4096", "'4096'"), ("hidden_size", 10**30, "more than 20 digits"),
        ("hidden_size", -1, "-1"), ("hidden_size", 4096.5, "4096.5"), ("vocab_size", True, "True"),
        ("num_hidden_layers", 10**9, "num_hidden_layers"), ("num_attention_heads", {}, "{}"),
    ],
)  # fmt: skip
def test_what_is_no_size_is_refused_by_name(llama, key, value, named):
    with pytest.raises(LintError, match=key) as refused:
        lint(llama | {key: value})
    assert named in str(refused.value)


@pytest.mark.parametrize(
    "text", ["", "[1]", "{", '{"a": 1, "a": 2}', "[" * 100_000, '{"hidden_size": 1e999}', "\x00"]
)
def test_what_is_no_config_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(GacprofError) as refused:
        lint(path)
    assert "\n" not in str(refused.value)


def test_what_is_not_there_is_said(tmp_path):
    for source in (tmp_path / "none.json", tmp_path):
        with pytest.raises(GacprofError, match=tmp_path.name):
            lint(source)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 1 << 33), st.text(max_size=5), st.floats(),
    st.lists(st.integers(0, 9), max_size=3), st.dictionaries(st.text(max_size=3), st.integers()),
)  # fmt: skip
KEYS = st.sampled_from(
    [
        "model_type", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
        "intermediate_size", "moe_intermediate_size", "num_experts", "n_shared_experts",
        "kv_lora_rank", "q_lora_rank", "vocab_size", "num_hidden_layers", "layer_types",
        "mamba_num_heads", "n_groups", "quantization_config", "vision_config", "text_config",
        "hybrid_override_pattern", "linear_num_key_heads", "lora", "mlp_only_layers",
    ]
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(KEYS, VALUES, min_size=1),
    st.integers(1, 64),
    st.sampled_from(["bf16", "fp8-block", "nvfp4", "awq", "q4_k"]),
)
def test_any_config_is_judged_or_refused(config, tp, quant):
    try:
        found = lint(config, tp=tp, quant=quant, gpu="h100", engine="vllm")
    except GacprofError:
        return
    assert json.dumps(found.as_dict(), allow_nan=False)


@settings(max_examples=100, deadline=None)
@given(*(st.integers(1, most) for most in (64, 64, 64, 32, 16)))
def test_all_ranks_together_hold_what_the_model_has(hidden, heads, width, kv, tp):
    """But keys and values, which are repeated."""
    config = config_of(
        {
            "model_type": "llama", "hidden_size": hidden * 64, "num_attention_heads": heads,
            "head_dim": 64, "num_key_value_heads": kv, "intermediate_size": width * 16,
        }
    )  # fmt: skip
    for one in products(config, Ranks(tp=tp, experts=tp, shared=tp)):
        for size in (one.n, one.k):
            if size.value is not None and size.whole is not None and one.kind == "dense":
                assert size.value * size.parts == size.whole
        if one.name == "qkv":
            local = dict(one.shards)["k"].value
            expected = max(kv // tp, 1) * 64 if kv % tp == 0 or tp % kv == 0 else None
            assert local == expected


def test_headers_say_what_a_config_leaves_out_and_widths_of_each_layer(tmp_path):
    shapes = {"model.embed_tokens.weight": (512, 256)}
    for layer, width in enumerate((640, 700, 640)):
        shapes[f"model.layers.{layer}.mlp.down_proj.weight"] = (256, width)
    folder = checkpoint(tmp_path, shapes, {"model_type": "llama", "intermediate_size": 1024})
    found = lint(folder, tp=4, quant="fp8-block", gpu="h100")
    rows = {row.name: row for row in found.products}
    assert rows["down (640)"].outcome == "refused"
    assert rows["down (640)"].local == {"N": 256, "K": 160}
    assert rows["down (640)"].layers == 2
    assert rows["down (700)"].layers == 1
    assert rows["embedding"].local == {"N": 128, "K": 256}


def test_headers_that_cannot_be_read_are_left_aside_and_said(tmp_path, llama):
    folder = checkpoint(tmp_path, {"model.embed_tokens.weight": (512, 256)}, llama)
    (folder / "model.safetensors").write_bytes(b"no header")
    found = lint(folder)
    assert found.outcome == "ok" and "headers are not used" in found.notes[0]


SPELLINGS = [
    ("none", "none", None), ("fp8-block", "fp8_block", None),
    ("fp8_block_128x128", "fp8_block", None),
    ("awq_int4_g128", "awq", 128), ("awq", "awq", 128), ("gptq-g32", "gptq", 32),
    ("ct_w4a16_g32", "int4", 32), ("ct_int4_w4a16_channel", "int4", -1),
    ("ct_int8_w8a16_channel", "int8_w8a16", -1), ("gguf_mxfp4_moe", "gguf", None),
    ("Q4_K_M", "gguf", None), ("iq4_xs", "gguf", None), ("compressed-tensors", "unknown", None),
]  # fmt: skip


def test_a_quantisation_is_known_by_any_spelling():
    for name, kind, group in SPELLINGS:
        assert (scheme(name).kind, scheme(name).group) == (kind, group), name


CT_WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
CT = {"quant_method": "compressed-tensors"}


@pytest.mark.parametrize(
    ("message", "kind", "group"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block", None),
        ({"quant_method": "fp8"}, "fp8_tensor", None),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, "awq", 64),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "int8_w8a16", 128),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", None),
        ({"quant_method": "mxfp4"}, "mxfp4", None),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bnb", None),
        (CT | {"config_groups": {"g": {"weights": CT_WEIGHTS}}}, "int4", 32),
        (CT | {"config_groups": {"g": {"weights": FP8, "input_activations": {}}}},
         "fp8_channel", None),
        (CT | {"config_groups": {"g": {"weights": FP8}}}, "unknown", None),  # products in 16 bits
        (CT, "unknown", None),
        ({"quant_method": "hqq"}, "unknown", None),
    ],
)  # fmt: skip
def test_the_configs_own_quantisation_is_read(message, kind, group):
    found = of_config({"quantization_config": message})
    assert (found.kind, found.group) == (kind, group)


def test_an_unknown_quantisation_is_judged_unknown_not_ok(llama):
    found = lint(llama | {"quantization_config": {"quant_method": "hqq"}})
    assert found.outcome == "unknown"
    assert "hqq" in next(row.why for row in found.products if row.name == "down")


@pytest.mark.parametrize(
    "ignored",
    [
        ["re:.*down_proj"], ["*mlp.down_proj*"], ["down_proj"], ["mlp"],
        [f"model.layers.{n}.mlp.down_proj" for n in range(32)],
        [f"language_model.model.layers.{n}.mlp" for n in range(32)],
    ],
)  # fmt: skip
def test_ignored_modules_are_judged_as_bf16(llama, ignored):
    message = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = llama | {"intermediate_size": 11008, "quantization_config": message}

    def down(one):
        return next(row for row in lint(one, tp=4, gpu="h100").products if row.name == "down")

    assert down(config).outcome == "refused"
    message["modules_to_not_convert"] = ignored
    assert (down(config).outcome, down(config).quant) == ("ok", "none")
    message["modules_to_not_convert"] = ["model.layers.0.mlp.down_proj", "lm_head", "mlp.gate"]
    assert down(config).outcome == "refused"


def test_a_pattern_that_would_run_for_ever_matches_nothing(llama):
    message = {"quant_method": "fp8", "ignore": ["re:(.*.*)+x", "re:" + ".*" * 50 + "x"]}
    assert lint(llama | {"quantization_config": message}, gpu="h100").outcome == "ok"


@pytest.mark.parametrize(
    "layers",
    [
        {"block_configs": [{"ffn": {"intermediate_size": 1440}}, {"ffn": {"ffn_mult": 2.625}},
                           {"ffn": {"no_op": True}}, {"ffn": {"intermediate_size": 1440}}]},
        {"per_layer_config": {"1": {"intermediate_size": 1792}}, "num_hidden_layers": 3,
         "intermediate_size": 1440},
    ],
)  # fmt: skip
def test_widths_of_each_layer_in_a_config_are_judged_each(layers):
    """2 · 2.625 · 1024 / 3 is 1792, seven times 256."""
    config = {"model_type": "nemotron-nas", "hidden_size": 1024, "num_attention_heads": 16}
    found = lint(config | layers, tp=4, gpu="h100", quant="fp8_per_channel")
    rows = {row.name: (row.outcome, row.local["K"], row.layers) for row in found.products}
    assert rows["down (1440)"] == ("pads", 360, 2)
    assert rows["down (1792)"] == ("ok", 448, 1)
    assert "down" not in rows
