"""Tiny decoders of random weights, quantised round to nearest as the tools store them.

A packer written from the formats' rules: plain torch, seconds, no tool. What it writes has the
names, types and shapes of the tools' files (``tests/fixtures/quantised`` has some to compare with).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

State = dict[str, Tensor]
FP8 = torch.float8_e4m3fn
MAX_FP8, MAX_FP4 = 448.0, 6.0
FP4_MIDPOINTS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # the outputs of a word, lowest bits first
VOCABULARY, HEADS, KV_HEADS = 64, 4, 2


@dataclass(frozen=True)
class Recipe:
    """A format of quantised weights: ``form`` is a name of :data:`FORMS`, ``group`` the inputs that
    share a scale (-1: a row has one), ``block`` the rows and columns of fp8 that do."""

    form: str
    bits: int = 4
    group: int = 32
    symmetric: bool = True
    act_order: bool = False
    block: tuple[int, int] = (128, 128)


def tiny_decoder(
    family: str = "llama", width: int = 96, hidden: int = 64, seed: int = 0, **settings: Any
) -> tuple[State, dict[str, Any]]:
    """Return the tensors and the config of a decoder with one layer and random weights.

    ``family`` is llama, phi3, mixtral, qwen2_moe, qwen3_moe or gpt_oss. gpt-oss's experts are
    [experts, outputs, inputs], as they are quantised.
    """
    generator = torch.Generator().manual_seed(seed)
    head = hidden // HEADS
    config = {
        "model_type": family,
        "architectures": [ARCHITECTURES[family]],
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": head,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "vocab_size": VOCABULARY,
        "dtype": "float16",
    }
    config |= FAMILY_SETTINGS.get(family, {}) | settings
    shapes = {
        "model.embed_tokens.weight": (VOCABULARY, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (VOCABULARY, hidden),
    }
    layer = _attention_shapes(family, hidden, head) | _mlp_shapes(family, config)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        layer[f"{norm}.weight"] = (hidden,)
    shapes |= {f"model.layers.0.{name}": shape for name, shape in layer.items()}
    state = {}
    for name, shape in shapes.items():
        tensor = torch.randn(shape, generator=generator)
        spread = 0.2 if name.startswith("model.layers") else 1.0
        is_norm = name.endswith("norm.weight")
        state[name] = (1 + 0.1 * tensor if is_norm else spread * tensor).half()
    return state, config


ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
}
FAMILY_SETTINGS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
        "shared_expert_intermediate_size": 160,
        "norm_topk_prob": False,
    },
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
        "norm_topk_prob": True,
    },
    "gpt_oss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "swiglu_limit": 7.0,
        "attention_bias": True,
        "layer_types": ["full_attention"],
    },
}


def _attention_shapes(family: str, hidden: int, head: int) -> dict[str, tuple[int, ...]]:
    rows = {"q_proj": HEADS * head, "k_proj": KV_HEADS * head, "v_proj": KV_HEADS * head}
    if family == "phi3":
        rows = {"qkv_proj": (HEADS + 2 * KV_HEADS) * head}
    shapes: dict[str, tuple[int, ...]] = {"self_attn.o_proj.weight": (hidden, HEADS * head)}
    for name, count in rows.items():
        shapes[f"self_attn.{name}.weight"] = (count, hidden)
        if family in ("qwen2_moe", "gpt_oss"):
            shapes[f"self_attn.{name}.bias"] = (count,)
    if family == "qwen3_moe":
        shapes |= {"self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)}
    if family == "gpt_oss":
        shapes |= {"self_attn.o_proj.bias": (hidden,), "self_attn.sinks": (HEADS,)}
    return shapes


def _mlp_shapes(family: str, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, width = config["hidden_size"], config["intermediate_size"]
    experts = config.get("num_experts") or config.get("num_local_experts") or 0
    if family == "phi3":
        return {
            "mlp.gate_up_proj.weight": (2 * width, hidden),
            "mlp.down_proj.weight": (hidden, width),
        }
    if family == "gpt_oss":
        return {
            "mlp.router.weight": (experts, hidden),
            "mlp.router.bias": (experts,),
            "mlp.experts.gate_up_proj": (experts, 2 * width, hidden),
            "mlp.experts.gate_up_proj_bias": (experts, 2 * width),
            "mlp.experts.down_proj": (experts, hidden, width),
            "mlp.experts.down_proj_bias": (experts, hidden),
        }
    names = ("w1", "w3", "w2") if family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    mlp = "block_sparse_moe" if family == "mixtral" else "mlp"
    widths = {mlp: width}
    shapes: dict[str, tuple[int, ...]] = {}
    if experts:
        width = config.get("moe_intermediate_size", width)
        widths = {f"{mlp}.experts.{expert}": width for expert in range(experts)}
        shapes[f"{mlp}.gate.weight"] = (experts, hidden)
    if family == "qwen2_moe":
        widths[f"{mlp}.shared_expert"] = config["shared_expert_intermediate_size"]
        shapes[f"{mlp}.shared_expert_gate.weight"] = (1, hidden)
    for name, rows in widths.items():
        shapes |= {f"{name}.{part}.weight": (rows, hidden) for part in names[:2]}
        shapes[f"{name}.{names[2]}.weight"] = (hidden, rows)
        if config.get("mlp_bias"):
            shapes |= {f"{name}.{part}.bias": (rows,) for part in names[:2]}
            shapes[f"{name}.{names[2]}.bias"] = (hidden,)
    return shapes


def quantise(
    state: Mapping[str, Tensor], config: Mapping[str, Any], recipe: Recipe
) -> tuple[State, dict[str, Any]]:
    """Return a checkpoint's tensors and config with its linear layers quantised."""
    pack, settings = FORMS[recipe.form]
    stored: State = {}
    for name, tensor in state.items():
        module, _, ending = name.rpartition(".")
        is_linear = ending == "weight" and module.endswith(("_proj", ".w1", ".w2", ".w3"))
        if recipe.form == "gpt_oss_mxfp4" and tensor.dim() == 3:
            packed = pack(tensor.float(), recipe)
            stored |= {f"{name}_{part}": value for part, value in packed.items()}
        elif is_linear and recipe.form != "gpt_oss_mxfp4":
            packed = pack(tensor.float(), recipe)
            stored |= {f"{module}.{part}": value for part, value in packed.items()}
        else:
            stored[name] = tensor
    stored = {name: tensor.contiguous() for name, tensor in stored.items()}
    return stored, dict(config) | {"quantization_config": settings(recipe)}


def write_checkpoint(folder: Path, state: State, config: Mapping[str, Any]) -> Path:
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


# ---- integers ------------------------------------------------------------------------------------


def integers(weight: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes from 0 on, scales and zero points of groups: [N, K], [N, groups] twice."""
    blocks = grouped(weight, recipe.group)
    top = (1 << recipe.bits) - 1
    low, high = blocks.amin(-1).clamp(max=0), blocks.amax(-1).clamp(min=0)
    if recipe.symmetric:
        reach = torch.maximum(-low, high)
        scale = (reach / (top // 2)).half().float()
        zero = torch.full_like(scale, top // 2 + 1)
    else:
        scale = ((high - low) / top).half().float()
        zero = (-low / scale).round().clamp(0, top)
    codes = (blocks / scale[..., None]).round() + zero[..., None]
    codes = codes.clamp(0, top).long().flatten(1)[:, : weight.shape[1]]
    return codes, scale.half(), zero.long()


def grouped(weight: Tensor, group: int) -> Tensor:
    """Return [N, groups, group]; zeros fill the last group up."""
    group = group if group > 0 else weight.shape[1]
    missing = -weight.shape[1] % group
    return functional.pad(weight, (0, missing)).unflatten(1, (-1, group))


def words(codes: Tensor, bits: int, axis: int) -> Tensor:
    """Return codes as a stream of bits in int32 words along an axis, low bits first."""
    stream = (codes.movedim(axis, -1)[..., None] >> torch.arange(bits) & 1).flatten(-2)
    stream = functional.pad(stream, (0, -stream.shape[-1] % 32)).unflatten(-1, (-1, 32))
    return (stream << torch.arange(32)).sum(-1).int().movedim(-1, axis)


def ordered_integers(weight: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return codes, scales, zero points, and the number of each input's group, which with
    ``act_order`` are in no order."""
    order = torch.arange(weight.shape[1])
    if recipe.act_order:
        order = torch.randperm(len(order), generator=torch.Generator().manual_seed(len(order)))
    codes, scales, zeros = integers(weight[:, order], recipe)
    group = recipe.group if recipe.group > 0 else len(order)
    back = order.argsort()
    return codes[:, back], scales, zeros, (back // group).int()


def _gptq(weight: Tensor, recipe: Recipe) -> State:
    codes, scales, zeros, groups = ordered_integers(weight, recipe)
    if recipe.form == "gptq":
        zeros = zeros - 1
    return {
        "qweight": words(codes.T, recipe.bits, 0),
        "qzeros": words(zeros.T, recipe.bits, 1),
        "scales": scales.T,
        "g_idx": groups,
    }


def _awq(weight: Tensor, recipe: Recipe) -> State:
    codes, scales, zeros = integers(weight, recipe)
    packed = {
        name: words(values.T.unflatten(1, (-1, 8))[..., AWQ_ORDER].flatten(1), 4, 1)
        for name, values in (("qweight", codes), ("qzeros", zeros))
    }
    return packed | {"scales": scales.T}


def _pack_quantized(weight: Tensor, recipe: Recipe) -> State:
    codes, scales, zeros, groups = ordered_integers(weight, recipe)
    packed = {
        "weight_packed": words(codes, recipe.bits, 1),
        "weight_scale": scales,
        "weight_shape": torch.tensor(weight.shape),
    }
    if not recipe.symmetric:
        packed["weight_zero_point"] = words(zeros, recipe.bits, 0)
    if recipe.act_order:
        packed["weight_g_idx"] = groups
    return packed


def _int_quantized(weight: Tensor, recipe: Recipe) -> State:
    codes, scales, zeros = integers(weight, recipe)
    middle = 1 << recipe.bits - 1
    packed = {"weight": (codes - middle).to(torch.int8), "weight_scale": scales}
    if not recipe.symmetric:
        packed["weight_zero_point"] = (zeros - middle).to(torch.int8)
    return packed


# ---- floating point ------------------------------------------------------------------------------


def _fp8_blocks(weight: Tensor, recipe: Recipe) -> State:
    rows, columns = recipe.block
    padded = functional.pad(weight, (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows))
    blocks = padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
    scale = blocks.abs().amax((1, 3)) / MAX_FP8
    is_inverse = recipe.form == "fp8_block"
    if not is_inverse:
        scale = scale.bfloat16()
    values = blocks / scale.float()[:, None, :, None]
    values = values.flatten(2, 3).flatten(0, 1)[: weight.shape[0], : weight.shape[1]]
    return {"weight": values.to(FP8), "weight_scale_inv" if is_inverse else "weight_scale": scale}


def _fp8(weight: Tensor, recipe: Recipe) -> State:
    """With a scale for each output, or (``group`` 0) one for all."""
    reach = weight.abs().amax(1, keepdim=True) if recipe.group else weight.abs().max().view(1)
    scale = (reach / MAX_FP8).bfloat16()
    packed = {"weight": (weight / scale.float()).to(FP8), "weight_scale": scale}
    if not recipe.group:
        packed["input_scale"] = torch.tensor([0.02]).bfloat16()
    return packed


def _modelopt_fp8(weight: Tensor, recipe: Recipe) -> State:
    scale = weight.abs().max() / MAX_FP8
    packed = {"weight": (weight / scale).to(FP8), "weight_scale": scale}
    return packed | {"input_scale": torch.tensor(0.01)}


def fp4(values: Tensor) -> Tensor:
    """Return the nearest e2m1 numbers, two a byte, the first of a pair in the low bits."""
    codes = torch.bucketize(values.abs().contiguous(), FP4_MIDPOINTS) + 8 * (values < 0)
    return (codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8)


def exponents(blocks: Tensor, highest: int) -> Tensor:
    """Return the powers of two that bring a block's largest number to at most 2^(highest + 1)."""
    return blocks.abs().amax(-1).clamp(min=2.0**-100).log2().floor() - highest


def _mx(weight: Tensor, recipe: Recipe) -> State:
    """Blocks of 32 with a power of two: 4 bits, or 8."""
    blocks = weight.unflatten(-1, (-1, 32))
    powers = exponents(blocks, 2 if recipe.bits == 4 else 8)
    values = (blocks / 2 ** powers[..., None]).flatten(-2)
    scale = (powers + 127).to(torch.uint8)
    if recipe.bits == 8:
        return {"weight": values.clamp(-MAX_FP8, MAX_FP8).to(FP8), "weight_scale": scale}
    return {"weight_packed": fp4(values), "weight_scale": scale}


def _gpt_oss_mxfp4(weight: Tensor, recipe: Recipe) -> State:
    packed = _mx(weight, recipe)
    return {
        "blocks": packed["weight_packed"].unflatten(-1, (-1, 16)),
        "scales": packed["weight_scale"],
    }


def _nvfp4(weight: Tensor, recipe: Recipe) -> State:
    blocks = weight.unflatten(-1, (-1, 16))
    whole = (MAX_FP8 * MAX_FP4 / weight.abs().max()).view(1)
    scale = (blocks.abs().amax(-1) / MAX_FP4 * whole).to(FP8)
    codes = fp4((blocks * whole / scale.float()[..., None]).flatten(1))
    if recipe.form == "modelopt_nvfp4":
        return {
            "weight": codes,
            "weight_scale": scale,
            "weight_scale_2": (1 / whole).squeeze(),
            "input_scale": torch.tensor(0.01),
        }
    return {
        "weight_packed": codes,
        "weight_scale": scale,
        "weight_global_scale": whole,
        "input_global_scale": torch.tensor([100.0]),
    }


# ---- what config.json says -----------------------------------------------------------------------


def _gptq_settings(recipe: Recipe) -> dict[str, Any]:
    return {
        "quant_method": "gptq",
        "checkpoint_format": recipe.form,
        "bits": recipe.bits,
        "group_size": recipe.group,
        "sym": recipe.symmetric,
        "desc_act": recipe.act_order,
        "lm_head": False,
    }


def _awq_settings(recipe: Recipe) -> dict[str, Any]:
    return {
        "quant_method": "awq",
        "bits": 4,
        "group_size": recipe.group,
        "version": "gemm",
        "zero_point": True,
    }


def _fp8_settings(recipe: Recipe) -> dict[str, Any]:
    return {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": list(recipe.block),
        "modules_to_not_convert": ["lm_head"],
    }


def _gpt_oss_settings(recipe: Recipe) -> dict[str, Any]:
    ignored = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]
    return {"quant_method": "mxfp4", "modules_to_not_convert": ignored}


def _modelopt_settings(recipe: Recipe) -> dict[str, Any]:
    numbers = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    if recipe.form == "modelopt_fp8":
        numbers = {"dynamic": False, "num_bits": 8, "type": "float"}
    return {
        "quant_method": "modelopt",
        "quant_algo": "FP8" if recipe.form == "modelopt_fp8" else "NVFP4",
        "producer": {"name": "modelopt", "version": "0.37.0"},
        "config_groups": {
            "group_0": {"input_activations": numbers, "weights": numbers, "targets": ["Linear"]}
        },
        "ignore": ["lm_head"],
    }


def _compressed_tensors_settings(recipe: Recipe) -> dict[str, Any]:
    form, kind, strategy, inputs = CT_FORMATS[recipe.form]
    group: int | None = {"tensor_group": 16, "group": recipe.group}.get(strategy)
    if strategy == "group" and recipe.group < 0:
        strategy, group = "channel", None
    if recipe.form == "ct_fp8" and not recipe.group:
        strategy = "tensor"
    weights = {
        "num_bits": 8 if "fp8" in recipe.form else recipe.bits,
        "type": kind,
        "strategy": strategy,
        "symmetric": recipe.symmetric,
        "group_size": group,
        "block_structure": list(recipe.block) if strategy == "block" else None,
        "dynamic": False,
        "actorder": "group" if recipe.act_order else None,
    }
    # Another group size than the weights', as the tool writes it
    of_inputs: dict[str, Any] = {"num_bits": 8, "type": kind, "strategy": "token"}
    if kind == "float":
        of_inputs |= {"strategy": "group", "group_size": 128}
    if strategy == "tensor_group":
        of_inputs = {"num_bits": 4, "type": kind, "strategy": strategy, "group_size": 16}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "format": form,
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": of_inputs | {"dynamic": True} if inputs else None,
                "output_activations": None,
            }
        },
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


CT_FORMATS = {  # the name of the format, type, strategy, whether inputs are quantised
    "ct_int": ("pack-quantized", "int", "group", False),
    "ct_int8": ("int-quantized", "int", "group", True),
    "ct_fp8": ("float-quantized", "float", "channel", True),
    "ct_fp8_block": ("float-quantized", "float", "block", True),
    "ct_mxfp4": ("mxfp4-pack-quantized", "float", "group", False),
    "ct_mxfp8": ("mxfp8-quantized", "float", "group", False),
    "ct_nvfp4": ("nvfp4-pack-quantized", "float", "tensor_group", True),
}
FORMS: dict[str, tuple[Any, Any]] = {
    "gptq": (_gptq, _gptq_settings),
    "gptq_v2": (_gptq, _gptq_settings),
    "awq": (_awq, _awq_settings),
    "fp8_block": (_fp8_blocks, _fp8_settings),
    "gpt_oss_mxfp4": (_gpt_oss_mxfp4, _gpt_oss_settings),
    "modelopt_fp8": (_modelopt_fp8, _modelopt_settings),
    "modelopt_nvfp4": (_nvfp4, _modelopt_settings),
    "ct_int": (_pack_quantized, _compressed_tensors_settings),
    "ct_int8": (_int_quantized, _compressed_tensors_settings),
    "ct_fp8": (_fp8, _compressed_tensors_settings),
    "ct_fp8_block": (_fp8_blocks, _compressed_tensors_settings),
    "ct_mxfp4": (_mx, _compressed_tensors_settings),
    "ct_mxfp8": (_mx, _compressed_tensors_settings),
    "ct_nvfp4": (_nvfp4, _compressed_tensors_settings),
}
"""How a weight is packed, and what the config says of it."""
