"""From a path or a model in memory to an inventory: find, read headers, recognise the layout."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.checkpoint.containers import LEFT_OUT, find_container, read_container
from gacprof.checkpoint.folder import Folder, HubFolder, LocalFolder, is_hub_id, read_json
from gacprof.checkpoint.inventory import Contents, Inventory, TensorInfo
from gacprof.checkpoint.layouts import recognise
from gacprof.core.errors import CheckpointError
from gacprof.core.files import path_of
from gacprof.core.tasks import no_collection

if TYPE_CHECKING:
    import torch

TOKENIZER_FILES = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("*.tiktoken", "spiece.model", "chat_template*"),
)
_SIDE_FILES = (
    *TOKENIZER_FILES,
    *("config.json", "generation_config.json", "quantize_config.json", "quant_config.json"),
    *("*processor_config.json", "configuration_*.py", "modeling_*.py", "tokenization_*.py"),
    *("LICENSE*", "NOTICE*"),
)
"""What belongs to a checkpoint besides its weights."""


IN_HALVES = "is_concatenated"
"""What transformers' modules of experts say: gate and up one after the other, or alternating."""


@no_collection()
def scan(path: str | Path, *, factors: tuple[str, str] | None = None) -> Inventory:
    """The inventory of the checkpoint at ``path``, from headers only.

    ``path`` is a folder, a weights file in it, or a model on the hub (``org/name`` or
    ``org/name@revision``) where no such folder exists. ``factors`` is a pair of tensor name
    patterns (outer ``[out, r]``, inner ``[r, in]``) with ``{module}`` in each, for a factored
    layout that is not recognised by itself. Raises :class:`CheckpointError`.
    """
    folder, name = _locate(path_of(path, CheckpointError, "a checkpoint's folder or file"))
    return inventory_of(str(path), folder, name, factors)


def _locate(path: Path) -> tuple[Folder, str]:
    try:
        is_dir, is_file, exists = path.is_dir(), path.is_file(), path.exists()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{str(path)[:200]!r}: cannot be read: {error}") from None
    if is_dir:
        folder = LocalFolder(path)
        return folder, find_container(folder)
    if is_file:
        return LocalFolder(path.parent, path.name), path.name
    if exists:
        raise CheckpointError(f"{path}: is neither a folder nor a file")
    if is_hub_id(str(path)):
        hub = HubFolder(str(path))
        return hub, find_container(hub)
    raise CheckpointError(f"{str(path)[:200]!r}: there is no such folder or file")


def inventory_of(
    path: str, folder: Folder, name: str, factors: tuple[str, str] | None = None
) -> Inventory:
    """The inventory of the weights ``name`` in ``folder``."""
    contents = read_container(folder, name)
    if not contents.tensors:
        raise CheckpointError(f"{folder.location}/{name}: holds no tensors")
    names = folder.names()
    config = contents.config
    other = isinstance(folder, LocalFolder) and folder.has_other("config.json")
    if "config.json" in names or other:  # reading refuses the other
        config = read_json(folder, "config.json", constants=True)
    own = Path(name).stem + ".json"  # SliceGPT writes a JSON file with the weights' own stem
    has_own = own in names and own != "config.json"
    side = {own: read_json(folder, own)} if has_own else {}
    files = [n for n in names if belongs(n) or n in side]
    outside = [n for n in files if isinstance(folder, LocalFolder) and not folder.holds(n)]
    notes = [f"'{n}' is a link that leads outside this folder{LEFT_OUT}" for n in outside]
    contents = replace(
        contents, config=config, side=side, factors=factors, notes=(*contents.notes, *notes)
    )
    return describe(path, contents, tuple(n for n in files if n not in outside))


def describe(path: str, contents: Contents, side_files: tuple[str, ...] = ()) -> Inventory:
    """The inventory of tensors whose meaning is not known yet."""
    return recognise(contents).describe(contents, path, side_files)


def belongs(name: str) -> bool:
    """Whether a file of this name would be taken for a part of a checkpoint beside its weights."""
    return any(fnmatch(name, pattern) for pattern in _SIDE_FILES)


def inventory_for(source: str | Path | Inventory | torch.nn.Module) -> Inventory:
    """The inventory of a checkpoint's path or hub id, of a model in memory, or as given."""
    if isinstance(source, Inventory):
        return source
    return scan(source) if isinstance(source, str | Path) else inventory_of_model(source)


def inventory_of_model(model: torch.nn.Module) -> Inventory:
    """What :func:`scan` would say of ``model`` if it were saved. No tensor data is read.

    Raises :class:`CheckpointError` for something that has no state dict of tensors.
    """
    try:
        state: dict[str, Any] = dict(model.state_dict())
    except AttributeError:
        raise CheckpointError(
            f"a {type(model).__name__} is not a model with a state dict"
        ) from None
    tensors = {n: _info(n, t) for n, t in state.items() if hasattr(t, "element_size")}
    if not tensors:
        raise CheckpointError(f"the {type(model).__name__} holds no tensors")
    config: Any = getattr(model, "config", None)
    config = config.to_dict() if hasattr(config, "to_dict") else config
    own: Any = getattr(model, "named_modules", dict)()
    said = {name: {IN_HALVES: getattr(m, IN_HALVES)} for name, m in own if hasattr(m, IN_HALVES)}
    contents = Contents(tensors, dict(config) if isinstance(config, dict) else {}, attributes=said)
    return describe(f"{type(model).__name__} in memory", contents)


def _info(name: str, tensor: Any) -> TensorInfo:
    """``offset`` is the address, so that one tensor under two names is seen to be one."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    address = None if tensor.is_meta else tensor.data_ptr()
    nbytes = tensor.numel() * tensor.element_size()
    stride = None if tensor.is_contiguous() else tuple(tensor.stride())
    return TensorInfo(name, tuple(tensor.shape), dtype, "<memory>", address, nbytes, stride)
