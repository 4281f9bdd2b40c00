"""A model in memory with new sizes: the arithmetic of files, on a module's own parameters."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gacprof.checkpoint import mirrored_files
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scanning import as_torch
from gacprof.core.errors import CheckpointError
from gacprof.resizing.changes import NewCheckpoint
from gacprof.resizing.output import notes_on
from gacprof.resizing.segments import Array
from gacprof.resizing.values import Resizer

if TYPE_CHECKING:
    import torch


def resize_model(model: torch.nn.Module, resizer: Resizer, inplace: bool) -> torch.nn.Module:
    """``model`` with new sizes: a copy of it, or itself if ``inplace``.

    Sizes, parameters, what layers say of themselves, and the config change together, all or
    nothing. A config has one width for all layers: where they now differ it stays as it was, and
    a ``UserWarning`` says so. Parameters that change are new objects (an optimiser needs them
    anew), on the old ones' device and of their dtype; all others stay as they are.
    """
    new, inventory = resizer.new, resizer.new.inventory
    made = {
        name: np.concatenate(list(resizer.blocks(tensor)))
        for name, tensor in new.tensors.items()
        if not tensor.unchanged or name not in inventory.tensors
    }
    names = [module.name for module in new.merged]
    target = model if inplace else _copied(model)
    _refuse_unknown(target, made, names)
    _merge(target, made, names)
    _assign(target, made)
    _set_ranks(target, new)
    mirrored = mirrored_files(inventory, new.sizes)
    _set_config(target, inventory, mirrored.get("config.json", {}))
    for note in notes_on(inventory, new.sizes, mirrored):
        warnings.warn(note, stacklevel=4)  # where realign was called
    return target


def _copied(model: torch.nn.Module) -> torch.nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # whatever a module of unknown make raises
        raise CheckpointError(
            f"the {type(model).__name__} cannot be copied ({type(error).__name__}: {error}): "
            "load it again and give inplace=True"
        ) from None


def _refuse_unknown(model: torch.nn.Module, made: Mapping[str, Array], merged: list[str]) -> None:
    """Raise before anything changes where something is not built as we know it."""
    from torch import nn

    from gacprof.checkpoint.layers import FactorPair, GroupedFactors, find_submodule

    for name in merged:
        if not isinstance(find_submodule(model, name), FactorPair | GroupedFactors):
            raise CheckpointError(
                f"'{name}' cannot be fused in memory: only models of gacprof.load_model have "
                "factors in one module; fuse the files"
            )
    for name in made:
        path, _, attribute = name.rpartition(".")
        if path not in merged and not isinstance(
            getattr(model.get_submodule(path), attribute, None), nn.Parameter
        ):
            raise CheckpointError(f"'{name}' is no parameter of the {type(model).__name__}")


def _merge(model: torch.nn.Module, made: Mapping[str, Array], merged: list[str]) -> None:
    """Put linear layers without data in the place of factors."""
    from torch import nn

    from gacprof.checkpoint.layers import put

    for name in merged:
        old = next(model.get_submodule(name).parameters())
        out, into = made[f"{name}.weight"].shape
        with_bias = f"{name}.bias" in made
        linear = nn.Linear(into, out, with_bias, device=old.device, dtype=old.dtype)
        put(model, name, linear.train(model.training).requires_grad_(old.requires_grad))


def _assign(model: torch.nn.Module, made: Mapping[str, Array]) -> None:
    from torch import nn

    from gacprof.checkpoint.layers import set_sizes

    shared: dict[int, nn.Parameter] = {}
    for name, array in made.items():
        path, _, attribute = name.rpartition(".")
        module = model.get_submodule(path)
        old = getattr(module, attribute)
        if id(old) not in shared:
            values = as_torch(array, old.dtype).to(old.device)
            shared[id(old)] = nn.Parameter(values, old.requires_grad)
        setattr(module, attribute, shared[id(old)])
        set_sizes(module)


def _set_ranks(model: torch.nn.Module, new: NewCheckpoint) -> None:
    """What factored modules keep of their ranks besides the parameters."""
    from gacprof.checkpoint.layers import set_ranks

    merged = {module.name for module in new.merged}
    for module in new.inventory.modules:
        ranks = new.inventory.ranks_of(module)
        if ranks and module.name not in merged:
            after = [new.sizes.get(rank.name) or rank.size for rank in ranks]
            set_ranks(model, module.name, [rank.size for rank in ranks], after)


def _set_config(model: torch.nn.Module, inventory: Inventory, new: Mapping[str, Any]) -> None:
    config = getattr(model, "config", None)
    for key, value in new.items() if config is not None else ():
        if value != inventory.config.get(key):
            _set_key(config, key, value)


def _set_key(config: Any, key: str, value: Any) -> None:
    inner = getattr(config, key, None)
    if isinstance(value, dict) and inner is not None and not isinstance(inner, dict):
        for name, entry in value.items():  # a text_config inside a multimodal one
            if getattr(inner, name, None) != entry:
                setattr(inner, name, entry)
    elif isinstance(config, dict):
        config[key] = value
    else:
        setattr(config, key, value)
