"""Quantised widths by their headers alone: what grows, by how much, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tool_checkpoints import Shapes, write_safetensors

from gacprof.checkpoint.config import files_with_groups
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import scan
from gacprof.core.errors import CheckpointError
from gacprof.core.files import write_json
from gacprof.realigning.changes import new_checkpoint, split_groups

HIDDEN, GROUP, BLOCK = 128, 64, 128
MLP = "model.layers.0.mlp"
DTYPES = {
    **dict.fromkeys(("qweight", "qzeros", "g_idx", "weight_zero_point"), "int32"),
    **dict.fromkeys(("weight_packed", "blocks"), "uint8"),
    **dict.fromkeys(("weight_scale_inv", "weight_global_scale"), "float32"),
    "weight_shape": "int64",
}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def compressed(layout: str, inputs: Mapping[str, Any] | None = None, **weights: Any) -> Any:
    """A config of compressed-tensors' with one group of linear layers."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


INT4 = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": GROUP, "symmetric": True}
INT8_INPUTS = {"type": "int", "num_bits": 8, "strategy": "token", "symmetric": True}
FP4 = {"type": "float", "num_bits": 4, "symmetric": True}


def up(n: int, unit: int) -> int:
    return -(-n // unit)


FORMATS: dict[str, tuple[Any, Callable[[int, int], Shapes], Mapping[str, str]]] = {
    "gptq": (
        GPTQ,
        lambda n, k: {
            "qweight": (k // 8, n),
            "qzeros": (up(k, GROUP), n // 8),
            "scales": (up(k, GROUP), n),
            "g_idx": (k,),
        },
        {},
    ),
    "gptq, 8 bit, a scale for each output": (
        GPTQ | {"bits": 8, "group_size": -1},
        lambda n, k: {"qweight": (k // 4, n), "qzeros": (1, n // 4), "scales": (1, n)},
        {},
    ),
    "awq": (
        AWQ,
        lambda n, k: {
            "qweight": (k, n // 8),
            "qzeros": (k // GROUP, n // 8),
            "scales": (k // GROUP, n),
        },
        {},
    ),
    "int4": (
        compressed("pack-quantized", **INT4),
        lambda n, k: {
            "weight_packed": (n, k // 8),
            "weight_scale": (n, k // GROUP),
            "weight_shape": (2,),
        },
        {"weight_packed": "int32"},
    ),
    "int4 with zero points": (
        compressed("pack-quantized", **{**INT4, "symmetric": False}),
        lambda n, k: {
            "weight_packed": (n, k // 8),
            "weight_scale": (n, k // GROUP),
            "weight_zero_point": (n // 8, k // GROUP),
            "weight_shape": (2,),
        },
        {"weight_packed": "int32"},
    ),
    "int8": (
        compressed("int-quantized", INT8_INPUTS, type="int", num_bits=8, strategy="channel"),
        lambda n, k: {"weight": (n, k), "weight_scale": (n, 1)},
        {"weight": "int8"},
    ),
    "fp8, one scale": (
        FP8,
        lambda n, k: {"weight": (n, k), "weight_scale": (1,), "input_scale": (1,)},
        {"weight": "float8_e4m3fn"},
    ),
    "fp8 blocks": (
        FP8 | {"weight_block_size": [BLOCK, BLOCK]},
        lambda n, k: {"weight": (n, k), "weight_scale_inv": (up(n, BLOCK), up(k, BLOCK))},
        {"weight": "float8_e4m3fn"},
    ),
    "nvfp4": (
        compressed("nvfp4-pack-quantized", **FP4, strategy="tensor_group", group_size=16),
        lambda n, k: {
            "weight_packed": (n, k // 2),
            "weight_scale": (n, k // 16),
            "weight_global_scale": (1,),
        },
        {"weight_scale": "float8_e4m3fn"},
    ),
    "nvfp4 of ModelOpt": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": None},
        lambda n, k: {
            "weight": (n, k // 2),
            "weight_scale": (n, k // 16),
            "weight_scale_2": (),
            "input_scale": (),
        },
        {"weight": "uint8", "weight_scale": "float8_e4m3fn"},
    ),
    "mxfp4": (
        compressed("mxfp4-pack-quantized", **FP4, strategy="group", group_size=32),
        lambda n, k: {"weight_packed": (n, k // 2), "weight_scale": (n, k // 32)},
        {"weight_scale": "uint8"},
    ),
}
"""By name: a quantization_config, the shapes of the tensors of a layer of N outputs and K inputs,
and their types."""


def mlp_shapes(tensors: Callable[[int, int], Shapes], width: int) -> Shapes:
    shapes: dict[str, tuple[int, ...]] = {}
    sides = {"gate_proj": (width, HIDDEN), "up_proj": (width, HIDDEN), "down_proj": (HIDDEN, width)}
    for part, (n, k) in sides.items():
        for ending, shape in tensors(n, k).items():
            shapes[f"{MLP}.{part}.{ending}"] = shape
    return shapes


def scanned(
    folder: Path, shapes: Shapes, quantisation: Any, types: Mapping[str, str], width: int
) -> Inventory:
    write_safetensors(folder / "model.safetensors", shapes, **{**DTYPES, **types})
    config = {"model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": width}
    write_json(folder / "config.json", config | {"quantization_config": quantisation})
    return scan(folder)


@pytest.mark.parametrize("name", FORMATS)
def test_a_grown_width_has_the_tensors_of_a_model_that_was_so_wide(
    tmp_path: Path, name: str
) -> None:
    quantisation, tensors, types = FORMATS[name]
    inventory = scanned(tmp_path, mlp_shapes(tensors, 320), quantisation, types, 320)
    (dim,) = inventory.dims
    assert (dim.size, dim.why) == (320, "")
    for width in (384, 448, 1024):
        new = new_checkpoint(inventory, {dim.name: width})
        shapes = {tensor.name: new.shape(tensor) for tensor in new.tensors}
        assert shapes == mlp_shapes(tensors, width)


@pytest.mark.parametrize(("name", "step"), [("gptq", 64), ("int4", 64), ("nvfp4", 16)])
def test_a_width_grows_in_whole_groups_and_is_never_cut(
    tmp_path: Path, name: str, step: int
) -> None:
    quantisation, tensors, types = FORMATS[name]
    inventory = scanned(tmp_path, mlp_shapes(tensors, 320), quantisation, types, 320)
    (dim,) = inventory.dims
    allowed = [size for size in range(320 - 2 * step, 513) if not dim.refusal(size)]
    assert allowed == list(range(320, 513, step))
    assert dim.step_on(4) == 4 * step


def test_zeros_within_a_block_need_no_scale(tmp_path: Path) -> None:
    quantisation, tensors, types = FORMATS["fp8 blocks"]
    inventory = scanned(tmp_path, mlp_shapes(tensors, 300), quantisation, types, 300)
    (dim,) = inventory.dims
    assert not dim.refusal(301)
    assert dim.step_on(2) == 2 * BLOCK


def test_a_short_group_is_filled_up_where_its_zero_is_known(tmp_path: Path) -> None:
    _, tensors, types = FORMATS["gptq"]
    shapes = mlp_shapes(tensors, 288)  # 4.5 groups
    for is_symmetric in (True, False):
        folder = tmp_path / str(is_symmetric)
        inventory = scanned(folder, shapes, GPTQ | {"sym": is_symmetric}, types, 288)
        assert (inventory.dims[0].refusal(320) == "") == is_symmetric


@pytest.mark.parametrize(
    ("quantisation", "change"),
    [
        (GPTQ | {"group_size": 32}, {}),
        (GPTQ | {"group_size": -1}, {}),
        (GPTQ | {"bits": 3}, {}),
        (GPTQ | {"checkpoint_format": "marlin"}, {}),
        (GPTQ | {"checkpoint_format": "gptq", "format": "gptq_v2"}, {}),
        (GPTQ | {"dynamic": {"+:.*down.*": {"bits": 8}}}, {}),
        ({"quant_method": "hqq"}, {}),
        (None, {}),
        (GPTQ, {f"{MLP}.down_proj.input_permutation": (320,)}),
        (GPTQ, {f"{MLP}.act.scales": (320,)}),
        (GPTQ, {f"{MLP}.down_proj.scales": (4, HIDDEN)}),
    ],
)
def test_what_is_not_known_of_a_format_keeps_a_width_as_it_is(
    tmp_path: Path, quantisation: Any, change: Shapes
) -> None:
    _, tensors, types = FORMATS["gptq"]
    shapes = {**mlp_shapes(tensors, 320), **change}
    (dim,) = scanned(tmp_path, shapes, quantisation, types, 320).dims
    assert dim.refusal(384)


@pytest.mark.parametrize(
    ("name", "width", "may_grow"), [("gptq", 320, True), ("fp8 blocks", 320, False)]
)
def test_gate_and_up_in_one_tensor_grow_where_each_has_entries_of_its_own(
    tmp_path: Path, name: str, width: int, may_grow: bool
) -> None:
    quantisation, tensors, types = FORMATS[name]
    shapes = {}
    for part, (n, k) in {"gate_up_proj": (2 * width, HIDDEN), "down_proj": (HIDDEN, width)}.items():
        for ending, shape in tensors(n, k).items():
            shapes[f"{MLP}.{part}.{ending}"] = shape
    (dim,) = scanned(tmp_path, shapes, quantisation, types, width).dims
    assert (dim.refusal(448) == "") == may_grow


def test_each_layer_has_the_format_of_its_group(tmp_path: Path) -> None:
    int4, tensors, types = FORMATS["int4"]
    int8 = FORMATS["int8"][0]["config_groups"]["group_0"] | {"format": "int-quantized"}
    packed = int4["config_groups"]["group_0"] | {"format": "pack-quantized"}
    groups = {"group_0": int8 | {"targets": ["re:.*attn.*"]}, "group_1": packed}
    mixed = int4 | {"format": "mixed-precision", "config_groups": groups}
    inventory = scanned(tmp_path, mlp_shapes(tensors, 320), mixed, types, 320)
    (dim,) = inventory.dims
    assert (dim.why, dim.step) == ("", GROUP)
    assert inventory.groups is None or inventory.groups.refusal(32)


def test_a_layer_that_fits_two_formats_stays_as_it_is(tmp_path: Path) -> None:
    """8 words of 4 bits in 2 groups of 32, or of 8 bits in 2 groups of 16."""
    int4, tensors, types = FORMATS["int4"]
    packed = int4["config_groups"]["group_0"] | {"format": "pack-quantized"}
    wide = packed | {"weights": INT4 | {"num_bits": 8, "group_size": GROUP // 2}}
    groups = {"group_0": packed, "group_1": wide | {"targets": ["re:.*attn.*"]}}
    mixed = int4 | {"format": "mixed-precision", "config_groups": groups}
    (dim,) = scanned(tmp_path, mlp_shapes(tensors, 320), mixed, types, 320).dims
    assert dim.refusal(384)


def test_experts_of_gpt_oss_grow_in_blocks_of_32(tmp_path: Path) -> None:
    def shapes(width: int) -> Shapes:
        experts = f"{MLP}.experts"
        return {
            f"{experts}.gate_up_proj_blocks": (4, 2 * width, HIDDEN // 32, 16),
            f"{experts}.gate_up_proj_scales": (4, 2 * width, HIDDEN // 32),
            f"{experts}.gate_up_proj_bias": (4, 2 * width),
            f"{experts}.down_proj_blocks": (4, HIDDEN, width // 32, 16),
            f"{experts}.down_proj_scales": (4, HIDDEN, width // 32),
            f"{experts}.down_proj_bias": (4, HIDDEN),
        }

    types = {name.rpartition(".")[2]: "uint8" for name in shapes(96) if not name.endswith("bias")}
    inventory = scanned(tmp_path, shapes(96), {"quant_method": "mxfp4"}, types, 96)
    (dim,) = inventory.dims
    assert dim.size == 96 and dim.refusal(112)
    new = new_checkpoint(inventory, {dim.name: 128})
    assert {tensor.name: new.shape(tensor) for tensor in new.tensors} == shapes(128)


def test_groups_are_split_into_equal_parts(tmp_path: Path) -> None:
    quantisation, tensors, types = FORMATS["awq"]
    inventory = scanned(tmp_path, mlp_shapes(tensors, 320), quantisation, types, 320)
    new = split_groups(inventory, 16)
    shapes = {tensor.name: new.shape(tensor) for tensor in new.tensors}
    assert shapes[f"{MLP}.down_proj.scales"] == (20, HIDDEN)
    assert shapes[f"{MLP}.gate_proj.qzeros"] == (8, 40)
    assert shapes[f"{MLP}.down_proj.qweight"] == (320, 16)
    with pytest.raises(CheckpointError):
        split_groups(inventory, 48)


def test_groups_in_another_order_than_the_inputs_are_not_split(tmp_path: Path) -> None:
    _, tensors, types = FORMATS["gptq"]
    shapes = mlp_shapes(tensors, 320)
    inventory = scanned(tmp_path, shapes, GPTQ | {"desc_act": True}, types, 320)
    with pytest.raises(CheckpointError):
        split_groups(inventory, 32)


def test_a_format_may_stand_in_the_text_part_of_a_config(tmp_path: Path) -> None:
    """Version 2 of GPTQ stores zero points as they are, wherever the config says so."""
    tensors = FORMATS["gptq"][1]
    fills = []
    for key, version in (
        ("format", "gptq"),
        ("format", "gptq_v2"),
        ("checkpoint_format", "gptq_v2"),
    ):
        folder = tmp_path / key / version
        write_safetensors(folder / "model.safetensors", mlp_shapes(tensors, 320), **DTYPES)
        text = {"model_type": "qwen2", "hidden_size": HIDDEN, "intermediate_size": 320}
        text["quantization_config"] = GPTQ | {key: version}
        write_json(folder / "config.json", {"model_type": "qwen2_vl", "text_config": text})
        inventory = scan(folder)
        places = inventory.dims[0].places
        fills.append({place.fill for place in places if place.tensor.endswith("qzeros")})
        written = files_with_groups(inventory, 32)["config.json"]["text_config"]
        assert written["quantization_config"]["group_size"] == 32
    second = {0x88888888 - (1 << 32)}
    assert fills == [{0x77777777}, second, second]


def test_two_statements_of_a_format_have_to_agree(tmp_path: Path) -> None:
    _, tensors, types = FORMATS["gptq"]
    write_json(tmp_path / "quantize_config.json", GPTQ | {"checkpoint_format": "gptq_v2"})
    first = GPTQ | {"checkpoint_format": "gptq"}
    (dim,) = scanned(tmp_path, mlp_shapes(tensors, 320), first, types, 320).dims
    assert dim.refusal(384)


def test_a_format_may_stand_in_a_file_beside_the_config(tmp_path: Path) -> None:
    tensors = FORMATS["gptq"][1]
    write_safetensors(tmp_path / "model.safetensors", mlp_shapes(tensors, 320), **DTYPES)
    config = {"model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": 320}
    write_json(tmp_path / "config.json", config)
    assert scan(tmp_path).dims[0].refusal(384)
    write_json(tmp_path / "quantize_config.json", GPTQ)
    assert not scan(tmp_path).dims[0].refusal(384)
