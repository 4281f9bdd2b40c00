"""Which FlashAttention-2 kernels a PyTorch build holds: read from its binary.

A head_dim is served by the smallest template that is not smaller, so the templates are the
steps of the staircase. They change from release to release (224 went after 2.6, 160 after
2.10), and PyTorch's headers lag behind: only the library itself tells. The symbol names of its
kernels stand in ``libtorch_cuda.so`` uncompressed, and are found without loading it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import mmap
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gacprof.core.errors import MapError, MeasurementError
from gacprof.kernels.fa2_records import RECORDS
from gacprof.kernels.names import parse

Tile = tuple[int, int, int]
"""(rows of q, rows of k and v, warps) of one block."""

_SYMBOL = re.compile(
    rb"_ZN\d+\w{0,20}?flashL?\d+flash_fwd_(?:splitkv_)?kernelI[A-Za-z0-9_]{10,600}"
)
QUANTUM = 8
"""PyTorch pads head_dim to a multiple of 8 before it asks for a template."""


@dataclass(frozen=True)
class Inventory:
    """Templates of one build with the tiles of their prefill and split-KV (decode) kernels."""

    torch: str
    templates: tuple[int, ...]
    forward: Mapping[int, tuple[Tile, ...]]
    split: Mapping[int, tuple[Tile, ...]]
    source: str

    def template_for(self, head_dim: int) -> int | None:
        """The template that serves a head_dim, or None where flash does not (above 256)."""
        padded = -(-head_dim // QUANTUM) * QUANTUM
        return next((size for size in self.templates if size >= padded), None)

    def even_k(self, head_dim: int) -> bool:
        """Whether the padded head_dim fills its template, so that no bounds are checked."""
        return -(-head_dim // QUANTUM) * QUANTUM == self.template_for(head_dim)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def read(library: Path | None = None) -> Inventory:
    """The inventory of ``libtorch_cuda.so``: by default that of the installed torch.

    Takes a few seconds for a library of a gigabyte and imports nothing. Raises
    :class:`MeasurementError` where there is no such library, or it holds no such names.
    """
    version = _installed_version() if library is None else ""
    path = library if library is not None else _installed_library(version)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            symbols = {match.group().decode() for match in _SYMBOL.finditer(data)}
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise MeasurementError(f"{path}: cannot be read as a library ({error})") from error
    inventory = from_names(symbols, version, f"read from {path.name}")
    if not inventory.templates:
        raise MeasurementError(
            f"{path}: no FlashAttention-2 kernel names in it; the library is stripped of them "
            f"or was built without USE_FLASH_ATTENTION (recorded instead: {', '.join(RECORDS)})"
        )
    return inventory


def from_names(names: Iterable[str], torch: str, source: str) -> Inventory:
    """The inventory that kernel names amount to, mangled or not; others are passed over."""
    forward: dict[int, set[Tile]] = {}
    split: dict[int, set[Tile]] = {}
    for kernel in map(parse, names):
        if kernel.family != "flash2" or kernel.role != "attention" or kernel.template is None:
            continue
        tiles = split if "split" in kernel.flag else forward
        if kernel.tile and "warps" in kernel.flag:
            tile = (*kernel.tile[:2], int(kernel.flag["warps"]))
            tiles.setdefault(kernel.template, set()).add((tile[0], tile[1], tile[2]))
    templates = tuple(sorted(forward.keys() | split.keys()))
    return Inventory(torch, templates, _sorted(forward), _sorted(split), source)


def recorded(torch: str) -> Inventory:
    """What was read before from the wheel of that PyTorch release (``2.9.1``, ``2.9.1+cu128``).

    Raises :class:`MapError` for a release without a record: nothing is inferred from others.
    """
    plain = torch.split("+")[0]
    if plain not in RECORDS:
        raise MapError(
            f"no FlashAttention-2 templates are recorded for torch {torch} (there are "
            f"{', '.join(RECORDS)}): read them from its libtorch_cuda.so with kernels.fa2.read"
        )
    record = RECORDS[plain]
    return Inventory(
        plain, record.templates, record.forward, record.split, f"recorded from {record.wheel}"
    )


def _sorted(tiles: Mapping[int, set[Tile]]) -> dict[int, tuple[Tile, ...]]:
    return {size: tuple(sorted(tiles[size])) for size in sorted(tiles)}


def _installed_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise MeasurementError("torch is not installed: there is no library to read") from None


def _installed_library(version: str) -> Path:
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise MeasurementError("torch is not installed: there is no library to read")
    path = Path(found.origin).parent / "lib" / "libtorch_cuda.so"
    if not path.is_file():
        raise MeasurementError(
            f"the installed torch {version} has no libtorch_cuda.so: it was built without CUDA "
            f"and holds no FlashAttention-2 (recorded instead: {', '.join(RECORDS)})"
        )
    return path
