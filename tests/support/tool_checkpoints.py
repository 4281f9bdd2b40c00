"""Whole checkpoints from the fixtures that are headers only: the tools' own names, shapes, dtypes,
pickles and configs around weights that are made here.

One dense Llama underlies them all. Its weights are those of the ASVD fixture, with each pair of
factors multiplied out and some noise of a small rank added for what ASVD left out. From it come
the best factors for PaLU and SVD-LLM, rows and columns for LLM-Pruner and Torch-Pruning, and a
sliced residual stream for SliceGPT. Each folder has a ``ground_truth.npz`` like the original ones:
the logits are those of transformers' own Llama with dense weights of the same function.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from checkpoint_making import restored
from safetensors.numpy import load_file

Weights = dict[str, np.ndarray]

ASVD = "asvd_mha_r1"
HEADERS_ONLY = (
    "base_mha",
    "palu_mha_gs4_block1",
    "svdllm_mha_0.6",
    "llmpruner_mha_global_mlp_0.3",
    "slicegpt_mha_s0.22_r1",
    "torchpruning_mha_0.3",
)
HEAD_DIM, LEFT_OUT = 32, 24
PARTS = re.compile(r"(.+\.)([qkvo]|gate|up|down)_([uv])_proj\.weight")


def write_all(fixtures: Path, into: Path) -> Path:
    """All checkpoints, in folders of ``into`` with the names of the original ones."""
    shutil.copytree(fixtures / ASVD, into / ASVD)
    dense = dense_weights(fixtures / ASVD)
    for name in HEADERS_ONLY:
        folder = restored(fixtures / f"{name}.headers", into)
        fill(folder, dense, np.load(fixtures / ASVD / "ground_truth.npz")["input_ids"])
    return into


def dense_weights(asvd: Path) -> Weights:
    """The dense model, in float16, by plain names."""
    rng = np.random.default_rng(0)
    dense = load_file(asvd / "model.safetensors")
    for outer in [name for name in dense if name.endswith(".ALinear.weight")]:
        module = outer.removesuffix(".ALinear.weight")
        u, v = dense.pop(outer), dense.pop(f"{module}.BLinear.weight")
        weight = u.astype(np.float32) @ v.astype(np.float32)
        left, right = (rng.standard_normal((n, LEFT_OUT), np.float32) for n in weight.shape)
        weight += 0.3 * weight.std() / LEFT_OUT**0.5 * left @ right.T
        dense[f"{module}.weight"] = weight.astype(np.float16)
    return dense


def fill(folder: Path, dense: Weights, ids: np.ndarray) -> None:
    """Put weights into a restored checkpoint, and beside it what they give for ``ids``."""
    from gacprof.checkpoint import scan

    inventory = scan(folder)
    shapes = {name: info.shape for name, info in inventory.tensors.items()}
    config = json.loads((folder.parent / "base_mha" / "config.json").read_text())
    if inventory.layout == "slicegpt":
        weights, same = sliced(dense)
        config["rms_norm_eps"] = 1e-5  # SliceGPT's own, whatever the config says
    elif inventory.layout in ("palu", "svd-llm"):
        weights, same = factored(dense, shapes)
    elif folder.name.startswith("torchpruning"):
        weights, same = submatrices(dense, shapes)
        config["rms_norm_eps"] *= shapes["model.norm.weight"][0] / config["hidden_size"]
    else:
        weights, same = narrowed(dense, shapes)
    for name, info in inventory.tensors.items():
        if name.endswith("rotary_emb.inv_freq"):
            values = 10000.0 ** (-np.arange(info.shape[0]) / info.shape[0])
        else:
            values = weights[name]
        file = np.memmap(folder / info.file, np.uint8, "r+")
        step = np.dtype(info.dtype).itemsize
        stride = info.stride and tuple(step * n for n in info.stride)
        np.ndarray(info.shape, info.dtype, file, info.offset, stride)[...] = values
    logits = logits_of(config, same, ids)
    np.savez(folder / "ground_truth.npz", input_ids=ids, logits=logits, logits_fp32_rope=logits)


def logits_of(config: Mapping[str, Any], weights: Weights, ids: np.ndarray) -> np.ndarray:
    """Of transformers' own class, in float32."""
    import torch
    import transformers

    settings = {k: v for k, v in config.items() if k not in ("torch_dtype", "architectures")}
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
    state = {name: torch.from_numpy(w.astype(np.float32)) for name, w in weights.items()}
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    with torch.no_grad():
        return model.eval()(torch.from_numpy(ids)).logits.numpy()


def best(weight: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """The best factors of that rank, by the eigenvectors of the smaller Gram matrix."""
    weight = weight.astype(np.float32)
    if weight.shape[0] > weight.shape[1]:
        inner, outer = best(weight.T, rank)
        return outer.T, inner.T
    outer = np.linalg.eigh(weight @ weight.T)[1][:, ::-1][:, :rank]
    return outer, outer.T @ weight


def factored(dense: Weights, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Weights, Weights]:
    """PaLU's groups of rows, SVD-LLM's pairs: as stored, and multiplied out again."""
    weights, same = {name: dense[name] for name in shapes if name in dense}, dict(dense)
    for name in shapes:
        if name.endswith(".VT.weight"):
            module = name.removesuffix(".VT.weight")
            outer = [n for n in shapes if n.startswith(f"{module}.U.")]
            rows = np.split(dense[f"{module}.weight"], len(outer))
            pairs = [best(w, shapes[n][1]) for n, w in zip(outer, rows, strict=True)]
            pairs = [(u.astype(np.float16), v.astype(np.float16)) for u, v in pairs]
            weights |= {n: u for n, (u, _) in zip(outer, pairs, strict=True)}
            weights[name] = np.concatenate([v for _, v in pairs])
            same[f"{module}.weight"] = np.concatenate(
                [u.astype(np.float64) @ v.astype(np.float64) for u, v in pairs]
            )
        elif (part := PARTS.fullmatch(name)) and part[3] == "u":
            plain, inner = f"{part[1]}{part[2]}_proj.weight", f"{part[1]}{part[2]}_v_proj.weight"
            weights[name], weights[inner] = best(dense[plain], shapes[name][1])
            same[plain] = weights[name].astype(np.float64) @ weights[inner]
    return weights, same


def kept(whole: int, size: int) -> np.ndarray:
    """``size`` of the indices below ``whole``, the same for each pair of numbers."""
    return np.sort(np.random.default_rng(whole + size).permutation(whole)[:size])


def narrowed(dense: Weights, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Weights, Weights]:
    """LLM-Pruner's MLPs: what is cut off there is zero in the dense model of the same function."""
    weights, same = dict(dense), dict(dense)
    for name in dense:
        if ".mlp." in name:
            axis = int("down_proj" in name)
            stays = kept(dense[name].shape[axis], shapes[name][axis])
            weights[name] = dense[name].take(stays, axis)
            if axis:
                same[name] = np.zeros_like(dense[name])
                same[name][:, stays] = weights[name]
    return weights, same


def submatrices(dense: Weights, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Weights, Weights]:
    """Torch-Pruning's plain, smaller model: some axes, whole heads, some of the width. The dense
    model has zeros for what was cut off; its norms divide by the root of another hidden size."""
    hidden, width, channels = (
        shapes[name][0]
        for name in (
            "model.norm.weight",
            "model.layers.0.mlp.gate_proj.weight",
            "model.layers.0.self_attn.q_proj.weight",
        )
    )
    whole = len(dense["model.norm.weight"])
    heads = kept(whole // HEAD_DIM, channels // HEAD_DIM)
    stays = {
        hidden: kept(whole, hidden),
        width: kept(len(dense["model.layers.0.mlp.gate_proj.weight"]), width),
        channels: np.ravel(heads[:, None] * HEAD_DIM + np.arange(HEAD_DIM)),
    }
    weights, same = {}, {}
    for name, shape in shapes.items():
        index = np.ix_(*(stays.get(size, np.arange(size)) for size in shape))
        weights[name] = dense[name][index]
        same[name] = np.zeros(dense[name].shape, np.float32)
        same[name][index] = weights[name] * (np.sqrt(hidden / whole) if len(shape) == 1 else 1)
    return weights, same


def sliced(dense: Weights, width: int = 199) -> tuple[Weights, Weights]:
    """SliceGPT's rotated and cut residual stream. Each rotation here takes the same ``width`` of
    the axes, in an order and with signs of its own: the dense model of the same function is the
    one that writes nothing to the other axes."""
    rng = np.random.default_rng(0)
    hidden = len(dense["model.norm.weight"])
    axes = kept(hidden, width)

    def rotation() -> np.ndarray:
        columns = np.zeros((hidden, width), np.float32)
        columns[rng.permutation(axes), np.arange(width)] = rng.choice([-1, 1], width)
        return columns

    weights: Weights = {}
    same = {name: np.ones_like(weight) for name, weight in dense.items() if weight.ndim == 1}

    def reads(name: str, norm: str, by: np.ndarray) -> None:
        """A weight that takes the residual stream, its norm's weight absorbed."""
        same[name] = (dense[name] * dense[norm].astype(np.float32)).astype(np.float16)
        weights[name] = same[name].astype(np.float32) @ by

    def writes(name: str, by: np.ndarray) -> None:
        weights[name] = by.T @ dense[name].astype(np.float32)
        same[name] = by @ weights[name]

    at = rotation()
    weights["model.embed_tokens.weight"] = (
        dense["model.embed_tokens.weight"].astype(np.float32) @ at
    )
    same["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"] @ at.T
    layers = 1 + max(int(name.split(".")[2]) for name in dense if ".layers." in name)
    for i in range(layers):
        layer = f"model.layers.{i}"
        for part in "qkv":
            reads(f"{layer}.self_attn.{part}_proj.weight", f"{layer}.input_layernorm.weight", at)
        at, before = rotation(), at
        weights[f"{layer}.attn_shortcut_Q"] = before.T @ at
        writes(f"{layer}.self_attn.o_proj.weight", at)
        for part in ("gate", "up"):
            reads(f"{layer}.mlp.{part}_proj.weight", f"{layer}.post_attention_layernorm.weight", at)
        # the last layer writes, and the head reads, the whole stream
        at, before = rotation() if i < layers - 1 else np.eye(hidden, dtype=np.float32), at
        weights[f"{layer}.mlp_shortcut_Q"] = before.T @ at
        writes(f"{layer}.mlp.down_proj.weight", at)
    reads("lm_head.weight", "model.norm.weight", at)
    return weights, same
