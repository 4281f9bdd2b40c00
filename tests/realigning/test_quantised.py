"""Quantised checkpoints keep their function when a width is padded as it is stored.

A witness reads them by the formats' rules (``support/dequantise.py``): every old weight has the
same bits, every new one is zero, and the logits agree. The checkpoints are the tools' own
(``fixtures/quantised``) and a packer's (``support/quantise.py``).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoders import DECODERS, write_decoder
from dequantise import (
    State,
    folder_logits,
    logits,
    plain_weights,
    quantised_modules,
    read_folder,
    weight_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from quantise import Recipe, quantise, tiny_decoder, write_checkpoint
from safetensors.torch import load_file, save_file

import gacprof
from gacprof.core.errors import GacprofError

FIXTURES = Path(__file__).parents[1] / "fixtures" / "quantised"
PROMPTS = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(7))
ROUNDING = 5e-3  # of the largest logit: loaders compute in 16 bits
EXACT = 2e-6  # of the largest logit: sums in another order

TOOLS = {  # new widths of the checkpoints by the original tools
    "awq_g64": (384, 512),
    "ct_fp8_block_320": (384, 512),
    "ct_fp8_dynamic": (353, 384),
    "ct_int4_asym_g32": (384, 512),
    "ct_int4_asym_qwen2_moe": (128, 192),
    "ct_int4_mixtral": (128, 256),
    "ct_int8_pack_g32": (384, 512),
    "ct_mxfp4a16": (448, 512),
    "ct_mxfp8a16": (448, 512),
    "ct_nvfp4": (432, 512),
    "ct_w8a8": (193, 256),
    "fp8_block_hf": (385, 512),
    "gptq_8bit_g32": (192, 256),
    "gptq_asym_actorder_g32": (384, 512),
    "gptq_g64": (256, 512),
    "gptq_v2_asym_g32": (384, 512),
}
INTEGERS = {
    "gptq": Recipe("gptq"),
    "gptq asym": Recipe("gptq", symmetric=False),
    "gptq act order": Recipe("gptq", act_order=True),
    "gptq v2 asym": Recipe("gptq_v2", symmetric=False),
    "gptq 8 bit": Recipe("gptq", bits=8, symmetric=False),
    "awq": Recipe("awq", symmetric=False),
    "ct int4": Recipe("ct_int"),
    "ct int4 asym": Recipe("ct_int", symmetric=False),
    "ct int4 act order": Recipe("ct_int", act_order=True, symmetric=False),
    "ct int8 packed": Recipe("ct_int", bits=8),
}
IN_ORDER = [name for name in INTEGERS if "act order" not in name]
WITH_GROUPS = {name: INTEGERS[name] for name in IN_ORDER} | {
    "ct mxfp4": Recipe("ct_mxfp4"),
    "ct mxfp8": Recipe("ct_mxfp8", bits=8),
    "ct nvfp4": Recipe("ct_nvfp4", group=16),
    "modelopt nvfp4": Recipe("modelopt_nvfp4", group=16),
    "fp8 block": Recipe("fp8_block", block=(32, 32)),
    "ct fp8 block": Recipe("ct_fp8_block", block=(32, 32)),
}
RECIPES = (
    INTEGERS
    | WITH_GROUPS
    | {
        "gptq, a scale a row": Recipe("gptq", group=-1),
        "gptq, a short group": Recipe("gptq", group=64),
        "ct int4, a short group": Recipe("ct_int", group=64),
        "ct int8": Recipe("ct_int8", bits=8, group=-1),
        "ct fp8": Recipe("ct_fp8"),
        "ct fp8, one scale": Recipe("ct_fp8", group=0),
        "modelopt fp8": Recipe("modelopt_fp8"),
        "fp8, a part of a block": Recipe("fp8_block"),
        "ct fp8, a part of a block": Recipe("ct_fp8_block"),
    }
)
EXPERTS = ("qwen2_moe", "qwen3_moe", "mixtral")


def packed(folder: Path, recipe: Recipe, family: str = "llama", **sizes: Any) -> Path:
    """A tiny decoder of one layer, its MLP 96 wide if nothing else is said."""
    return write_checkpoint(folder, *quantise(*tiny_decoder(family, **sizes), recipe))


def padded(source: Path, out: Path, multiple: int) -> Path:
    """Every MLP at the next larger multiple."""
    widths = {d.name: d.size for d in gacprof.scan(source).dims if d.kind == "width"}
    assert widths
    sizes = {name: (width // multiple + 1) * multiple for name, width in widths.items()}
    gacprof.realign(source, sizes, out)
    return out


def assert_same_function(source: Path, out: Path) -> None:
    """Assert that old weights have their bits, new ones are zero, and so the logits agree."""
    (state, config), (new_state, new_config) = read_folder(source), read_folder(out)
    old, new = plain_weights(state, config), plain_weights(new_state, new_config)
    old_parts, new_parts = gates_and_ups_apart(old), gates_and_ups_apart(new)
    assert old_parts.keys() == new_parts.keys()
    assert sum(t.numel() for t in new_parts.values()) > sum(t.numel() for t in old_parts.values())
    for name, weight in old_parts.items():
        longer = new_parts[name].clone()
        corner = longer[tuple(slice(size) for size in weight.shape)]
        assert torch.equal(corner, weight), f"{name}: old weights changed"
        corner.zero_()
        assert not longer.any(), f"{name}: new weights are not zero"
    for name, tensor in state.items():
        if "scale" in name:  # none that is 0 or no number, no larger range for who requantises
            assert set(new_state[name].float().unique().tolist()) == set(
                tensor.float().unique().tolist()
            )
    before, after = logits(old, config, PROMPTS), logits(new, new_config, PROMPTS)
    assert (after - before).abs().max() <= EXACT * before.abs().max()


def gates_and_ups_apart(weights: State) -> State:
    """Split fused weights, of which one's new rows lie in the middle."""
    parts: State = {}
    for name, weight in weights.items():
        if "experts.gate_up_proj" in name:
            parts |= {f"{name} gate": weight[:, ::2], f"{name} up": weight[:, 1::2]}
        elif "gate_up_proj" in name:
            parts[f"{name} gate"], parts[f"{name} up"] = weight.chunk(2)
        else:
            parts[name] = weight
    return parts


def fingerprints(folder: Path) -> dict[str, str]:
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.iterdir()}


# ---- the witness itself --------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(p.parent.name for p in FIXTURES.glob("*/config.json")))
def test_the_witness_reads_what_the_tools_own_loaders_read(name: str) -> None:
    expected = np.load(FIXTURES / name / "expected.npz")
    of_loader = torch.from_numpy(expected["logits"])
    computed = folder_logits(FIXTURES / name, torch.from_numpy(expected["prompts"]))
    assert (computed - of_loader).abs().max() <= ROUNDING * of_loader.abs().max()


@pytest.mark.parametrize(
    ("name", "recipe"),
    {
        "awq_g64": Recipe("awq", group=64, symmetric=False),
        "ct_fp8_block_320": Recipe("ct_fp8_block"),
        "ct_fp8_dynamic": Recipe("ct_fp8"),
        "ct_int4_asym_g32": Recipe("ct_int", symmetric=False),
        "ct_int4_asym_qwen2_moe": Recipe("ct_int", symmetric=False),
        "ct_int8_pack_g32": Recipe("ct_int", bits=8),
        "ct_mxfp4a16": Recipe("ct_mxfp4"),
        "ct_mxfp8a16": Recipe("ct_mxfp8", bits=8),
        "ct_nvfp4": Recipe("ct_nvfp4"),
        "ct_w4afp8_g32": Recipe("ct_int8"),
        "ct_w8a8": Recipe("ct_int8", bits=8, group=-1),
        "gptq_3bit_g32": Recipe("gptq", bits=3),
        "gptq_8bit_g32": Recipe("gptq", bits=8),
        "gptq_g64": Recipe("gptq", group=64),
    }.items(),
)
def test_the_packer_writes_the_tensors_that_tools_write(name: str, recipe: Recipe) -> None:
    of_tool, config = read_folder(FIXTURES / name)
    of_packer, _ = quantise(plain_weights(of_tool, config), config, recipe)
    shapes = {name: tensor.shape for name, tensor in of_tool.items()}
    assert {name: tensor.shape for name, tensor in of_packer.items()} == shapes
    for module, tensors in quantised_modules(of_tool).items():
        stored = quantised_modules(of_packer)[module]
        for ending, tensor in tensors.items():
            is_scale_of_16_bits = "scale" in ending and tensor.itemsize == 2
            assert stored[ending].dtype == tensor.dtype or is_scale_of_16_bits


# ---- padding -------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", [0, 1])
@pytest.mark.parametrize("name", TOOLS)
def test_a_checkpoint_of_the_tools_keeps_its_function(
    name: str, choice: int, tmp_path: Path
) -> None:
    source = FIXTURES / name
    before = fingerprints(source)
    assert_same_function(source, padded(source, tmp_path / "new", TOOLS[name][choice]))
    assert fingerprints(source) == before


@pytest.mark.parametrize("multiple", [128, 192])
@pytest.mark.parametrize("name", RECIPES)
def test_every_format_keeps_its_function(name: str, multiple: int, tmp_path: Path) -> None:
    source = packed(tmp_path / "old", RECIPES[name])
    assert_same_function(source, padded(source, tmp_path / "new", multiple))


@pytest.mark.parametrize("family", EXPERTS)
@pytest.mark.parametrize(
    "name", ["gptq act order", "awq", "ct int4 asym", "ct fp8", "ct nvfp4", "fp8 block"]
)
def test_experts_and_a_shared_one_of_another_width(name: str, family: str, tmp_path: Path) -> None:
    source = packed(tmp_path / "old", RECIPES[name], family)
    assert_same_function(source, padded(source, tmp_path / "new", 128))


@pytest.mark.parametrize("name", ["gptq", "awq", "ct int4 asym", "ct mxfp4", "fp8 block"])
def test_new_rows_of_fused_gate_and_up_follow_each(name: str, tmp_path: Path) -> None:
    source = packed(tmp_path / "old", RECIPES[name], "phi3")
    assert_same_function(source, padded(source, tmp_path / "new", 128))


def test_experts_of_gpt_oss_whose_gate_and_up_alternate(tmp_path: Path) -> None:
    source = packed(tmp_path / "old", Recipe("gpt_oss_mxfp4"), "gpt_oss")
    assert_same_function(source, padded(source, tmp_path / "new", 128))


@pytest.mark.parametrize(
    "name",
    ["gptq", "awq", "ct int4", "ct fp8", "ct mxfp4", "ct mxfp8", "ct nvfp4", "fp8 block"],
)
def test_biases_grow_along(name: str, tmp_path: Path) -> None:
    source = packed(tmp_path / "old", RECIPES[name], mlp_bias=True)
    assert_same_function(source, padded(source, tmp_path / "new", 128))


@pytest.mark.parametrize("plain", ["down", "up"])
@pytest.mark.parametrize("name", ["gptq asym", "awq", "ct int4", "ct nvfp4", "fp8 block"])
def test_a_layer_that_was_left_out_of_quantising(name: str, plain: str, tmp_path: Path) -> None:
    dense, config = tiny_decoder()
    state, config = quantise(dense, config, RECIPES[name])
    module = f"model.layers.0.mlp.{plain}_proj."
    state = {name: tensor for name, tensor in state.items() if not name.startswith(module)}
    state[f"{module}weight"] = dense[f"{module}weight"]
    source = write_checkpoint(tmp_path / "old", state, config)
    assert_same_function(source, padded(source, tmp_path / "new", 128))


@pytest.mark.parametrize("name", ["gptq", "gptq act order", "ct int4 act order"])
def test_new_inputs_are_groups_of_their_own(name: str, tmp_path: Path) -> None:
    source = packed(tmp_path / "old", RECIPES[name])
    (old, _), (new, _) = read_folder(source), read_folder(padded(source, tmp_path / "new", 160))
    g_idx = "g_idx" if name.startswith("gptq") else "weight_g_idx"
    name = f"model.layers.0.mlp.down_proj.{g_idx}"
    assert torch.equal(new[name][:96], old[name])
    assert new[name][96:].tolist() == [3] * 32 + [4] * 32


def test_scales_that_are_stored_as_exponents(tmp_path: Path) -> None:
    state, config = quantise(*tiny_decoder(), Recipe("fp8_block"))
    for name, scale in state.items():
        if name.endswith("weight_scale_inv"):
            state[name] = (2.0 ** scale.log2().round()).to(torch.float8_e8m0fnu)
    source = write_checkpoint(tmp_path / "old", state, config)
    assert_same_function(source, padded(source, tmp_path / "new", 224))


def test_a_format_that_stands_in_a_file_of_its_own(tmp_path: Path) -> None:
    state, config = quantise(*tiny_decoder(), Recipe("gptq_v2", symmetric=False))
    stated = config.pop("quantization_config")
    source = write_checkpoint(tmp_path / "old", state, config)
    (source / "quantize_config.json").write_text(json.dumps(stated))
    assert_same_function(source, padded(source, tmp_path / "new", 128))


def test_a_word_pads_experts_and_what_the_config_says_of_them(tmp_path: Path) -> None:
    source = packed(tmp_path / "old", Recipe("awq", symmetric=False), "qwen2_moe")
    gacprof.realign(source, "pad128", tmp_path / "new")
    assert_same_function(source, tmp_path / "new")
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert config["moe_intermediate_size"] == 128
    assert config["shared_expert_intermediate_size"] == 256


@given(
    name=st.sampled_from(sorted(INTEGERS)),
    group=st.sampled_from([16, 32, 64]),
    groups=st.integers(1, 4),
    more=st.integers(1, 5),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_any_width_of_whole_groups_and_any_larger_one(
    name: str, group: int, groups: int, more: int, seed: int, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("property")
    recipe = Recipe(**vars(INTEGERS[name]) | {"group": group})
    source = packed(folder / "old", recipe, width=groups * group, seed=seed)
    assert_same_function(source, padded(source, folder / "new", (groups + more) * group))


def test_the_config_says_the_new_width_and_nothing_else_changes(tmp_path: Path) -> None:
    source = FIXTURES / "ct_int4_asym_g32"
    out = padded(source, tmp_path / "new", 384)
    old, new = (json.loads((f / "config.json").read_text()) for f in (source, out))
    assert new == old | {"intermediate_size": 384}
    state, _ = read_folder(out)
    assert state["model.layers.0.mlp.down_proj.weight_shape"].tolist() == [64, 384]
    assert state["model.layers.0.mlp.up_proj.weight_shape"].tolist() == [384, 64]


# ---- what careless padding does, this file sees --------------------------------------------------

CARELESS = {  # tensor, the axis that grew, a new entry's wrong value
    "gptq": ("down_proj.qweight", 0, 0),
    "awq": ("up_proj.qweight", 1, 0),
    "ct int4": ("down_proj.weight_packed", 1, 0),
    "ct int4 asym": ("gate_proj.weight_zero_point", 0, 0),
    "ct int8 packed": ("gate_proj.weight_packed", 0, 0),
    "ct mxfp4": ("down_proj.weight_packed", 1, 1),
    "gptq asym": ("down_proj.qzeros", 0, 0),
    "gptq act order": ("down_proj.g_idx", 0, 99),
    "ct fp8": ("up_proj.weight", 0, 1),
}


@pytest.mark.parametrize("name", CARELESS)
def test_a_wrong_fill_is_seen(name: str, tmp_path: Path) -> None:
    source = packed(tmp_path / "old", RECIPES[name])
    out = padded(source, tmp_path / "new", 128)
    state, _ = read_folder(out)
    ending, axis, value = CARELESS[name]
    tensor = state[f"model.layers.0.mlp.{ending}"]
    tensor.narrow(axis, tensor.shape[axis] - 1, 1).fill_(value)
    save_file(state, out / "model.safetensors")
    with pytest.raises((AssertionError, IndexError)):
        assert_same_function(source, out)


# ---- what a rank of tensor parallelism gets ------------------------------------------------------

AXES_OF_OUTPUTS = {"qweight": 1, "qzeros": 1, "scales": 1}  # the rest: outputs first
ALIKE_FOR_ALL = ("input_scale", "input_global_scale", "weight_global_scale", "weight_scale_2")


def rank_share(tensors: State, side: str, rank: int, tp: int) -> State:
    """Return a rank's even share of a layer's tensors, as engines cut them: along the outputs (N)
    or the inputs (K)."""
    share: State = {}
    for name, tensor in tensors.items():
        axis = AXES_OF_OUTPUTS.get(name, 0)
        if side == "K":
            axis = 1 - axis if tensor.dim() > 1 else 0
        is_whole = name in ALIKE_FOR_ALL or tensor.dim() == 0 or tensor.shape[axis] == 1
        if name == "weight_shape":
            tensor = tensor.clone()
            tensor["NK".index(side)] //= tp
        elif name == "g_idx" and side == "K":
            tensor = tensor[: len(tensor) // tp]
        elif name != "g_idx" and not is_whole:
            assert tensor.shape[axis] % tp == 0, f"ranks share an entry of {name}"
            tensor = tensor.chunk(tp, axis)[rank]
        share[name] = tensor
    return share


def assert_ranks_have_whole_groups(folder: Path, tp: int) -> None:
    state, config = read_folder(folder)
    modules = quantised_modules(state)
    for part, side in (("gate", "N"), ("up", "N"), ("down", "K")):
        module = f"model.layers.0.mlp.{part}_proj"
        quant = config["quantization_config"]
        whole = weight_of(module, modules[module], quant)
        for rank, expected in enumerate(whole.chunk(tp, "NK".index(side))):
            share = rank_share(modules[module], side, rank, tp)
            assert torch.equal(weight_of(module, share, quant), expected)


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("name", WITH_GROUPS)
def test_ranks_have_whole_groups_after_padding(name: str, tp: int, tmp_path: Path) -> None:
    group = RECIPES[name].group
    source = packed(tmp_path / "old", RECIPES[name], width=5 * group)
    with pytest.raises(AssertionError):
        assert_ranks_have_whole_groups(source, tp)
    assert_ranks_have_whole_groups(padded(source, tmp_path / "new", tp * group), tp)


# ---- finer groups --------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("name", IN_ORDER)
def test_finer_groups_keep_every_bit(name: str, parts: int, tmp_path: Path) -> None:
    recipe = Recipe(**vars(INTEGERS[name]) | {"group": 64})
    source = packed(tmp_path / "old", recipe, width=192)
    gacprof.realign(source, f"groups{64 // parts}", tmp_path / "new")
    old, new = plain_weights(*read_folder(source)), plain_weights(*read_folder(tmp_path / "new"))
    assert old.keys() == new.keys()
    assert all(torch.equal(new[name], weight) for name, weight in old.items())
    assert_ranks_have_whole_groups(tmp_path / "new", parts)


@pytest.mark.parametrize("name", ["awq_g64", "gptq_g64"])
def test_finer_groups_of_a_tools_checkpoint(name: str, tmp_path: Path) -> None:
    gacprof.realign(FIXTURES / name, "groups32", tmp_path / "new")
    before, after = (
        folder_logits(FIXTURES / name, PROMPTS),
        folder_logits(tmp_path / "new", PROMPTS),
    )
    assert torch.equal(after, before)


# ---- exact or refused ----------------------------------------------------------------------------


def refused(source: Path, out: Path, sizes: Any) -> None:
    with pytest.raises(GacprofError):
        gacprof.realign(source, sizes, out)
    assert not out.exists()


@pytest.mark.parametrize(
    "name", ["ct_int4_asym_channel", "ct_mixed", "ct_w4afp8_g32", "gptq_3bit_g32"]
)
def test_a_rarer_checkpoint_of_the_tools_is_exact_or_refused(name: str, tmp_path: Path) -> None:
    try:
        out = padded(FIXTURES / name, tmp_path / "new", 128)
    except GacprofError:
        assert not (tmp_path / "new").exists()
    else:
        assert_same_function(FIXTURES / name, out)


@pytest.mark.parametrize("size", [112, 64], ids=["half a group", "a cut"])
@pytest.mark.parametrize("name", ["gptq", "awq", "ct int4", "ct mxfp4"])
def test_sizes_that_it_cannot_have(name: str, size: int, tmp_path: Path) -> None:
    source = packed(tmp_path / "old", RECIPES[name])
    refused(source, tmp_path / "new", {"model.layers.0.mlp:width": size})


@pytest.mark.parametrize("form", ["gptq", "gptq_v2", "awq", "ct_int"])
@pytest.mark.parametrize("group", [64, -1])
def test_zero_points_of_a_short_group_are_not_made_up(
    form: str, group: int, tmp_path: Path
) -> None:
    source = packed(tmp_path / "old", Recipe(form, group=group, symmetric=False))
    refused(source, tmp_path / "new", {"model.layers.0.mlp:width": 128})


def test_fused_up_that_begins_inside_a_block_stays(tmp_path: Path) -> None:
    source = packed(tmp_path / "old", Recipe("fp8_block"), "phi3")
    refused(source, tmp_path / "new", {"model.layers.0.mlp:width": 128})


@pytest.mark.parametrize(
    ("recipe", "groups"),
    [
        (Recipe("gptq", group=64, act_order=True), 32),
        (Recipe("ct_int", group=64, act_order=True), 32),
        (Recipe("gptq", group=-1), 32),
        (Recipe("gptq", group=64), 48),
        (Recipe("ct_int", group=32), 64),
        (Recipe("ct_mxfp4"), 16),
        (Recipe("fp8_block"), 64),
    ],
)
def test_groups_that_it_cannot_have(recipe: Recipe, groups: int, tmp_path: Path) -> None:
    refused(packed(tmp_path / "old", recipe, width=128), tmp_path / "new", f"groups{groups}")


@pytest.mark.parametrize("word", ["for:vllm:tp2", "pad256"])
def test_a_format_that_nobody_read_is_never_said_to_be_served(word: str, tmp_path: Path) -> None:
    refused(FIXTURES / "gptq_3bit_g32", tmp_path / "new", word)


def test_widths_that_no_config_says_are_not_padded_for_an_engine(tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "old", **DECODERS["qwen2 widths 90,77"])  # type: ignore[arg-type]
    refused(source, tmp_path / "new", "for:vllm:tp2")


def test_a_pickle_of_fp8_is_padded_as_its_safetensors(tmp_path: Path) -> None:
    source, pickled = FIXTURES / "fp8_block_hf", tmp_path / "pickled"
    shutil.copytree(source, pickled)
    (pickled / "model.safetensors").unlink()
    torch.save(load_file(source / "model.safetensors"), pickled / "pytorch_model.bin")
    first, second = (
        load_file(gacprof.realign(folder, "pad512", tmp_path / name) / "model.safetensors")
        for folder, name in ((source, "first"), (pickled, "second"))
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(first[k].view(torch.uint8), second[k].view(torch.uint8)) for k in first)
