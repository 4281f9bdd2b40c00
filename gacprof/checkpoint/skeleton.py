"""A transformers model without weights whose layers have the shapes that the file has.

Built from the config with parameters on the meta device; then every layer that the checkpoint
has differently (factored, narrower, sliced) takes its place.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from gacprof.checkpoint.config import (
    effective_config,
    passed,
    refuse_oversized,
    require_transformers,
    without_heads,
)
from gacprof.checkpoint.inventory import AttentionHeads, Inventory
from gacprof.checkpoint.layers import (
    factors_of,
    find_submodule,
    parameter_names,
    put,
    set_sizes,
    split_experts,
    submodule,
)
from gacprof.checkpoint.layouts import layout_named
from gacprof.core.errors import CheckpointError


def build_skeleton(inventory: Inventory, dtype: torch.dtype) -> tuple[nn.Module, dict[str, str]]:
    """The model, its parameters on the meta device, and parameter names by tensor names.

    Tensors that are not in the mapping keep their name. Buffers that no file holds (rotary
    frequencies) are real, on the CPU. Raises :class:`CheckpointError` where the config names no
    model that this transformers has, or a layer does not fit it.
    """
    with parameters_on_meta(most=2 * len(inventory.tensors) + 1000):
        model = _from_config(inventory, dtype)
        split_experts(model, inventory)
        names = _replace_factored(model, inventory)
        layout_named(inventory.layout).adapt(model, inventory)
        _fit_shapes(model, inventory, names)
    for attention in inventory.attentions:
        _fit_heads(model, inventory, attention)
    return model, names


@contextlib.contextmanager
def parameters_on_meta(most: int) -> Iterator[None]:
    """Modules made inside have parameters without memory, and real buffers.

    ``torch.device("meta")`` would take the buffers too, whose values only the constructors know.
    Raises :class:`CheckpointError` for the parameter after ``most``.
    """
    register = nn.Module.register_parameter
    made = 0

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal made
        made += 1
        if made > most:
            raise CheckpointError(
                f"its config makes more than {most} parameters, many more than it has tensors: "
                "config and tensors disagree"
            )
        register(module, name, parameter)
        held = module._parameters.get(name)
        if held is not None and not held.is_meta:
            module._parameters[name] = nn.Parameter(held.to("meta"), held.requires_grad)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


@contextlib.contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Inside, transformers shows neither warnings nor progress bars. Its GGUF reader draws one
    whatever is set, so that stderr is kept from it."""
    log = transformers.utils.logging
    verbosity = log.get_verbosity()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        log.set_verbosity(verbosity)
        log.enable_progress_bar()


def _from_config(inventory: Inventory, dtype: torch.dtype) -> nn.Module:
    transformers = require_transformers()
    values = effective_config(inventory)
    kind = values["model_type"]
    if kind not in transformers.CONFIG_MAPPING:
        raise CheckpointError(
            f"{inventory.path}: transformers {transformers.__version__} has no model type '{kind}'"
        )
    refuse_oversized(values, inventory)
    try:
        own = transformers.CONFIG_MAPPING[kind]
        values = passed(values, own)
        values["torch_dtype"] = str(dtype).removeprefix("torch.")  # the name all versions read
        values, heads = without_heads(values)
        config = own.from_dict(values)
        for key, value in heads.items():
            setattr(config, key, value)
        return transformers.AutoModelForCausalLM.from_config(config)
    except CheckpointError as error:
        raise CheckpointError(f"{inventory.path}: {error}") from None
    except Exception as error:  # what a foreign config raises in transformers has no common type
        said = str(error).strip() or type(error).__name__
        reason = said.splitlines()[-1].strip()[:300]
        raise CheckpointError(
            f"{inventory.path}: transformers builds no causal language model from this config: "
            f"{reason}"
        ) from None


def _replace_factored(model: nn.Module, inventory: Inventory) -> dict[str, str]:
    names: dict[str, str] = {}
    for module in inventory.modules:
        if module.kind not in ("factored", "grouped"):
            continue
        linear = submodule(model, module.name, inventory)
        if not isinstance(linear, nn.Linear):
            raise CheckpointError(
                f"{inventory.path}: {module.name} is factored, and {type(linear).__name__} of "
                f"{type(model).__name__} is not a linear layer"
            )
        put(model, module.name, factors_of(module))
        names |= parameter_names(module)
    return names


def _fit_shapes(model: nn.Module, inventory: Inventory, names: dict[str, str]) -> None:
    """Give every parameter the shape that the file has for it."""
    for tensor, info in inventory.tensors.items():
        path, _, attribute = names.get(tensor, tensor).rpartition(".")
        module = find_submodule(model, path)
        parameter = getattr(module, attribute, None)  # load.py says what becomes of a stray one
        if not isinstance(parameter, nn.Parameter) or parameter.shape == info.shape:
            continue
        fits = parameter.dim() == len(info.shape)
        if fits:
            setattr(module, attribute, nn.Parameter(torch.empty(info.shape)))
        if not fits or not set_sizes(module):
            raise CheckpointError(
                f"{inventory.path}: {tensor} is {list(info.shape)}, the config makes its "
                f"{type(module).__name__} {list(parameter.shape)}: config and tensors disagree"
            )


def _fit_heads(model: nn.Module, inventory: Inventory, attention: AttentionHeads) -> None:
    """Per-layer head counts, where a pruned layer has fewer heads than the config says."""
    for name, module in model.named_modules():
        if getattr(module, "layer_idx", None) != attention.layer or not hasattr(module, "head_dim"):
            continue
        if module.head_dim != attention.head_dim:
            raise CheckpointError(
                f"{inventory.path}: {name} has heads of {attention.head_dim} by its tensors and "
                f"of {module.head_dim} by its config; set head_dim in config.json"
            )
        counts = {
            "num_heads": attention.heads,
            "num_key_value_heads": attention.kv_heads,
            "num_key_value_groups": attention.heads // attention.kv_heads,
        }
        for key, value in counts.items():
            if hasattr(module, key):
                setattr(module, key, value)
