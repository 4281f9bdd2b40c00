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
from dataclasses import dataclass
from pathlib import Path

from gacprof.core.errors import MapError, MeasurementError
from gacprof.core.files import Record, open_regular
from gacprof.kernels.names import parse
from gacprof.kernels.sdpa import padded

Tile = tuple[int, int, int]
"""(rows of q, rows of k and v, warps) of one block."""
Tiles = Mapping[int, tuple[Tile, ...]]
"""By template."""

_SYMBOL = re.compile(
    rb"_ZN\d+\w{0,20}?flashL?\d+flash_fwd_(?:splitkv_)?kernelI[A-Za-z0-9_]{10,600}"
)


@dataclass(frozen=True)
class FlashTemplates(Record):
    """Templates of one build with the tiles of their prefill and split-KV (decode) kernels."""

    torch: str
    templates: tuple[int, ...]
    forward: Tiles
    split: Tiles
    source: str

    def template_for(self, head_dim: int) -> int | None:
        """The template that serves a head_dim, or None where flash does not (above 256)."""
        return next((size for size in self.templates if size >= head_dim), None)

    def even_k(self, head_dim: int) -> bool:
        """Whether the padded head_dim fills its template, so that no bounds are checked."""
        return (padded(head_dim) or head_dim) == self.template_for(head_dim)


_FORWARD: Tiles = {
    32: ((128, 128, 4),),
    64: ((128, 64, 4), (128, 128, 4)),
    96: ((64, 64, 4), (128, 64, 4)),
    128: ((64, 64, 4), (128, 32, 4), (128, 64, 4)),
    160: ((64, 64, 4), (128, 32, 4), (128, 64, 8)),
    **dict.fromkeys((192, 224, 256), ((64, 64, 4), (128, 64, 8))),
}
_SPLIT: Tiles = {
    **dict.fromkeys((32, 64), ((64, 256, 4),)),
    **dict.fromkeys((96, 128), ((64, 128, 4),)),
    **dict.fromkeys((160, 192, 224, 256), ((64, 64, 4),)),
}
_SPLIT_2_13: Tiles = {
    **dict.fromkeys((32, 64), ((64, 128, 4), (64, 256, 4))),
    **dict.fromkeys((96, 128), ((64, 64, 4), (64, 128, 4))),
    **dict.fromkeys((192, 256), ((64, 64, 4),)),
}
_ALL = (32, 64, 96, 128, 160, 192, 224, 256)


def _record(torch: str, wheel: str, lacking: tuple[int, ...], split: Tiles) -> FlashTemplates:
    held = tuple(size for size in _ALL if size not in lacking)
    return FlashTemplates(
        torch,
        held,
        {size: _FORWARD[size] for size in held},
        {size: split[size] for size in held},
        f"recorded from torch-{torch}-{wheel}",
    )


RECORDS: Mapping[str, FlashTemplates] = {
    torch: _record(torch, wheel, lacking, split)
    for torch, wheel, lacking, split in (
        ("2.6.0", "cp312-cp312-manylinux1_x86_64 (CUDA 12.4)", (), _SPLIT),
        ("2.8.0", "cp312-cp312-manylinux_2_28_x86_64 (CUDA 12.8)", (224,), _SPLIT),
        ("2.9.1", "cp311-cp311-manylinux_2_28_x86_64 (CUDA 12.8)", (224,), _SPLIT),
        ("2.10.0", "3-cp312-cp312-manylinux_2_28_x86_64 (CUDA 12.8)", (224,), _SPLIT),
        ("2.11.0", "cp312-cp312-manylinux_2_28_x86_64 (CUDA 13)", (160, 224), _SPLIT),
        ("2.12.0", "cp312-cp312-manylinux_2_28_x86_64 (CUDA 13)", (160, 224), _SPLIT),
        ("2.13.0", "cp312-cp312-manylinux_2_28_x86_64 (CUDA 13)", (160, 224), _SPLIT_2_13),
    )
}
"""Each was read from ``libtorch_cuda.so`` of the x86-64 Linux wheel that PyPI offers for the
release. Releases that are not listed were not looked at."""


def read(library: Path | None = None) -> FlashTemplates:
    """The templates in ``libtorch_cuda.so``: by default that of the installed torch.

    Takes a few seconds for a library of a gigabyte and imports nothing. Raises
    :class:`MeasurementError` where there is no such library, or it holds no such names.
    """
    version, path = ("", library) if library is not None else _installed()
    try:
        with (
            open_regular(path) as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            symbols = {match.group().decode() for match in _SYMBOL.finditer(data)}
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise MeasurementError(f"{path}: cannot be read as a library ({error})") from error
    found = from_names(symbols, version, f"read from {path.name}")
    if not found.templates:
        raise MeasurementError(
            f"{path}: no FlashAttention-2 kernel names in it; the library is stripped of them "
            f"or was built without USE_FLASH_ATTENTION (recorded instead: {', '.join(RECORDS)})"
        )
    return found


def from_names(names: Iterable[str], torch: str, source: str) -> FlashTemplates:
    """What kernel names amount to, mangled or not; names of other kernels are passed over."""
    forward: dict[int, set[Tile]] = {}
    split: dict[int, set[Tile]] = {}
    for kernel in map(parse, names):
        if kernel.family != "flash2" or kernel.role != "attention" or kernel.template is None:
            continue
        if kernel.tile and kernel.warps:
            tiles = split if "splitkv" in kernel.name else forward
            rows, keys = kernel.tile[:2]
            tiles.setdefault(kernel.template, set()).add((rows, keys, kernel.warps))
    templates = tuple(sorted(forward.keys() | split.keys()))
    return FlashTemplates(torch, templates, _sorted(forward), _sorted(split), source)


def recorded(torch: str) -> FlashTemplates:
    """What was read before from the wheel of that PyTorch release (``2.9.1``, ``2.9.1+cu128``).

    Raises :class:`MapError` for a release without a record: nothing is inferred from others.
    """
    plain = torch.split("+")[0]
    if plain not in RECORDS:
        raise MapError(
            f"no FlashAttention-2 templates are recorded for torch {torch} (there are "
            f"{', '.join(RECORDS)}): read them from its libtorch_cuda.so with kernels.fa2.read"
        )
    return RECORDS[plain]


def _sorted(tiles: Mapping[int, set[Tile]]) -> dict[int, tuple[Tile, ...]]:
    return {size: tuple(sorted(tiles[size])) for size in sorted(tiles)}


def _installed() -> tuple[str, Path]:
    """The installed torch's version and its CUDA library."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise MeasurementError("torch is not installed: there is no library to read")
    version = importlib.metadata.version("torch")
    path = Path(found.origin).parent / "lib" / "libtorch_cuda.so"
    if not path.is_file():
        raise MeasurementError(
            f"the installed torch {version} has no libtorch_cuda.so: it was built without CUDA "
            f"and holds no FlashAttention-2 (recorded instead: {', '.join(RECORDS)})"
        )
    return version, path
