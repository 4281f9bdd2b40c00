"""Sizes and kernels of a model's modules, as vLLM built them."""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import Any

import torch

from gacprof.extras.virtual.launches import launches

CHOSEN = ("Kernel", "Backend", "Experts", "Scheme", "LinearOp")
"""Words in the class names of what a quantisation method chooses."""
SIZES = (
    "input_size_per_partition",
    "output_size_per_partition",
    "output_partition_sizes",
    "num_embeddings_per_partition",
    "num_heads",
    "num_kv_heads",
    "head_size",
)
DEPTH = 3


def shapes_of(module: torch.nn.Module, *, recurse: bool = True) -> dict[str, list[Any]]:
    """Type and shape of each parameter."""
    parameters = module.named_parameters(recurse=recurse)
    return {name: [str(p.dtype).removeprefix("torch."), *p.shape] for name, p in parameters}


def modules_of(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Every module that has a quantisation method or an attention backend."""
    rows = []
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        backend = getattr(module, "attn_backend", None)
        if method is None and backend is None:
            continue
        chosen = choices(method, DEPTH, set())
        for attribute in ("scheme", "runner", "impl"):
            choice = getattr(module, attribute, None)
            if choice is not None:
                chosen[attribute] = class_name(choice)
                chosen |= choices(choice, DEPTH, set())
        if backend is not None:
            chosen["attention"] = class_name(backend)
        experts = vars(getattr(module, "moe_config", None) or object.__new__(Empty))
        dealt = {name: getattr(module, name) for name in SIZES if hasattr(module, name)}
        dealt |= {name: value for name, value in experts.items() if type(value) is int}
        row = {"module": name, "class": class_name(module), "method": class_name(method)}
        rows.append(
            row | {"chosen": chosen, "dealt": dealt, "stored": shapes_of(module, recurse=False)}
        )
    return rows


def note_launches(model: torch.nn.Module) -> dict[str, list[str]]:
    """Kernels by module, filled while the model runs: those of a linear, attention or experts."""
    kernels_by_module: dict[str, list[str]] = {}
    begins: dict[str, int] = {}

    def begin(name: str, *_: Any) -> None:
        begins[name] = len(launches())

    def end(name: str, *_: Any) -> None:
        kernels_by_module[name] = [launch.kernel for launch in launches()[begins[name] :]]

    modules = dict(model.named_modules())
    methods = [name for name, m in modules.items() if hasattr(m, "quant_method")]
    for name in {*methods, *(name.rpartition(".")[0] for name in methods)}:
        modules[name].register_forward_pre_hook(partial(begin, name))
        modules[name].register_forward_hook(partial(end, name))
    return kernels_by_module


class Empty:
    """A module without experts has no settings of them."""


def class_name(value: Any) -> str:
    """The class that a choice is, or is one of."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    return value.__name__ if isinstance(value, type) else type(value).__name__


def choices(holder: Any, depth: int, seen: set[int]) -> dict[str, str]:
    """The kernels, backends and experts that are attributes of a method, and theirs."""
    found_by_name: dict[str, str] = {}
    for name, value in list(getattr(holder, "__dict__", {}).items()):
        if value is None or id(value) in seen or isinstance(value, torch.nn.Module | torch.Tensor):
            continue
        kind = class_name(value)
        if any(word in kind for word in CHOSEN) or "kernel" in name:
            seen.add(id(value))
            if isinstance(value, Enum | type) or hasattr(value, "__dict__"):
                found_by_name[name] = kind
            if depth and not isinstance(value, Enum | type):
                inner = choices(value, depth - 1, seen)
                found_by_name |= {f"{name}.{key}": choice for key, choice in inner.items()}
    return found_by_name
