"""Read the inventory of a folder, a hub's model or a model in memory: from headers only."""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.checkpoint.containers import (
    check_link,
    find_weights,
    read_hub,
    read_json_object,
    read_weights,
    weights_in,
)
from gacprof.checkpoint.inventory import Contents, Inventory, TensorInfo
from gacprof.checkpoint.layouts.describe import describe
from gacprof.checkpoint.layouts.widths import IN_HALVES
from gacprof.checkpoint.storage import TABLES
from gacprof.core.errors import CheckpointError, ConfigError
from gacprof.core.files import read_object

if TYPE_CHECKING:
    from torch import nn

_SIDE_FILES = re.compile(
    r"tokenizer.*|special_tokens_map\.json|added_tokens\.json|vocab\..*|merges\.txt|.*\.tiktoken"
    r"|spiece\.model|chat_template.*|((generation|quantize|quant)_)?config\.json"
    r"|.*processor_config\.json|(configuration|modeling|tokenization)_.*\.py|LICENSE.*|NOTICE.*"
)
"""Files that belong to a checkpoint besides its weights."""
FORMAT_FILES: Mapping[str, str] = TABLES["files"]
"""Files beside config.json that state a format, and whose it is."""
MAX_BASE_NAME = 200  # characters of a stranger's text that a message shows
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@[\w./-]{1,100})?")


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Make many small objects without collecting garbage: a third of the time of 90,000 tensors."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@collector_paused()
def scan(path: str | Path, *, factors: tuple[str, str] | None = None) -> Inventory:
    """Describe a checkpoint from its headers: layers, products, adjustable dims.

    Parameters
    ----------
    path
        A folder, a weights file in it, or a model on the hub (``org/name`` or
        ``org/name@revision``) where there is no such folder.
    factors
        Tensor name patterns of a factored layout that is not recognised by itself: the outer
        factor's [out, r], and the inner one's [r, in], with ``{module}`` in each.

    Returns
    -------
    Inventory
        No tensor data was read to make it.

    Raises
    ------
    CheckpointError
        Where there is no checkpoint but an adapter, a file is broken, or factors do not fit.

    Examples
    --------
    >>> inventory = gacprof.scan("tests/fixtures/checkpoints/asvd_mha_r1")
    >>> inventory.layout, len(inventory.dims)
    ('asvd', 17)
    >>> inventory.dim("model.layers.0.self_attn.v_proj:rank").size
    76
    """
    weights = Path(path)
    if weights.is_dir():
        weights = find_weights(weights)
    elif not weights.is_file():
        if HUB_NAME.fullmatch(str(path)):
            return describe(replace(read_hub(str(path)), factors=factors), str(path))
        raise CheckpointError(f"{path}: no such folder or file: the model's folder comes first")
    contents = read_weights(weights)
    if not contents.tensors:
        raise CheckpointError(f"{weights} holds no tensors: fetch it again")
    folder = weights.parent
    side = {}
    slicing = weights.with_suffix(".json")
    if weights.suffix == ".pt" and slicing.is_file():  # SliceGPT's, beside its weights
        side[slicing.name] = read_json_object(slicing)
    config, adapter = contents.config, folder / "adapter_config.json"
    if (folder / "config.json").exists():
        config = read_json_object(folder / "config.json")
        side |= {name: read_json_object(folder / name) for name in format_files(folder)}
        if "quantization_config" not in config:
            config = {**format_beside(folder), **config}
    elif adapter.is_file():
        base = str(read_json_object(adapter).get("base_model_name_or_path"))[:MAX_BASE_NAME]
        raise CheckpointError(
            f"{path} is an adapter of {base}, beside whose weights it runs: give that model, or "
            "merge the adapter into it first"
        )
    contents = replace(contents, config=config, side=side, factors=factors)
    return describe(contents, str(path), tuple(sorted({*side_files(folder), *side})))


def side_files(folder: Path) -> list[str]:
    """Return the names of a folder's files that belong to a model besides its weights."""
    side = []
    for file in sorted(folder.iterdir()):
        if file.is_file() and _SIDE_FILES.fullmatch(file.name):
            check_link(file)
            side.append(file.name)
    return side


def format_files(folder: Path) -> list[str]:
    """Return the names of a folder's files that state a format of weights."""
    return [name for name in FORMAT_FILES if (folder / name).is_file()]


def format_beside(folder: Path) -> Mapping[str, Any]:
    """Return the quantisation that stands in a file of its own beside a config.json."""
    for name in format_files(folder):
        stated = read_json_object(folder / name)
        return {"quantization_config": {"quant_method": FORMAT_FILES[name], **stated}}
    return {}


def inventory_of(checkpoint: str | Path | Inventory | nn.Module) -> Inventory:
    """Return the inventory of a path, a hub's name or a model in memory; an inventory as it is."""
    if isinstance(checkpoint, Inventory):
        return checkpoint
    if isinstance(checkpoint, str | Path):
        return scan(checkpoint)
    return _inventory_of_model(checkpoint)


def _inventory_of_model(model: nn.Module) -> Inventory:
    """Return what :func:`scan` would say of a model if it were saved."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        tensors[name] = TensorInfo(
            name,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            file="<memory>",
            offset=None if tensor.is_meta else tensor.data_ptr(),  # equal for tied tensors
            nbytes=tensor.numel() * tensor.element_size(),
            stride=None if tensor.is_contiguous() else tuple(tensor.stride()),
        )
    config: Any = getattr(model, "config", None)
    attributes = {}
    for name, module in model.named_modules():
        if hasattr(module, IN_HALVES):
            attributes[name] = {IN_HALVES: getattr(module, IN_HALVES)}
    contents = Contents(tensors, config.to_dict() if config else {}, attributes=attributes)
    return describe(contents, f"{type(model).__name__} in memory")


def read_model(
    config: str | Path | Mapping[str, Any],
) -> tuple[str, Mapping[str, Any], Inventory | None]:
    """Return a model's name, its config with a format's file beside it, and a folder's headers."""
    if isinstance(config, Mapping):
        return "config", checked_config("config", config), None
    name, path = str(config), Path(config)
    stored: Inventory | None = None
    if not path.exists() and path.suffix != ".json" and HUB_NAME.fullmatch(name):
        stored = scan(name)
        return name, checked_config(name, stored.config), stored
    if path.is_dir():
        stored = scan(path) if weights_in(path) else None
        path = path / "config.json"
    try:
        values = read_object(path)
        if "quantization_config" not in values:
            values = {**format_beside(path.parent), **values}
    except FileNotFoundError:
        raise ConfigError(f"{path} is not there: download the config.json first") from None
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON of a config: {error}") from None
    return name, checked_config(name, values), stored


def checked_config(name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config. Raises :class:`ConfigError` for an empty one."""
    if not values:
        raise ConfigError(f"{name} holds no config: give a config.json or a folder with one")
    return values
