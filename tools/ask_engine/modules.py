"""Sizes and kernels of a model's modules, as the engine built them."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import partial
from typing import Any

import torch

from gacprof.virtual.run import launches

CHOSEN = ("Kernel", "Backend", "Experts", "Scheme", "LinearOp")
"""Words in the class names of what a quantisation method chooses."""
SIZES = (
    "input_size_per_partition",
    "output_partition_sizes",
    "num_heads",
    "num_kv_heads",
    "head_size",
)


def modules_of(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Every module with a quantisation method or an attention: sizes as dealt and as stored, and
    what was chosen to compute it."""
    rows = []
    for name, module in model.named_modules():
        if not hasattr(module, "quant_method") and not hasattr(module, "attn_backend"):
            continue
        method = getattr(module, "quant_method", None)
        chosen = dict(choices(method, set()))
        for holder in ("scheme", "runner", "impl"):
            chosen |= dict(choices(getattr(module, holder, None), set()))
        if hasattr(module, "attn_backend"):
            chosen["attention"] = class_name(module.attn_backend)
        dealt = {name: getattr(module, name) for name in SIZES if hasattr(module, name)}
        if hasattr(module, "output_size"):
            dealt.setdefault("output_partition_sizes", [module.output_size])
        settings = getattr(module, "moe_config", getattr(module, "moe_runner_config", None))
        experts = getattr(settings, "__dict__", {})
        dealt |= {name: value for name, value in experts.items() if type(value) is int}
        parameters = module.named_parameters(recurse=False)
        stored = {name: [str(p.dtype), *p.shape] for name, p in parameters}
        row = {"module": name, "class": class_name(module), "method": class_name(method)}
        rows.append(row | {"chosen": chosen, "dealt": dealt, "stored": stored})
    return rows


def class_name(value: Any) -> str:
    """The class that a choice is, or is one of."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    return value.__name__ if isinstance(value, type) else type(value).__name__


def choices(holder: Any, seen: set[int], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The kernels, backends and experts that are attributes of a method, and those of theirs."""
    for name, value in list(getattr(holder, "__dict__", {}).items()):
        is_choice = any(word in class_name(value) for word in CHOSEN) or "kernel" in name
        if not is_choice or id(value) in seen or isinstance(value, torch.nn.Module):
            continue
        seen.add(id(value))
        is_named = isinstance(value, Enum | type)
        if is_named or hasattr(value, "__dict__"):
            yield prefix + name, class_name(value)
        if not is_named:
            yield from choices(value, seen, f"{prefix}{name}.")


def note_launches(model: torch.nn.Module) -> dict[str, list[str]]:
    """Kernels by module, filled while the model runs."""
    kernels_by_module: dict[str, list[str]] = {}
    begins: dict[str, int] = {}

    def begin(name: str, *_: Any) -> None:
        begins[name] = len(launches())

    def end(name: str, *_: Any) -> None:
        kernels_by_module[name] = [launch.kernel for launch in launches()[begins[name] :]]

    modules = dict(model.named_modules())
    methods = [name for name, module in modules.items() if hasattr(module, "quant_method")]
    for name in {*methods, *(name.rpartition(".")[0] for name in methods)}:
        modules[name].register_forward_pre_hook(partial(begin, name))
        modules[name].register_forward_hook(partial(end, name))
    return kernels_by_module
