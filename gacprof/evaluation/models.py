"""The models that are evaluated: a path or a model in memory, as one that is ready to run."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gacprof.checkpoint import scan
from gacprof.checkpoint.load import load, stored_dtype
from gacprof.core.errors import (
    CheckpointError,
    GacprofError,
    MeasurementError,
    MemoryExhaustedError,
    first_line,
    is_out_of_memory,
)
from gacprof.devices.environment import free_bytes
from gacprof.devices.opening import present_device

Model = str | Path | nn.Module
"""A checkpoint's folder or file, or a transformers causal language model."""


def name_of(model: Model) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else str(model)


def distinct_names(names: Sequence[str]) -> tuple[str, ...]:
    """As much of each path, from its end, as tells the models apart; numbered where one comes
    twice (a model against itself is a fair question)."""
    parts = [Path(name).parts for name in names]
    for depth in range(1, max(map(len, parts)) + 1):
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


@contextmanager
def running(name: str, smaller: str) -> Iterator[None]:
    """What models raise while they are loaded and run, in a line: :class:`MemoryExhaustedError`
    that advises ``smaller``, or :class:`CheckpointError`; a foreign config makes them fail in any
    way."""
    try:
        yield
    except GacprofError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise MemoryExhaustedError(
                f"{name}: out of memory: {first_line(error)}; take {smaller}"
            ) from None
        said = f"{type(error).__name__}: {first_line(error)}"[:300]
        raise CheckpointError(f"{name}: its forward pass fails ({said})") from None


@contextmanager
def modes_kept(models: Sequence[Model]) -> Iterator[None]:
    """Models in memory are afterwards in the modes (training or not) that they were in."""
    modules = [part for model in models if isinstance(model, nn.Module) for part in model.modules()]
    modes = [module.training for module in modules]
    try:
        yield
    finally:
        for module, training in zip(modules, modes, strict=True):
            module.training = training


@dataclass(frozen=True)
class LoadedModels:
    """``replicate`` is the reference once more. It has weights of its own, unless ``shared`` says
    why it is the very same object. ``movable``: nobody else holds any of their weights."""

    models: tuple[nn.Module, ...]
    replicate: nn.Module
    shared: str
    movable: bool


def load_models(models: Sequence[Model], dtype: torch.dtype, device: torch.device) -> LoadedModels:
    """All models on the device; on a CPU, copies of those that were given in memory, where there is
    room. Raises :class:`MeasurementError` where the models do not fit."""
    paths = [model for model in models if not isinstance(model, nn.Module)]
    needed = sum(scan(path).parameters * dtype.itemsize for path in paths)
    free = free_bytes(str(device))
    if free is not None and needed > free:
        raise MeasurementError(
            f"the {len(models)} models need {needed / 1e9:.1f} GB together in {dtype}, {device} "
            f"has {free / 1e9:.1f} GB free: measure fewer at once, or in a smaller dtype"
        )
    loaded = [ready(model, dtype, device) for model in models]
    on_cpu = device.type == "cpu"
    if on_cpu:
        pairs = zip(loaded, models, strict=True)
        loaded = [_copied(one)[0] if one is given else one for one, given in pairs]
    held = any(one is given for one, given in zip(loaded, models, strict=True))
    replicate, shared = _copied(loaded[0])
    return LoadedModels(tuple(loaded), replicate, shared, on_cpu and not held)


def _copied(model: nn.Module) -> tuple[nn.Module, str]:
    """A copy; or the model itself, and why it cannot be held twice."""
    if getattr(model, "_compiled_call_impl", None) is not None:
        return model, "a compiled model's copy would not be compiled"
    device = next(model.parameters()).device
    size, free = sum(p.nbytes for p in model.parameters()), free_bytes(str(device))
    if free is not None and size > free:
        return model, f"a second copy needs {size / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
    try:
        return copy.deepcopy(model), ""
    except Exception as error:  # whatever a module's own attributes raise
        return model, f"it cannot be copied: {first_line(error)}"


def common_dtype(models: Sequence[Model]) -> torch.dtype:
    """The widest of all models' own."""
    own = [
        next(model.parameters()).dtype
        if isinstance(model, nn.Module)
        else stored_dtype(scan(model))
        for model in models
    ]
    return reduce(torch.promote_types, own)


def refuse_other_than_models(models: Sequence[Model]) -> None:
    """Raises :class:`CheckpointError` for what is neither a path nor a language model."""
    for model in models:
        runs = (
            isinstance(model, nn.Module)
            and hasattr(model, "config")
            and any(True for _ in model.parameters())
        )
        if not runs and not isinstance(model, (str, Path)):
            raise CheckpointError(
                f"{name_of(model)} is no model that can be run: give a checkpoint's path, or a "
                "transformers causal language model"
            )


def device_of(name: torch.device | str | None) -> torch.device:
    """The named device; by default the first GPU, else the CPU. An index is always given.

    Raises :class:`MeasurementError` for a device that is not there, or that torch has no name for.
    """
    found = present_device(None if name is None else str(name))
    kind, _, index = found.partition(":")
    if index and not index.isdigit():
        raise MeasurementError(f"models do not run on '{found}': sweeps do")
    return torch.device("cpu") if kind == "cpu" else torch.device(kind, int(index or 0))


def vocabulary(models: Sequence[nn.Module]) -> int:
    """How many token ids all the models know."""
    return min(int(text_config(model).vocab_size) for model in models)


def text_config(model: nn.Module) -> Any:
    config: Any = model.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def identical(a: nn.Module, b: nn.Module) -> bool:
    """Same class, same config, same tensors by name, dtype, shape and bytes, of models as they were
    loaded: then no timing can tell them apart."""
    first, second = dict(tensors_of(a)), dict(tensors_of(b))
    return (
        (type(a), _settings(a), first.keys()) == (type(b), _settings(b), second.keys())
        and all(_same_bytes(tensor, second[name]) for name, tensor in first.items())
    )  # fmt: skip


def _settings(model: nn.Module) -> dict[str, Any]:
    """The config, but for where it was read from."""
    config: Any = model.config
    left_out = ("_name_or_path", "transformers_version")
    return {k: v for k, v in config.to_dict().items() if k not in left_out}


def tensors_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers by name."""
    return chain(model.named_parameters(), model.named_buffers())


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """NaN is equal to itself here, and −0 is not 0."""
    flat = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(*flat)
