"""torch.save's format before 1.6: five pickles one after another, then the storages.

Magic number, protocol, a dict about the system, the value, the storages' keys in order; then
for each key eight bytes of element count and the raw elements (torch/serialization.py,
``_legacy_save``).
"""

from __future__ import annotations

from typing import Any

from gacprof.checkpoint.containers.base import Stored
from gacprof.checkpoint.containers.records import StorageRef
from gacprof.checkpoint.containers.state import find_state
from gacprof.checkpoint.containers.torchzip import MAX_PICKLE_BYTES, located, shared_notes
from gacprof.checkpoint.containers.unpickle import unpickle
from gacprof.checkpoint.dtypes import element_type
from gacprof.checkpoint.folder import Folder
from gacprof.core.errors import CheckpointError

MAGIC = b"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
"""The first pickle: the long integer 0x1950A86A20F9469CFC6C."""

_PROTOCOL = 1001


def read_torch_legacy(folder: Folder, name: str) -> Stored:
    """The tensors of a legacy ``torch.save`` file. Raises :class:`CheckpointError`."""
    where = f"{folder.location}/{name}"
    size = folder.size(name)
    head = folder.read(name, 0, min(size, MAX_PICKLE_BYTES))
    protocol = unpickle(head, where, len(MAGIC))
    system = unpickle(head, where, protocol.end)
    if protocol.value != _PROTOCOL or not isinstance(system.value, dict):
        raise CheckpointError(f"{where}: not a legacy torch.save file of protocol {_PROTOCOL}")
    if not system.value.get("little_endian", True):
        raise CheckpointError(f"{where}: big-endian data are not read")
    pickled = unpickle(head, where, system.end)
    keys = unpickle(head, where, pickled.end)
    state = find_state(pickled.value, where)
    starts = _locate(folder, name, keys.value, keys.end, pickled.storages, where)
    tensors = {}
    for tensor, ref in state.tensors.items():
        if ref.storage.key not in starts:
            raise CheckpointError(f"{where}: storage of {tensor[:120]!r} is missing")
        tensors[tensor] = located(tensor, ref, name, *starts[ref.storage.key], where)
    notes = (*state.notes, *shared_notes(tensors))
    return Stored("torch", tensors, state.config, state.attributes, notes)


def _locate(
    folder: Folder, name: str, keys: Any, at: int, storages: dict[str, StorageRef], where: str
) -> dict[str, tuple[int, int]]:
    """Offset and size in bytes of each storage; they follow each other in the order of keys."""
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise CheckpointError(f"{where}: its list of storages is broken")
    found: dict[str, tuple[int, int]] = {}
    size = folder.size(name)
    for key in keys:
        storage = storages.get(key)
        if storage is None or key in found:
            raise CheckpointError(f"{where}: storage {key[:40]!r} is unknown or given twice")
        count = int.from_bytes(folder.read(name, at, 8), "little", signed=True)
        nbytes = count * element_type(storage.dtype).itemsize
        if count != storage.numel or at + 8 + nbytes > size:
            raise CheckpointError(f"{where}: storage {key[:40]!r} is truncated or corrupt")
        found[key] = (at + 8, nbytes)
        at += 8 + nbytes
    return found
