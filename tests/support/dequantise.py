"""Plain weights of quantised checkpoints, and the logits of their models, from the formats' rules.

A witness: it shares no code and no table with gacprof. Sources of the rules: AutoGPTQ's and
GPTQModel's layers, AutoAWQ's gemm, compressed-tensors' compressors, DeepSeek's and transformers'
fp8, the OCP's microscaling formats, OpenAI's gpt-oss. Whatever it reads has to have the sizes that
the config states: what was padded by halves ends in an error, not in a wrong weight.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

State = dict[str, Tensor]
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])  # the values of the lower three bits
AWQ_NIBBLES = [0, 4, 1, 5, 2, 6, 3, 7]  # where the outputs 0 … 7 lie in a word
ENDINGS = re.compile(
    r"(.+?)[._](qweight|qzeros|scales|g_idx|blocks|input_scale|weight_packed|weight_scale_inv"
    r"|weight_scale_2|weight_scale|weight_zero_point|weight_shape|weight_g_idx|weight_global_scale"
    r"|input_global_scale)"
)
"""The names of quantised tensors; a plain ``weight`` beside one of them is quantised, too."""


def read_folder(folder: Path) -> tuple[State, dict[str, Any]]:
    """Return a checkpoint's tensors and config as they are stored; the config says the format,
    also where it stands in a file of its own."""
    from safetensors.torch import load_file

    state: State = {}
    for file in sorted(folder.glob("*.safetensors")):
        state |= load_file(file)
    config = json.loads((folder / "config.json").read_text())
    for name, method in (("quantize_config.json", "gptq"), ("quant_config.json", "awq")):
        if "quantization_config" not in config and (folder / name).exists():
            stated = json.loads((folder / name).read_text())
            config["quantization_config"] = {"quant_method": method} | stated
    return state, config


def quantised_modules(state: Mapping[str, Tensor]) -> dict[str, State]:
    """Return the tensors of each quantised module by their last names."""
    modules: dict[str, State] = {}
    for name, tensor in state.items():
        match = ENDINGS.fullmatch(name)
        if match:
            modules.setdefault(match[1], {})[match[2]] = tensor
    for module, tensors in modules.items():
        if f"{module}.weight" in state:
            tensors["weight"] = state[f"{module}.weight"]
    return modules


def plain_weights(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> State:
    """Return the checkpoint's tensors as a model without quantisation has them, in float32."""
    modules = quantised_modules(state)
    plain: State = {}
    for name, tensor in state.items():
        is_quantised = name.removesuffix(".weight") in modules or ENDINGS.fullmatch(name)
        if not is_quantised:
            plain[name] = tensor.float()
    for module, tensors in modules.items():
        # Experts in one tensor are parameters without a layer of their own
        name = module if "blocks" in tensors else f"{module}.weight"
        plain[name] = weight_of(module, tensors, config["quantization_config"])
    return plain


def weight_of(module: str, tensors: State, quant: Mapping[str, Any]) -> Tensor:
    """Return a module's weight [outputs, inputs] in float32."""
    method = quant["quant_method"]
    if method == "gptq":
        return _gptq(tensors, quant)
    if method == "awq":
        return _awq(tensors, quant.get("group_size") or quant["q_group_size"])
    if method == "mxfp4":
        values = nibbles_to_values(tensors["blocks"])  # [experts, rows, groups, 32]
        return (values * powers_of_two(tensors["scales"])[..., None]).flatten(-2)
    if method == "fp8":
        block = quant.get("weight_block_size") or tensors["weight"].shape
        scale = tensors.get("weight_scale_inv", tensors.get("weight_scale"))
        return tensors["weight"].float() * spread(scale, tensors["weight"].shape, block)
    if method == "modelopt" and quant["quant_algo"] == "FP8":
        return tensors["weight"].float() * tensors["weight_scale"].float()
    if method == "modelopt":
        values = nibbles_to_values(tensors["weight"])
        scale = spread(tensors["weight_scale"], values.shape, (1, 16))
        return values * scale * tensors["weight_scale_2"].float()
    return _compressed_tensors(module, tensors, quant)


def _gptq(tensors: State, quant: Mapping[str, Any]) -> Tensor:
    bits, scales, words = quant["bits"], tensors["scales"].float(), tensors["qzeros"].long()
    codes = unpack(tensors["qweight"], bits, 0)
    if quant.get("checkpoint_format", "gptq") == "gptq_v2":
        zeros = unpack(words, bits, 1)
    else:  # each is stored less one, over the whole word: what is borrowed is given back
        zeros = unpack(words + sum(1 << shift for shift in range(0, 32, bits)), bits, 1)
        if bits == 3:
            zeros = (unpack(words, bits, 1) + 1) & 7
    assert zeros.shape == scales.shape, "zero points and scales differ in number"
    assert codes.shape[1] == scales.shape[1], "a scale for each output"
    group = quant["group_size"] if quant["group_size"] > 0 else len(codes)
    groups = tensors.get("g_idx", torch.arange(len(codes)) // group).long()
    assert groups.shape == codes.shape[:1], "a group for each input"
    assert len(scales) == -(-len(codes) // group), "scales of all groups"
    return ((codes - zeros[groups]) * scales[groups]).T


def _awq(tensors: State, group: int) -> Tensor:
    codes, zeros = (
        unpack(tensors[name], 4, 1).unflatten(1, (-1, 8))[..., AWQ_NIBBLES].flatten(1)
        for name in ("qweight", "qzeros")
    )
    shape = codes.shape
    zeros = spread(zeros, shape, (group, 1))
    return ((codes - zeros) * spread(tensors["scales"], shape, (group, 1))).T


def _compressed_tensors(module: str, tensors: State, quant: Mapping[str, Any]) -> Tensor:
    group = _config_group(module, quant)
    weights = group["weights"]
    form = group.get("format") or quant["format"]
    block = {
        "group": (1, weights.get("group_size")),
        "tensor_group": (1, weights.get("group_size")),
        "block": weights.get("block_structure"),
    }.get(weights["strategy"])
    scale, zeros = tensors["weight_scale"], tensors.get("weight_zero_point")
    if scale.dtype == torch.uint8:
        scale = powers_of_two(scale)
    if form in ("nvfp4-pack-quantized", "mxfp4-pack-quantized"):
        codes = nibbles_to_values(tensors["weight_packed"])
        scale = scale.float() / tensors.get("weight_global_scale", torch.ones(1))
    elif form == "pack-quantized":
        bits = weights["num_bits"]
        rows, columns = tensors["weight_shape"].tolist()
        codes = unpack(tensors["weight_packed"], bits, 1)[:, :columns] - (1 << bits - 1)
        assert codes.shape == (rows, columns), "weight_shape tells another size"
        if zeros is not None:
            zeros = unpack(zeros, bits, 0)[:rows] - (1 << bits - 1)
    else:
        codes = tensors["weight"].float()
    if "weight_g_idx" in tensors:  # inputs belong to groups in another order than theirs
        order = tensors["weight_g_idx"].long()
        assert order.shape == codes.shape[1:], "a group for each input"
        assert scale.shape[1] == -(-len(order) // weights["group_size"]), "scales of all groups"
        scale, block = scale[:, order], (1, 1)
        zeros = zeros[:, order] if zeros is not None else None
    if zeros is not None:
        codes = codes - spread(zeros, codes.shape, block)
    return codes * spread(scale, codes.shape, block)


def _config_group(module: str, quant: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config group of compressed-tensors that a linear layer belongs to."""
    for group in quant["config_groups"].values():
        for target in group["targets"]:
            pattern = target.removeprefix("re:") if target.startswith("re:") else re.escape(target)
            if target == "Linear" or re.match(pattern, module):
                return group
    raise ValueError(f"no group of the config has {module}")


def unpack(words: Tensor, bits: int, axis: int) -> Tensor:
    """Return the codes that 32-bit words hold along an axis: a stream of bits, low ones first."""
    stream = words.long().movedim(axis, -1)[..., None] >> torch.arange(32) & 1
    stream = stream.flatten(-2)
    count = stream.shape[-1] // bits
    codes = stream[..., : count * bits].unflatten(-1, (count, bits))
    return (codes << torch.arange(bits)).sum(-1).movedim(-1, axis)


def nibbles_to_values(packed: Tensor) -> Tensor:
    """Return the numbers of e2m1 codes, two a byte along the last axis, the low one first."""
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()
    return torch.where(codes > 7, -E2M1[codes & 7], E2M1[codes & 7])


def powers_of_two(exponents: Tensor) -> Tensor:
    """Return scales that are stored as a byte of exponent."""
    assert exponents.max() < 255, "255 is no number"
    return (2.0 ** (exponents.double() - 127)).float()


def spread(scale: Tensor, shape: Sequence[int], block: Sequence[int] | None) -> Tensor:
    """Return a scale or zero point for each weight.

    ``block`` is the rows and columns that share one; None: all of a row, or the whole tensor does.
    """
    if scale.dtype.is_floating_point:
        scale = scale.float()
    if block is None or scale.numel() == 1:
        assert scale.numel() in (1, shape[0]), "a scale for each output, or one for all"
        return scale.expand(*shape) if scale.numel() > 1 else scale.reshape(1, 1)
    for axis, length in enumerate(block):
        assert scale.shape[axis] == -(-shape[axis] // length), "a scale for each group or block"
        scale = scale.repeat_interleave(length, axis).narrow(axis, 0, shape[axis])
    return scale


def logits(weights: Mapping[str, Tensor], config: Mapping[str, Any], prompts: Tensor) -> Tensor:
    """Return a decoder's logits, computed in float64.

    Of the family of Llama: Phi-3's fused layers, experts of Mixtral, Qwen2-MoE and Qwen3-MoE (with
    a shared expert), gpt-oss's.
    """
    w = {name: tensor.double() for name, tensor in weights.items()}
    x = w["model.embed_tokens.weight"][prompts]
    for layer in range(config["num_hidden_layers"]):
        parts = _below(w, f"model.layers.{layer}")
        x = x + _attention(parts, config, _norm(x, parts["input_layernorm.weight"], config))
        y = _norm(x, parts["post_attention_layernorm.weight"], config)
        mlp = _below(parts, "mlp") or _below(parts, "block_sparse_moe")
        x = x + _feed_forward(mlp, config, y.flatten(0, -2)).view_as(x)
    return _norm(x, w["model.norm.weight"], config) @ w["lm_head.weight"].T


def folder_logits(folder: Path, prompts: Tensor) -> Tensor:
    state, config = read_folder(folder)
    return logits(plain_weights(state, config), config, prompts)


def _below(w: Mapping[str, Tensor], prefix: str) -> State:
    start = f"{prefix}."
    return {name.removeprefix(start): t for name, t in w.items() if name.startswith(start)}


def _linear(w: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    return functional.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def _norm(x: Tensor, weight: Tensor, config: Mapping[str, Any]) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + config["rms_norm_eps"]).rsqrt() * weight


def _attention(parts: State, config: Mapping[str, Any], x: Tensor) -> Tensor:
    w, head = _below(parts, "self_attn"), config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    if "qkv_proj.weight" in w:
        qkv = _linear(w, "qkv_proj", x).split([heads * head, kv_heads * head, kv_heads * head], -1)
    else:
        qkv = tuple(_linear(w, f"{name}_proj", x) for name in "qkv")
    q, k, v = (part.unflatten(-1, (-1, head)).transpose(1, 2) for part in qkv)
    if "q_norm.weight" in w:
        q, k = _norm(q, w["q_norm.weight"], config), _norm(k, w["k_norm.weight"], config)
    q, k = _rotated(q, config), _rotated(k, config)
    k, v = (part.repeat_interleave(heads // kv_heads, 1) for part in (k, v))
    scores = q @ k.transpose(-1, -2) / head**0.5
    future = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
    scores = scores.masked_fill(future, -torch.inf)
    if "sinks" in w:  # a logit that takes attention away and has no value
        sinks = w["sinks"].view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], -1)
    scores = scores.softmax(-1)[..., : x.shape[1]]
    return _linear(w, "o_proj", (scores @ v).transpose(1, 2).flatten(-2))


def _rotated(x: Tensor, config: Mapping[str, Any]) -> Tensor:
    half = x.shape[-1] // 2
    theta = config["rope_parameters"]["rope_theta"]
    frequencies = theta ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * frequencies
    first, second = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def _feed_forward(w: State, config: Mapping[str, Any], x: Tensor) -> Tensor:
    """Return what an MLP or its experts make of tokens [tokens, hidden]."""
    router = "router" if "router.weight" in w else "gate"
    if f"{router}.weight" not in w:
        return _mlp(w, x)
    chosen = _linear(w, router, x).softmax(-1).topk(config["num_experts_per_tok"])
    shares = chosen.values
    if config.get("norm_topk_prob", True):  # a softmax of the chosen ones' logits, too
        shares = shares / shares.sum(-1, keepdim=True)
    out = torch.zeros_like(x)
    for expert in range(w[f"{router}.weight"].shape[0]):
        share = (shares * (chosen.indices == expert)).sum(-1, keepdim=True)
        if "experts.gate_up_proj" in w:
            out += share * _gpt_oss_expert(_below(w, "experts"), expert, x)
        else:
            out += share * _mlp(_below(w, f"experts.{expert}"), x)
    if "shared_expert_gate.weight" in w:
        gate = _linear(w, "shared_expert_gate", x).sigmoid()
        out += gate * _mlp(_below(w, "shared_expert"), x)
    return out


def _mlp(w: State, x: Tensor) -> Tensor:
    if "gate_up_proj.weight" in w:
        gate, up = _linear(w, "gate_up_proj", x).chunk(2, -1)
        return _linear(w, "down_proj", functional.silu(gate) * up)
    names = ("w1", "w3", "w2") if "w1.weight" in w else ("gate_proj", "up_proj", "down_proj")
    gate, up = _linear(w, names[0], x), _linear(w, names[1], x)
    return _linear(w, names[2], functional.silu(gate) * up)


def _gpt_oss_expert(w: State, expert: int, x: Tensor) -> Tensor:
    """gpt-oss's: gate and up alternate, both have a limit of 7, and up counts from -1."""
    both = functional.linear(x, w["gate_up_proj"][expert], w["gate_up_proj_bias"][expert])
    gate = both[:, ::2].clamp(max=7.0)
    up = both[:, 1::2].clamp(-7.0, 7.0)
    hidden = (up + 1) * gate * torch.sigmoid(1.702 * gate)
    return functional.linear(hidden, w["down_proj"][expert], w["down_proj_bias"][expert])
