"""Writing weights: safetensors, tensor by tensor, in shards with their index.

The library wants all tensors at once; here one block of one tensor is in memory, and torch is not
needed. A state dict as SliceGPT's own loader wants it is torch's to write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from gacprof.core import Progress
from gacprof.core.dtypes import element_type
from gacprof.core.errors import CheckpointError
from gacprof.core.files import replacing
from gacprof.resizing.changes import NewTensor
from gacprof.resizing.segments import Array
from gacprof.resizing.values import Resizer
from gacprof.resizing.workspace import CUTS, finish, is_finished, require_space

if TYPE_CHECKING:
    import torch

Advance = Callable[[int], None]
"""Called with the bytes written since the last call."""

INDEX = "model.safetensors.index.json"


class Described(Protocol):
    """A tensor to be written, before its values are known. ``dtype`` is torch's name."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=Described)


def write_safetensors(
    path: Path,
    tensors: Sequence[T],
    metadata: Mapping[str, str],
    write: Callable[[BinaryIO, T], object],
) -> None:
    """A file of ``tensors``, each of which ``write`` appends; it appears when it is on the disk.

    Wide elements come first, so that every tensor is aligned to its own element size whatever the
    others' sizes; else they keep their order.
    """
    ordered = sorted(tensors, key=lambda tensor: -element_type(tensor.dtype).itemsize)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(safetensors_header(ordered, metadata))
        for tensor in ordered:
            write(file, tensor)


class _Held(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    value: torch.Tensor


def save_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """A safetensors file of tensors in memory."""
    held = [
        _Held(name, str(t.dtype).removeprefix("torch."), tuple(t.shape), t.nbytes, t)
        for name, t in tensors.items()
    ]
    write_safetensors(path, held, metadata or {}, lambda file, t: file.write(bytes_of(t.value)))


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """A tensor's bytes in row-major order."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def safetensors_header(tensors: Sequence[Described], metadata: Mapping[str, str]) -> bytes:
    """Length and JSON header of a file that holds ``tensors`` in this order.

    The header is filled up with spaces to a multiple of 8 bytes, as the format asks for.
    """
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for tensor in tensors:
        code = element_type(tensor.dtype).code
        if code is None:
            raise CheckpointError(
                f"'{tensor.name}': safetensors has no element type {tensor.dtype}"
            )
        end = at + tensor.nbytes
        entries[tensor.name] = {
            "dtype": code,
            "shape": list(tensor.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


@dataclass(frozen=True)
class WeightsFile:
    """One file of the output and the tensors in it. ``metadata`` is for safetensors."""

    name: str
    kind: Literal["safetensors", "torch"]
    tensors: tuple[NewTensor, ...]
    metadata: Mapping[str, str]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def write(self, folder: Path, resizer: Resizer, advance: Advance) -> bool:
        """Write the file whole, or leave it alone if it is finished. Returns whether it was."""
        path = folder / self.name
        if is_finished(folder, path):
            advance(self.nbytes)
            return True
        as_torch = self.kind == "torch"
        target = folder / CUTS / f"{path.name}.safetensors" if as_torch else path
        # as the source has them, so that it is read front to back
        tensors = sorted(self.tensors, key=lambda t: (t.sources[0].offset or 0, t.name))

        def write(file: BinaryIO, tensor: NewTensor) -> None:
            for block in resizer.blocks(tensor):
                file.write(_bytes(block))
                advance(block.nbytes)

        write_safetensors(target, tensors, self.metadata, write)
        if as_torch:
            _as_torch(target, path, [tensor.name for tensor in self.tensors])
        finish(folder, path)
        return False


def write_weights(
    folder: Path, files: Sequence[WeightsFile], resizer: Resizer, progress: Progress | None
) -> tuple[str, ...]:
    """Write every file into a workspace; returns the names of those that were already there."""
    total, done = sum(file.nbytes for file in files), 0
    require_space(folder, sum(f.nbytes for f in files if not is_finished(folder, folder / f.name)))

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(min(done, total), total, "bytes of weights")

    return tuple(file.name for file in files if file.write(folder, resizer, advance))


class Shard(Protocol):
    """A file and what is in it."""

    @property
    def name(self) -> str: ...
    @property
    def tensors(self) -> Iterable[Described]: ...


def index_of(files: Iterable[Shard]) -> dict[str, dict[str, Any]]:
    """What the index of these shards says."""
    placed = {tensor.name: (file.name, tensor.nbytes) for file in files for tensor in file.tensors}
    return {
        "metadata": {"total_size": sum(nbytes for _, nbytes in placed.values())},
        "weight_map": {name: placed[name][0] for name in sorted(placed)},
    }


def _bytes(block: Array) -> memoryview:
    """The bytes of a C-contiguous array."""
    return block.reshape(-1).view(np.uint8).data


def _as_torch(source: Path, path: Path, names: Sequence[str]) -> None:
    """The tensors of a safetensors file, mapped, as ``torch.save`` writes a state dict."""
    try:
        import torch
        from safetensors.torch import load_file
    except ImportError:
        raise CheckpointError(
            f"{path.name}: SliceGPT's state dict is written by torch, which is not installed"
        ) from None
    state = load_file(source)
    empty = {name: torch.empty_like(t) for name, t in state.items() if not t.numel()}
    with replacing(path) as temporary:  # an empty one would share another's address
        torch.save({name: empty.get(name, state[name]) for name in names}, temporary)
    source.unlink()
