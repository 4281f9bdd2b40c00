"""Quantised weights in the names and shapes that their libraries write."""

from functools import partial

import pytest
from checkpoint_making import checkpoint
from test_layouts import MLP, Q, found

from gacprof.checkpoint import scan
from gacprof.core.dtypes import choose_dtype
from gacprof.resizing import realign

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "vocab_size": 50,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1,
}  # fmt: skip
SIDES = {
    Q: (64, 64),
    Q.replace("q_proj", "k_proj"): (32, 64),
    Q.replace("q_proj", "o_proj"): (64, 64),
    f"{MLP}.gate_proj": (96, 64),
    f"{MLP}.up_proj": (96, 64),
    f"{MLP}.down_proj": (64, 96),
}


def packed(bits, inputs, n, k):
    """GPTQ packs along the inputs, AWQ along the outputs."""
    words = (k * bits // 32, n) if inputs else (k, n * bits // 32)
    zeros = (k // 32, n * bits // 32)
    return {"qweight": ("int32", words), "qzeros": ("int32", zeros), "scales": (k // 32, n)}


def bitsandbytes8(n, k):
    return {"weight": ("int8", (n, k)), "SCB": ("float32", (n,)), "weight_format": ("uint8", ())}


def bitsandbytes4(n, k):
    return {
        "weight": ("uint8", (n * k // 2, 1)), "weight.absmax": ("uint8", (n * k // 64,)),
        "weight.quant_map": ("float32", (16,)), "weight.nested_absmax": ("float32", (1,)),
        "weight.quant_state.bitsandbytes__nf4": ("uint8", (90,)),
    }  # fmt: skip


def hqq4(n, k):
    groups = n * k // 64
    return {"W_q": ("uint8", (groups // 2, 64)), "scale": (groups, 1), "zero": (groups, 1)}


KINDS = {
    **{f"GPTQ int{bits}": partial(packed, bits, True) for bits in (2, 3, 4, 8)},
    **{f"AWQ int{bits}": partial(packed, bits, False) for bits in (2, 3, 4, 8)},
    "int8": lambda n, k: {"weight": ("int8", (n, k)), "weight_scale": (n, 1)},
    "bitsandbytes int8": bitsandbytes8,
    "bitsandbytes nf4": bitsandbytes4,
    "compressed-tensors int4": lambda n, k: {
        "weight_packed": ("int32", (n, k // 8)), "weight_scale": (n, k // 32),
        "weight_shape": ("int64", (2,)),
    },
    "compressed-tensors fp4": lambda n, k: {
        "weight_packed": ("uint8", (n, k // 2)), "weight_scale": ("float8_e4m3fn", (n, k // 16)),
        "weight_global_scale": ("float32", (1,)),
    },
    "HQQ int4": hqq4,
    "Quanto int8": lambda n, k: {
        "weight._data": ("int8", (n, k)), "weight._scale": (n, 1), "input_scale": (),
    },
    "Quanto int4": lambda n, k: {
        "weight._data._data": ("uint8", (n * k // 256, 128)),
        "weight._scale": (1, n * k // 128), "weight._shift": (1, n * k // 128),
    },
}  # fmt: skip
"""What each stores of a weight [n, k], by name."""


def stored(kind, sides):
    return {
        f"{module}.{name}": shape
        for module, (n, k) in sides.items() for name, shape in kind(n, k).items()
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_true_sizes_are_given_and_nothing_is_to_realign(kind):
    name, findings = found({"lm_head.weight": (50, 64)} | stored(KINDS[kind], SIDES), CONFIG)
    assert name == "quantised"
    sizes = {m.name: (m.gemms[0].N, m.gemms[0].K) for m in findings.modules}
    assert sizes == SIDES | {"lm_head": (50, 64)}
    assert {m.dtype for m in findings.modules if m.name in SIDES} == {kind.split()[-1]}
    (width,) = findings.dims
    assert (width.size, width.padding) == (96, "refused")
    said = " ".join(findings.notes)
    assert f"6 weights are quantised ({kind})" in said and "nothing to realign" in said
    assert "not understood" not in said


def test_experts_in_mxfp4():
    """gpt-oss: 32 values in 16 bytes, all experts of a layer in one tensor."""
    experts = f"{MLP}.experts"
    shapes = {
        f"{experts}.gate_up_proj_blocks": ("uint8", (4, 192, 2, 16)),
        f"{experts}.gate_up_proj_scales": ("uint8", (4, 192, 2)),
        f"{experts}.gate_up_proj_bias": ("bfloat16", (4, 192)),
        f"{experts}.down_proj_blocks": ("uint8", (4, 64, 3, 16)),
        f"{experts}.down_proj_scales": ("uint8", (4, 64, 3)),
    }
    name, findings = found(shapes, CONFIG)
    assert name == "quantised" and "MXFP4" in findings.notes[0]
    assert {m.role: (m.gemms[0].N, m.gemms[0].K) for m in findings.modules} == {
        "expert_gate_up": (192, 64),
        "expert_down": (64, 96),
    }


def test_flat_weights_without_a_config_are_told_and_given_no_sizes():
    up = stored(hqq4, {f"{MLP}.up_proj": (96, 64)})
    name, findings = found(stored(bitsandbytes4, {Q: (64, 64)}) | up)
    assert name == "quantised" and findings.modules == ()
    assert "not understood" in " ".join(findings.notes)


@pytest.mark.parametrize("scales", ["weight_scale", "weight_scale_inv"])
def test_float8_weights_have_nothing_to_realign(scales):
    shapes = {}
    for module, sides in SIDES.items():
        shapes[f"{module}.weight"] = ("float8_e4m3fn", sides)
        shapes[f"{module}.{scales}"] = ("float32", (sides[0], 1))
    _, findings = found(shapes, CONFIG)
    assert "nothing to realign" in findings.notes[-1]
    assert {dim.padding for dim in findings.dims} == {"refused"}


def test_a_copy_is_all_that_realigning_makes(tmp_path):
    shapes = stored(bitsandbytes8, {module: (n + 1, k) for module, (n, k) in SIDES.items()})
    source = checkpoint(tmp_path / "source", shapes, CONFIG)
    result = realign(source, "minimal", tmp_path / "out")
    assert result.resized == () and scan(tmp_path / "out").fingerprint == scan(source).fingerprint


def test_no_sweep_is_offered_in_a_type_that_only_stores():
    assert "--dtype bfloat16" in choose_dtype(None, "bfloat16", ["float16"], "a map")[1]
    assert "--dtype" not in choose_dtype(None, "nf4", ["float16"], "a map")[1]
