"""torch.save's zip format: ``<root>/data.pkl`` and one record per storage, ``<root>/data/<key>``.

Only the table of contents, the pickle and the records' 30-byte headers are read.
"""

from __future__ import annotations

from collections.abc import Mapping

from gacprof.checkpoint.containers.base import Stored
from gacprof.checkpoint.containers.records import TensorRef
from gacprof.checkpoint.containers.state import find_state
from gacprof.checkpoint.containers.unpickle import unpickle
from gacprof.checkpoint.containers.zips import Entry, data_offset, read_entries
from gacprof.checkpoint.dtypes import element_type
from gacprof.checkpoint.folder import Folder, LocalFolder
from gacprof.checkpoint.inventory import TensorInfo
from gacprof.core.errors import CheckpointError

MAX_PICKLE_BYTES = 64 << 20
"""Whole-model pickles carry a tokenizer, seldom more than 10 MB; tensors are not in there."""


def read_torch_zip(folder: Folder, name: str) -> Stored:
    """The tensors of a ``torch.save`` file. Raises :class:`CheckpointError`."""
    where = f"{folder.location}/{name}"
    entries = read_entries(folder, name)
    root = _root(entries, where)
    pickled = entries[f"{root}data.pkl"]
    if pickled.size > MAX_PICKLE_BYTES:
        raise CheckpointError(f"{where}: its pickle of {pickled.size} bytes is too large")
    _check_byteorder(folder, name, entries.get(f"{root}byteorder"), where)
    start = data_offset(folder, name, pickled)
    state = find_state(unpickle(folder.read(name, start, pickled.size), where).value, where)
    storages = _storages(folder, name, root, entries, state.tensors)
    tensors = {
        tensor: located(tensor, ref, name, *storages[ref.storage.key], where)
        for tensor, ref in state.tensors.items()
    }
    notes = (*state.notes, *shared_notes(tensors))
    return Stored("torch", tensors, state.config, state.attributes, notes)


def _root(entries: Mapping[str, Entry], where: str) -> str:
    pickles = [n for n in entries if n == "data.pkl" or n.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise CheckpointError(f"{where}: a zip file, but not one that torch.save wrote")
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}constants.pkl" in entries:
        raise CheckpointError(f"{where}: a TorchScript archive is code, not a checkpoint")
    return root


def _check_byteorder(folder: Folder, name: str, entry: Entry | None, where: str) -> None:
    if entry is None:
        return
    order = folder.read(name, data_offset(folder, name, entry), min(entry.size, 16))
    if order.strip() != b"little":
        raise CheckpointError(f"{where}: byte order {order!r} is not read, only little")


def _storages(
    folder: Folder,
    name: str,
    root: str,
    entries: Mapping[str, Entry],
    tensors: Mapping[str, TensorRef],
) -> dict[str, tuple[int | None, int]]:
    """Offset and size in bytes of every storage that a tensor uses."""
    found: dict[str, tuple[int | None, int]] = {}
    for ref in tensors.values():
        key = ref.storage.key
        if key in found:
            continue
        entry = entries.get(f"{root}data/{key}")
        if entry is None:
            raise CheckpointError(f"{folder.location}/{name}: storage {key[:40]!r} is missing")
        # A hub's record headers would cost one request each; without them sizes suffice.
        local = isinstance(folder, LocalFolder)
        found[key] = (data_offset(folder, name, entry) if local else None, entry.size)
    return found


def located(
    name: str, ref: TensorRef, file: str, start: int | None, nbytes: int, where: str
) -> TensorInfo:
    """A tensor in its storage of ``nbytes`` at ``start`` of ``file``; checks that it fits."""
    element = element_type(ref.dtype)
    numel = 1
    for size in ref.shape:
        numel *= size
    last = ref.offset + sum((n - 1) * s for n, s in zip(ref.shape, ref.stride, strict=True))
    if numel > 0 and (last + 1) * element.itemsize > nbytes:
        raise CheckpointError(
            f"{where}: tensor {name[:120]!r} {list(ref.shape)} reaches beyond its storage of "
            f"{nbytes} bytes; truncated or corrupt"
        )
    offset = None if start is None else start + ref.offset * element.itemsize
    contiguous = numel == 0 or _is_contiguous(ref.shape, ref.stride)
    stride = None if contiguous else ref.stride
    return TensorInfo(name, ref.shape, ref.dtype, file, offset, numel * element.itemsize, stride)


def _is_contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def shared_notes(tensors: Mapping[str, TensorInfo]) -> list[str]:
    """Which names are one stored tensor (tied embeddings)."""
    first: dict[tuple[object, ...], str] = {}
    notes = []
    for name, info in tensors.items():
        if info.offset is None or info.numel == 0:
            continue
        other = first.setdefault((info.file, info.offset, info.shape, info.stride), name)
        if other != name:
            notes.append(f"{name} and {other} are one stored tensor")
    return notes
