"""A model in memory with new sizes: the arithmetic of files, on a module's own parameters."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gacprof.checkpoint import mirrored_files
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.tensors import ModelReader, tensors_of
from gacprof.core.errors import CheckpointError
from gacprof.planning.schema import Plan
from gacprof.resizing import targets
from gacprof.resizing.beside import config_notes
from gacprof.resizing.binding import check_sizes
from gacprof.resizing.edits import Edit, Sizes, changes_of, edits_of
from gacprof.resizing.fusion import Output, blocks, fused_modules, outputs_of
from gacprof.resizing.originals import Originals
from gacprof.resizing.pieces import Array
from gacprof.resizing.resolve import Resolver

if TYPE_CHECKING:
    import torch

How = Plan | str | Path | Mapping[str, int | None]
"""A plan, its file, ``minimal`` or ``optimal``, or sizes by dim name (None: fuse)."""

Base = str | Path | Inventory | Any
"""Where the original weights are: a dense checkpoint, or a model in memory."""


def realign_model(
    model: torch.nn.Module, how: How, *, base: Base | None = None, inplace: bool = False
) -> torch.nn.Module:
    """``model`` with new sizes: a copy of it, or itself if ``inplace``.

    Sizes, parameters, what layers say of themselves, and the config change together, all or
    nothing. A config has one width for all layers: where they now differ it stays as it was, and
    a ``UserWarning`` says so. Parameters that change are new objects (an optimiser has to be
    told), on the old ones' device and of their dtype; all others stay as they are.

    Raises :class:`PlanError` for a plan that does not fit the model, :class:`CheckpointError`
    for a dim that may not change.
    """
    reader = ModelReader(model)
    inventory = reader.inventory
    sizes = _sizes(inventory, how)
    changes = changes_of(inventory, sizes)
    fused = fused_modules(inventory, sizes)
    originals = None if base is None else Originals(tensors_of(base), inventory)
    if originals is not None:
        changes = originals.inform(changes)
    outputs = outputs_of(inventory, edits_of(inventory, changes), fused)
    with tempfile.TemporaryDirectory(prefix="gacprof-") as folder:
        resolver = Resolver(reader, changes, Path(folder), originals)
        made = {
            name: np.concatenate(list(blocks(output, reader, resolver)))
            for name, output in outputs.items()
            if _is_new(output)
        }
    target = model if inplace else _copied(model)
    _refuse_unknown(target, made, [module.name for module in fused])
    _fuse(target, made, [module.name for module in fused])
    _assign(target, made)
    _tell(target, inventory, sizes)
    for note in config_notes(inventory, sizes):
        warnings.warn(note, stacklevel=3)
    return target


def _sizes(inventory: Inventory, how: How) -> Sizes:
    if isinstance(how, str) and how in targets.MULTIPLES:
        return targets.padded(inventory, targets.MULTIPLES[how])[0]
    if isinstance(how, Mapping):
        return dict(how)
    plan = how if isinstance(how, Plan) else Plan.load(how)
    check_sizes(plan, inventory)
    return plan.changes


def _is_new(output: Output) -> bool:
    return not isinstance(output, Edit) or bool(output.places)


def _copied(model: torch.nn.Module) -> torch.nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # whatever a module of unknown make raises
        raise CheckpointError(
            f"the {type(model).__name__} cannot be copied ({type(error).__name__}: {error}): "
            "load it again and give inplace=True"
        ) from None


def _refuse_unknown(model: torch.nn.Module, made: Mapping[str, Array], fused: list[str]) -> None:
    """Raise before anything changes where something is not built as we know it."""
    from torch import nn

    from gacprof.checkpoint.layers import FactorPair, GroupedFactors

    for name in fused:
        try:
            module = model.get_submodule(name)
        except AttributeError:
            module = None
        if not isinstance(module, FactorPair | GroupedFactors):
            raise CheckpointError(
                f"'{name}' cannot be fused in memory: only models of gacprof.load_model have "
                "factors in one module; fuse the files"
            )
    for name in made:
        path, _, attribute = name.rpartition(".")
        if path not in fused and not isinstance(
            getattr(model.get_submodule(path), attribute, None), nn.Parameter
        ):
            raise CheckpointError(f"'{name}' is no parameter of the {type(model).__name__}")


def _fuse(model: torch.nn.Module, made: Mapping[str, Array], fused: list[str]) -> None:
    """Put linear layers without data in the place of factors."""
    from torch import nn

    for name in fused:
        parent, _, child = name.rpartition(".")
        old = next(model.get_submodule(name).parameters())
        out, into = made[f"{name}.weight"].shape
        with_bias = f"{name}.bias" in made
        linear = nn.Linear(into, out, with_bias, device=old.device, dtype=old.dtype)
        linear.train(model.training).requires_grad_(old.requires_grad)
        setattr(model.get_submodule(parent), child, linear)


def _assign(model: torch.nn.Module, made: Mapping[str, Array]) -> None:
    from torch import nn

    from gacprof.checkpoint.layers import set_sizes

    shared: dict[int, nn.Parameter] = {}
    for name, array in made.items():
        path, _, attribute = name.rpartition(".")
        module = model.get_submodule(path)
        old = getattr(module, attribute)
        if id(old) not in shared:
            values = _to_torch(array, old.dtype).to(old.device)
            shared[id(old)] = nn.Parameter(values, old.requires_grad)
        setattr(module, attribute, shared[id(old)])
        set_sizes(module)


def _tell(model: torch.nn.Module, inventory: Inventory, sizes: Sizes) -> None:
    """What modules and the config say of their sizes beside the parameters."""
    from gacprof.checkpoint.layers import set_ranks, set_width

    for module in inventory.modules:
        ranks = [name for name in module.dims if inventory.dim(name).kind == "rank"]
        old = [inventory.dim(name).size for name in ranks]
        new = [sizes.get(name, size) for name, size in zip(ranks, old, strict=True)]
        left = [size for size in new if size is not None]
        if left and left == new:  # not fused
            set_ranks(model, module.name, old, left)
    for dim in inventory.dims:
        after = sizes.get(dim.name)
        if dim.kind == "width" and after is not None:
            set_width(model, dim.name.removesuffix(":width"), dim.size, after)
    config = getattr(model, "config", None)
    if config is None:
        return
    for key, value in mirrored_files(inventory, sizes).get("config.json", {}).items():
        if value != inventory.config.get(key):
            _set(config, key, value)


def _set(config: Any, key: str, value: Any) -> None:
    inner = getattr(config, key, None)
    if isinstance(value, dict) and inner is not None and not isinstance(inner, dict):
        for name, entry in value.items():  # a text_config inside a multimodal one
            if getattr(inner, name, None) != entry:
                setattr(inner, name, entry)
    elif isinstance(config, dict):
        config[key] = value
    else:
        setattr(config, key, value)


def _to_torch(array: Array, dtype: torch.dtype) -> torch.Tensor:
    import torch

    if array.dtype.kind == "f":
        return torch.from_numpy(array)
    whole = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}[array.dtype.itemsize]
    return torch.from_numpy(array.view(whole)).view(dtype)
