"""Several models in memory at once, the reference twice, or a clear word that they do not fit."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import nn

from gacprof.checkpoint import scan
from gacprof.checkpoint.load import stored_dtype
from gacprof.core.errors import MeasurementError
from gacprof.evaluation.subject import Model, ready


@dataclass(frozen=True)
class Together:
    """``replicate`` is the reference once more. It has weights of its own, unless ``shared`` says
    why it is the very same object."""

    models: tuple[nn.Module, ...]
    replicate: nn.Module
    shared: str = ""


def common_dtype(models: Sequence[Model]) -> torch.dtype:
    own = [
        next(model.parameters()).dtype
        if isinstance(model, nn.Module)
        else stored_dtype(scan(model))
        for model in models
    ]
    return reduce(torch.promote_types, own)


def load_together(models: Sequence[Model], dtype: torch.dtype, device: torch.device) -> Together:
    """All models on the device. Raises :class:`MeasurementError` where they do not fit."""
    needed = sum(
        scan(model).parameters * dtype.itemsize
        for model in models
        if not isinstance(model, nn.Module)
    )
    free = _free_bytes(device)
    if free is not None and needed > free:
        raise MeasurementError(
            f"the {len(models)} models need {needed / 1e9:.1f} GB together in {dtype}, {device} "
            f"has {free / 1e9:.1f} GB free: measure fewer at once, or in a smaller dtype"
        )
    loaded = tuple(ready(model, dtype, device) for model in models)
    shared = _why_shared(loaded[0], device)
    if shared:
        return Together(loaded, loaded[0], shared)
    first = models[0]
    if isinstance(first, nn.Module):
        return Together(loaded, copy.deepcopy(first).eval())
    return Together(loaded, ready(first, dtype, device))


def _why_shared(reference: nn.Module, device: torch.device) -> str:
    """Why the reference cannot be held twice; empty where it can."""
    if getattr(reference, "_compiled_call_impl", None) is not None:
        return "a compiled model's copy would not be compiled"
    size, free = sum(p.nbytes for p in reference.parameters()), _free_bytes(device)
    if free is not None and size > free:
        return f"a second copy needs {size / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
    return ""


def _free_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
