"""How bytes are stored: finding a checkpoint's container and reading its headers."""

from __future__ import annotations

from gacprof.checkpoint.containers.base import Stored
from gacprof.checkpoint.containers.safetensors import read_safetensors
from gacprof.checkpoint.containers.sharded import read_sharded
from gacprof.checkpoint.containers.torchlegacy import MAGIC, read_torch_legacy
from gacprof.checkpoint.containers.torchzip import read_torch_zip
from gacprof.checkpoint.folder import Folder
from gacprof.core.errors import CheckpointError

__all__ = ["Stored", "find_container", "read_container"]

_CONVENTIONAL = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""The names transformers looks for, in its order."""

_WEIGHTS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_NOT_MODELS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "rng_state")


def find_container(folder: Folder) -> str:
    """The name of the file (or index) that holds the weights of a folder."""
    names = folder.names()
    for name in _CONVENTIONAL:
        if name in names:
            return name
    indexes = [n for n in names if n.endswith(".index.json")]
    weights = [n for n in names if n.endswith(_WEIGHTS) and not n.startswith(_NOT_MODELS)]
    if len(indexes) == 1:
        return indexes[0]
    if len(weights) == 1:
        return weights[0]
    if not weights:
        raise CheckpointError(
            f"{folder.location}: no weights here (no *.safetensors, *.bin, *.pt, *.pth or index)"
        )
    raise CheckpointError(
        f"{folder.location}: several weight files and no index ({', '.join(weights[:5])}); "
        "name one of them"
    )


def read_container(folder: Folder, name: str) -> Stored:
    """Read the headers of the weights file or index ``name``."""
    if name.endswith(".index.json"):
        return read_sharded(folder, name, _read_file)
    return _read_file(folder, name)


def _read_file(folder: Folder, name: str) -> Stored:
    """One file, by what it begins with: names lie (LLM-Pruner pickles into pytorch_model.bin)."""
    where = f"{folder.location}/{name}"
    head = folder.read(name, 0, min(folder.size(name), 16))
    if head.startswith(b"version https://"[: len(head)]) and head:
        raise CheckpointError(f"{where}: a Git LFS pointer, not the file; run 'git lfs pull'")
    if head.startswith(b"PK\x03\x04"):
        return read_torch_zip(folder, name)
    if head.startswith(MAGIC[:13]):
        return read_torch_legacy(folder, name)
    if name.endswith(".safetensors") or head[8:9] == b"{":
        return read_safetensors(folder, name)
    if head.startswith(b"GGUF"):
        raise CheckpointError(f"{where}: GGUF files are not read; use the model they came from")
    if not head:
        raise CheckpointError(f"{where}: is empty")
    raise CheckpointError(f"{where}: neither safetensors nor a torch.save file; or truncated")
