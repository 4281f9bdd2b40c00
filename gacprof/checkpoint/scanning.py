"""From a path or a model in memory to an inventory, and to the data of its tensors.

Files are found, their headers read, the layout recognised. Data are memory-mapped: each tensor of a
file has its own mapping, private and copy-on-write, that is released with the array. A stream over
a checkpoint holds no more than the tensors it keeps, and nothing written to an array reaches the
file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gacprof.checkpoint.containers import LEFT_OUT, find_container, read_container
from gacprof.checkpoint.folder import Folder, HubFolder, LocalFolder, is_hub_id, json_object
from gacprof.checkpoint.inventory import ROTARY_TABLE, Contents, Inventory, TensorInfo
from gacprof.checkpoint.layouts import recognise
from gacprof.checkpoint.layouts.names import names_below
from gacprof.core.dtypes import FLOATING, element_type
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
        config = json_object(folder, "config.json", constants=True)
    own = Path(name).stem + ".json"  # SliceGPT writes a JSON file with the weights' own stem
    has_own = own in names and own != "config.json"
    side = {own: json_object(folder, own)} if has_own else {}
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


class TensorReader:
    """The tensors of a checkpoint on disk, by name. See :func:`open_tensors`."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self._folder = Path(inventory.folder)

    def __contains__(self, name: str) -> bool:
        return name in self.inventory.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.inventory.tensors)

    def info(self, name: str) -> TensorInfo:
        try:
            return self.inventory.tensors[name]
        except KeyError:
            raise CheckpointError(f"{self.inventory.path}: has no tensor {name!r}") from None

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """The tensor as a mapped array. bfloat16 and float8 come as unsigned integers of the
        same width (``core/dtypes.py``); ``info(name).dtype`` says what they are."""
        info = self.info(name)
        element = element_type(info.dtype)
        if info.offset is None:
            raise CheckpointError(f"{self.inventory.path}: {name!r} has no data to read")
        if info.numel == 0:
            return np.empty(info.shape, element.numpy)
        path = self._folder / info.file
        try:
            if info.stride is None:
                return np.memmap(path, element.numpy, "c", info.offset, info.shape)
            span = 1 + sum((n - 1) * s for n, s in zip(info.shape, info.stride, strict=True))
            flat = np.memmap(path, element.numpy, "c", info.offset, (span,))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: {name!r} cannot be mapped: {error}") from None
        strides = tuple(s * element.itemsize for s in info.stride)
        return np.lib.stride_tricks.as_strided(flat, info.shape, strides)

    def raw(self, name: str) -> memoryview:
        """The tensor's bytes in row-major order; a view of the mapping where it can be."""
        return np.ascontiguousarray(self.read(name)).reshape(-1).view(np.uint8).data

    def torch(self, name: str) -> torch.Tensor:
        """The tensor in its own dtype, still mapped (copy-on-write). Imports torch."""
        import torch

        dtype = getattr(torch, self.info(name).dtype, None)
        if dtype is None:
            raise CheckpointError(f"this torch has no dtype {self.info(name).dtype}")
        return as_torch(np.asarray(self.read(name)), dtype)


def as_torch(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """The same memory as a tensor of ``dtype``, of which numpy may know the bits only."""
    import torch

    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def open_tensors(source: Inventory | str | Path) -> TensorReader:
    """A reader for the tensors of a scanned or still unscanned checkpoint on disk."""
    inventory = source if isinstance(source, Inventory) else scan(source)
    if inventory.container == "memory":
        raise CheckpointError(f"{inventory.path}: give the model itself, its inventory has no data")
    if inventory.container == "gguf":
        raise CheckpointError(
            f"{inventory.path}: the weights of a GGUF file are quantised or permuted: write it as "
            "a plain folder first (gacprof import-gguf)"
        )
    if not Path(inventory.folder).is_dir():
        raise CheckpointError(
            f"{inventory.path}: its tensors are not on this machine; download it first"
        )
    return TensorReader(inventory)


class ModelReader(TensorReader):
    """The state of a model in memory, read as a checkpoint's tensors are."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(inventory_of_model(model))
        self._state = model.state_dict()

    def read(self, name: str) -> np.ndarray[Any, Any]:
        import torch

        info = self.info(name)
        if info.offset is None:
            raise CheckpointError(f"{self.inventory.path}: {name!r} has no data (meta device)")
        flat = self._state[name].detach().cpu().contiguous().reshape(-1)
        carried = flat.view(torch.uint8).numpy().view(element_type(info.dtype).numpy)
        return np.asarray(carried.reshape(info.shape))


def tensors_of(source: str | Path | Inventory | torch.nn.Module) -> TensorReader:
    """A reader for a checkpoint on disk or a model in memory. Raises :class:`CheckpointError`."""
    if isinstance(source, str | Path | Inventory):
        return open_tensors(source)
    return ModelReader(source)


def refuse_broken(inventory: Inventory) -> None:
    """Raise :class:`CheckpointError` for a checkpoint that no model could be built of."""
    refuse_incomplete(inventory)
    _refuse_unusable(inventory)


def refuse_incomplete(inventory: Inventory) -> None:
    """Raise :class:`CheckpointError` where the index leaves out a tensor of a layer that it has.

    A tensor of a whole layer that the index does not know is left out by every loader, and here
    (a note says so); one whose neighbours are there was lost from the index.
    """
    wanted = {name.rsplit(".", 2)[0] for name in inventory.left_out}
    partners = {path: below[0] for path, below in names_below(wanted, inventory.tensors).items()}
    for name in inventory.left_out:
        partner = partners.get(name.rsplit(".", 2)[0])
        if partner is not None and not name.endswith(ROTARY_TABLE):
            raise CheckpointError(
                f"{inventory.path}: its index leaves out '{name}', which the shards hold and which "
                f"belongs with '{partner}': mend the index or fetch the checkpoint again"
            )


def _refuse_unusable(inventory: Inventory) -> None:
    """Raise :class:`CheckpointError` where the embedding or the head is no matrix of floating-point
    numbers, and neither a config nor scales say how it is quantised: no model computes with it, so
    nothing that is written could be called exact."""
    if inventory.config.get("quantization_config"):
        return
    for name, info in inventory.tensors.items():
        module, _, last = name.rpartition(".")
        if last != "weight" or not module.endswith(("embed_tokens", "lm_head")):
            continue
        is_plain = len(info.shape) == 2 and info.dtype in FLOATING
        has_scales = any(n.startswith((f"{module}.", f"{module}_")) and n != name
                         for n in inventory.tensors)  # fmt: skip
        if not is_plain and not has_scales:
            raise CheckpointError(
                f"{inventory.path}: {name} is {info.dtype} of shape {list(info.shape)}, where "
                "models have a matrix of floating-point numbers: mend the checkpoint"
            )
