"""Quantised weights in the names and shapes that their libraries write."""

from __future__ import annotations

from functools import partial
from typing import Any

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


def int8(module: str, n_out: int, n_in: int) -> dict[str, Any]:
    return {f"{module}.weight": ("int8", (n_out, n_in)), f"{module}.weight_scale": (n_out, 1)}


def bitsandbytes8(module: str, n_out: int, n_in: int) -> dict[str, Any]:
    return {
        f"{module}.weight": ("int8", (n_out, n_in)),
        f"{module}.SCB": ("float32", (n_out,)),
        f"{module}.weight_format": ("uint8", ()),
    }


def bitsandbytes4(module: str, n_out: int, n_in: int) -> dict[str, Any]:
    return {
        f"{module}.weight": ("uint8", (n_out * n_in // 2, 1)),
        f"{module}.weight.absmax": ("uint8", (n_out * n_in // 64,)),
        f"{module}.weight.quant_map": ("float32", (16,)),
        f"{module}.weight.nested_absmax": ("float32", (1,)),
        f"{module}.weight.quant_state.bitsandbytes__nf4": ("uint8", (90,)),
    }


def compressed4(module: str, n_out: int, n_in: int) -> dict[str, Any]:
    return {
        f"{module}.weight_packed": ("int32", (n_out, n_in // 8)),
        f"{module}.weight_scale": (n_out, n_in // 32),
        f"{module}.weight_shape": ("int64", (2,)),
    }


def nvfp4(module: str, n_out: int, n_in: int) -> dict[str, Any]:
    return {
        f"{module}.weight_packed": ("uint8", (n_out, n_in // 2)),
        f"{module}.weight_scale": ("float8_e4m3fn", (n_out, n_in // 16)),
        f"{module}.weight_global_scale": ("float32", (1,)),
    }


def hqq4(module: str, n_out: int, n_in: int) -> dict[str, Any]:
    return {
        f"{module}.W_q": ("uint8", (n_out * n_in // 64 // 2, 64)),
        f"{module}.scale": (n_out * n_in // 64, 1),
        f"{module}.zero": (n_out * n_in // 64, 1),
    }


def quanto8(module: str, n_out: int, n_in: int) -> dict[str, Any]:
    return {
        f"{module}.weight._data": ("int8", (n_out, n_in)),
        f"{module}.weight._scale": (n_out, 1),
        f"{module}.input_scale": (),
    }


def quanto4(module: str, n_out: int, n_in: int) -> dict[str, Any]:
    return {
        f"{module}.weight._data._data": ("uint8", (n_out * n_in // 256, 128)),
        f"{module}.weight._scale": (1, n_out * n_in // 128),
        f"{module}.weight._shift": (1, n_out * n_in // 128),
    }


def packed(bits: int, inputs: bool, module: str, n_out: int, n_in: int) -> dict[str, Any]:
    """GPTQ packs along the inputs, AWQ along the outputs."""
    gptq, awq = (n_in * bits // 32, n_out), (n_in, n_out * bits // 32)
    return {
        f"{module}.qweight": ("int32", gptq if inputs else awq),
        f"{module}.qzeros": ("int32", (n_in // 32, n_out * bits // 32)),
        f"{module}.scales": (n_in // 32, n_out),
    }


KINDS = {
    **{f"GPTQ int{bits}": partial(packed, bits, True) for bits in (2, 3, 4, 8)},
    **{f"AWQ int{bits}": partial(packed, bits, False) for bits in (2, 3, 4, 8)},
    "int8": int8,
    "bitsandbytes int8": bitsandbytes8,
    "bitsandbytes nf4": bitsandbytes4,
    "compressed-tensors int4": compressed4,
    "compressed-tensors fp4": nvfp4,
    "HQQ int4": hqq4,
    "Quanto int8": quanto8,
    "Quanto int4": quanto4,
}


@pytest.mark.parametrize("kind", KINDS)
def test_true_sizes_are_given_and_nothing_is_to_realign(kind: str) -> None:
    shapes: dict[str, Any] = {"lm_head.weight": (50, 64)}
    for module, sides in SIDES.items():
        shapes |= KINDS[kind](module, *sides)
    name, findings = found(shapes, CONFIG)
    assert name == "quantised"
    sizes = {m.name: (m.gemms[0].N, m.gemms[0].K) for m in findings.modules}
    assert sizes == SIDES | {"lm_head": (50, 64)}
    assert {m.dtype for m in findings.modules if m.name in SIDES} == {kind.split()[-1]}
    (width,) = findings.dims
    assert (width.size, width.padding) == (96, "refused")
    said = " ".join(findings.notes)
    assert f"6 weights are quantised ({kind})" in said and "nothing to realign" in said
    assert "not understood" not in said


def test_experts_in_mxfp4() -> None:
    """gpt-oss: 32 values in 16 bytes, all experts of a layer in one tensor."""
    experts = f"{MLP}.experts"
    shapes: dict[str, Any] = {
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


def test_flat_weights_without_a_config_are_told_and_given_no_sizes() -> None:
    name, findings = found(bitsandbytes4(Q, 64, 64) | hqq4(f"{MLP}.up_proj", 96, 64))
    assert name == "quantised" and findings.modules == ()
    assert "not understood" in " ".join(findings.notes)


@pytest.mark.parametrize("scales", ["weight_scale", "weight_scale_inv"])
def test_float8_weights_have_nothing_to_realign(scales: str) -> None:
    shapes: dict[str, Any] = {}
    for module, sides in SIDES.items():
        shapes[f"{module}.weight"] = ("float8_e4m3fn", sides)
        shapes[f"{module}.{scales}"] = ("float32", (sides[0], 1))
    _, findings = found(shapes, CONFIG)
    assert "nothing to realign" in findings.notes[-1]
    assert {dim.padding for dim in findings.dims} == {"refused"}


def test_a_copy_is_all_that_realigning_makes(tmp_path: Any) -> None:
    shapes: dict[str, Any] = {}
    for module, (n_out, n_in) in SIDES.items():
        shapes |= bitsandbytes8(module, n_out + 1, n_in)
    source = checkpoint(tmp_path / "source", shapes, CONFIG)
    result = realign(source, "minimal", tmp_path / "out")
    assert result.resized == () and scan(tmp_path / "out").fingerprint == scan(source).fingerprint


def test_no_sweep_is_offered_in_a_type_that_only_stores() -> None:
    assert "--dtype bfloat16" in choose_dtype(None, "bfloat16", ["float16"], "a map")[1]
    assert "--dtype" not in choose_dtype(None, "nf4", ["float16"], "a map")[1]
