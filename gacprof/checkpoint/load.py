"""Build a checkpoint of any layout as a transformers model, every weight accounted for.

The model is built from its config on the meta device; then every layer that the checkpoint has
differently (factored, narrower, sliced) takes its place. No code that a checkpoint brings is run.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from gacprof.checkpoint.config import effective_config
from gacprof.checkpoint.inventory import AttentionHeads, Inventory, is_derived
from gacprof.checkpoint.layers import parameter_names, put_own_layers, set_parameter
from gacprof.checkpoint.scan import inventory_of
from gacprof.checkpoint.tensor_fit import factors_hint
from gacprof.checkpoint.tensors import read_tensor
from gacprof.core.dtypes import MULTIPLIED, dtype_name
from gacprof.core.errors import CheckpointError, ConfigError
from gacprof.devices.device import first_line


def load_model(
    checkpoint: str | Path | Inventory,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str = "cpu",
) -> nn.Module:
    """Build a checkpoint's model, in eval mode: factors as modules, per-layer widths right.

    Quantised weights need their own tool's library (compressed-tensors, GPTQModel …), by which
    transformers loads them.

    Parameters
    ----------
    checkpoint
        A folder, a weights file in it, or its inventory.
    dtype, device
        What to compute in (``bf16``; by default as stored, in the widest of several), and where.

    Returns
    -------
    torch.nn.Module
        transformers' own class that the config names, else its causal language model.

    Raises
    ------
    CheckpointError
        Where a parameter would stay without its weights, or a tensor unused; where the library of
        quantised weights is not installed.
    ConfigError
        Models are not computed in this dtype.

    Examples
    --------
    >>> model = gacprof.load_model("tests/fixtures/checkpoints/asvd_mha_r1")
    >>> type(model).__name__
    'LlamaForCausalLM'
    """
    inventory = inventory_of(checkpoint)
    target = torch_dtype(dtype or widest_dtype(inventory))
    if inventory.is_quantised:
        return quantised_model(inventory, target, device)
    model = build_skeleton(inventory, target)
    expected = sum(parameter.numel() for parameter in model.parameters())
    if expected > 2 * inventory.parameters:  # a tied head is at most as large as all that is stored
        raise CheckpointError(
            f"{inventory.path}: its config names a model of {expected:,} parameters, its files "
            f"hold {inventory.parameters:,}"
        )
    names = parameter_names(inventory)
    state = {}
    for name in weights_of(inventory):
        tensor = read_tensor(inventory, name)
        kept = target if tensor.is_floating_point() else tensor.dtype
        # Copied one by one, so that files and model are never both in memory as a whole
        place = torch.empty(tensor.shape, dtype=kept, device=device)
        state[names.get(name, name)] = place.copy_(tensor)
    model = with_weights(model, state, inventory)
    is_wide = target == torch.float64
    if any(d.role.startswith("expert") and (is_wide or d.size % 16) for d in inventory.dims):
        # torch's grouped product takes no float64, and only rows that are multiples of 16 bytes
        model.set_experts_implementation("eager")
    return model.to(device).eval().requires_grad_(False)


def quantised_model(
    inventory: Inventory, dtype: torch.dtype, device: torch.device | str
) -> nn.Module:
    """Load quantised weights by transformers and the library of the tool that made them."""
    with one_line_errors(inventory):
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            inventory.folder,
            dtype=dtype,
            device_map=str(device),
            local_files_only=True,
            output_loading_info=True,
        )
        model = model.to(dtype)
    odd = {*report["missing_keys"], *report["mismatched_keys"], *report["unexpected_keys"]}
    if odd:
        raise CheckpointError(
            f"{inventory.path}: {min(map(str, odd))} is not loaded by transformers "
            f"{transformers.__version__}"
        )
    return model.eval().requires_grad_(False)


def weights_of(inventory: Inventory) -> set[str]:
    """Return the names of the tensors that a model does not make for itself."""
    return {name for name in inventory.tensors if not is_derived(name)}


def torch_dtype(name: torch.dtype | str) -> torch.dtype:
    """Return a type that models are computed in, by torch's name or a short one (``bf16``)."""
    if dtype_name(name) not in MULTIPLIED:
        raise ConfigError(f"models are not computed in '{name}': use float32, bfloat16 or float16")
    return getattr(torch, dtype_name(name))


def widest_dtype(inventory: Inventory) -> torch.dtype:
    """Return the widest type that a checkpoint stores and models are computed in."""
    stored = {info.dtype for info in inventory.tensors.values()}
    if stored.isdisjoint(MULTIPLIED):
        raise CheckpointError(
            f"{inventory.path} stores no type that models are computed in: name a dtype"
        )
    return reduce(torch.promote_types, map(torch_dtype, stored & MULTIPLIED))


@contextlib.contextmanager
def one_line_errors(inventory: Inventory) -> Iterator[None]:
    """Raise what a library raises inside as one line that names the checkpoint, without its
    reports."""
    logging = transformers.utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    except Exception as error:
        raise CheckpointError(
            f"{inventory.path}: transformers {transformers.__version__} does not run this model of "
            f"type '{inventory.config.get('model_type')}': {first_line(error)}"
        ) from error
    finally:
        logging.set_verbosity(level)


def build_skeleton(inventory: Inventory, dtype: torch.dtype) -> Any:
    """Build the model without weights, every parameter on the meta device and of its shape."""
    if inventory.is_quantised:
        raise CheckpointError(f"{inventory.path} is quantised: only its own library builds it")
    with parameters_on_meta():
        model = model_of_config(inventory, dtype)
        put_own_layers(model, inventory)
        fit_shapes(model, inventory)
    counts = Counter(attention.layer for attention in inventory.attentions)
    for attention in inventory.attentions:
        if counts[attention.layer] == 1:  # else two towers have a layer of this number
            fit_heads(model, attention)
    return model


@contextlib.contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Give modules made in the block parameters without memory, and buffers with their values."""
    # torch.device("meta") would take the buffers too, whose values no file has
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def model_of_config(inventory: Inventory, dtype: torch.dtype) -> Any:
    """Build the model of the class that the config names, else its causal language model."""
    config = config_of(inventory)
    config.dtype = dtype
    with one_line_errors(inventory):
        for name in inventory.config.get("architectures", ()):
            model_class: Any = getattr(transformers, str(name), None)
            # A class of that name may be built from another config than this one
            if getattr(model_class, "config_class", None) is type(config):
                return model_class._from_config(config)
        return transformers.AutoModelForCausalLM.from_config(config)


def config_of(inventory: Inventory) -> Any:
    """Build transformers' config; heads that do not divide a pruned hidden size are set last."""
    values = json.loads(json.dumps(effective_config(inventory)), object_hook=read_special_float)
    names = ("num_attention_heads", "num_key_value_heads")
    heads = {key: values[key] for key in names if key in values and "head_dim" in values}
    with one_line_errors(inventory):
        config_class = transformers.CONFIG_MAPPING[values["model_type"]]
        # Its check wants heads that divide the hidden size, even beside a head_dim
        config = config_class.from_dict(values | dict.fromkeys(heads, 1))
        config.update(heads)
    return config


def read_special_float(value: dict[str, Any]) -> Any:
    """Return a number that transformers 5 writes as {"__float__": "Infinity"}; else the object."""
    return float(value["__float__"]) if value.keys() == {"__float__"} else value


def fit_shapes(model: nn.Module, inventory: Inventory) -> None:
    """Give every parameter the shape that the file has for it."""
    parameters, names = dict(model.named_parameters()), parameter_names(inventory)
    for tensor, info in inventory.tensors.items():
        name = names.get(tensor, tensor)
        if name not in parameters or parameters[name].shape == info.shape:
            continue
        if not set_parameter(model, name, torch.empty(info.shape)):
            raise CheckpointError(
                f"{inventory.path}: {tensor} is {list(info.shape)}, its config makes it "
                f"{list(parameters[name].shape)}: mend the config"
            )


def fit_heads(model: nn.Module, attention: AttentionHeads) -> None:
    """Set the head counts of a layer, where a pruned one has fewer heads than the config says."""
    for module in model.modules():
        if getattr(module, "layer_idx", None) == attention.layer and hasattr(module, "head_dim"):
            vars(module).update(
                num_heads=attention.heads,
                num_key_value_heads=attention.kv_heads,
                num_key_value_groups=attention.heads // attention.kv_heads,
            )


def with_weights(model: Any, state: dict[str, torch.Tensor], inventory: Inventory) -> Any:
    """Return the model with its weights, none left random and none unused."""
    tied: set[str] = set()
    if getattr(model.config, "tie_word_embeddings", False):
        tied = set(model._tied_weights_keys or ()) - state.keys()
    odd = (model.state_dict().keys() - tied) ^ state.keys()
    if not odd:
        model.load_state_dict(state, strict=False, assign=True)
        if tied:
            model.tie_weights()
        return model
    # transformers keeps a mixture's experts in one tensor and splits them on saving: its own
    # loading knows the names of both. It gets no path, from which it would read more.
    if all(dim.kind == "width" for dim in inventory.dims):
        with one_line_errors(inventory):
            model, report = type(model).from_pretrained(
                None,
                config=model.config,
                state_dict=state,
                dtype=model.config.dtype,
                output_loading_info=True,
            )
        odd = {*report["missing_keys"], *report["mismatched_keys"], *report["unexpected_keys"]}
    if odd:
        raise CheckpointError(
            f"{inventory.path}: its config names another model than its tensors: "
            f"{min(map(str, odd))} stands in one of them only{factors_hint(inventory)}"
        )
    return model
