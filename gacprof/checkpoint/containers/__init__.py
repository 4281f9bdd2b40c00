"""How bytes are stored: finding a checkpoint's container and reading its headers."""

from __future__ import annotations

from ...errors import CheckpointError
from ..folder import Folder
from .base import Stored
from .safetensors import read_safetensors
from .sharded import read_sharded

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
    if name.endswith(".safetensors"):
        return read_safetensors(folder, name)
    raise CheckpointError(f"{folder.location}/{name}: pickled checkpoints are not read yet")
