"""What is put to the proof: a checkpoint's path or a model in memory, as a model ready to run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gacprof.checkpoint.load import dtype_of, load
from gacprof.core.errors import CheckpointError, MeasurementError

Model = str | Path | nn.Module
"""A checkpoint's folder or file, or a transformers causal language model."""

Inputs = Any
"""Token ids [batch, tokens]: a tensor, an array, or nested lists."""

CPU_BF16 = frozenset({"amx_bf16", "avx512_bf16", "avx_ne_convert", "bf16"})
CPU_FP16 = frozenset({"amx_fp16", "avx512_fp16", "fphp", "asimdhp"})
"""Flags in Linux's /proc/cpuinfo; the last ones are Arm's."""


def name_of(model: Model) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else str(model)


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """As much of each path, from its end, as tells the models apart; numbered where one comes
    twice (a model against itself is a fair question)."""
    parts = [Path(name).parts for name in names]
    deepest = max(len(p) for p in parts)
    for depth in range(1, deepest + 1):
        short = ["/".join(p[-depth:]) for p in parts]
        if len(set(short)) == len(set(names)):
            break
    else:
        short = list(names)
    return tuple(
        f"{name} ({short[: i + 1].count(name)})" if short.count(name) > 1 else name
        for i, name in enumerate(short)
    )


def ready(model: Model, dtype: torch.dtype | None, device: torch.device) -> nn.Module:
    """The model in ``dtype`` on ``device``, in eval mode.

    A path is loaded. A model in memory is used as it is, and has to be there and in that dtype
    already: what belongs to the caller is not converted.
    """
    if not isinstance(model, nn.Module):
        return load(model, dtype, device).model
    parameter = next(model.parameters())
    if parameter.device != device or (dtype is not None and parameter.dtype != dtype):
        raise CheckpointError(
            f"{name_of(model)} is {parameter.dtype} on {parameter.device}, {dtype} on {device} is "
            "asked for: move it there, or give its path"
        )
    return model.eval()


def device_of(name: torch.device | str | None) -> torch.device:
    """The named device; by default the first GPU, else the CPU. An index is always given."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise MeasurementError(f"unknown device '{name}': use cpu, cuda or cuda:N") from None
    if device.type == "cuda":
        index = device.index or 0
        if index >= torch.cuda.device_count():
            raise MeasurementError(f"there is no device '{name}' here")
        return torch.device("cuda", index)
    if device.type != "cpu":
        raise MeasurementError(f"device '{name}' is not supported: use cpu or cuda")
    return torch.device("cpu")


def chosen_dtype(name: torch.dtype | str | None) -> torch.dtype | None:
    return None if name is None else dtype_of(name)


def multiplies(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the device has instructions for products in ``dtype``; true where unknown."""
    wanted = {torch.bfloat16: CPU_BF16, torch.float16: CPU_FP16}.get(dtype)
    if device.type != "cpu" or wanted is None:
        return True
    try:
        told = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return True
    return bool(told & wanted)


def vocabulary(models: Sequence[nn.Module]) -> int:
    """How many token ids all the models know."""
    return min(int(_text_config(model).vocab_size) for model in models)


def layers(model: nn.Module) -> int:
    return int(_text_config(model).num_hidden_layers)


def positions(model: nn.Module) -> int | None:
    """How many tokens a sequence may have, by the config; None where it does not say."""
    most = getattr(_text_config(model), "max_position_embeddings", None)
    return int(most) if most else None


def _text_config(model: nn.Module) -> Any:
    config: Any = model.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config
