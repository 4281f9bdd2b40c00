"""FlashAttention-2 templates and tiles of PyTorch releases, as :mod:`fa2` read them.

Each was read from ``libtorch_cuda.so`` of the x86-64 Linux wheel that PyPI offers for the
release. Releases that are not listed were not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Tile = tuple[int, int, int]
Tiles = Mapping[int, tuple[Tile, ...]]


@dataclass(frozen=True)
class Record:
    wheel: str
    templates: tuple[int, ...]
    forward: Tiles
    split: Tiles


_FORWARD: Tiles = {
    32: ((128, 128, 4),),
    64: ((128, 64, 4), (128, 128, 4)),
    96: ((64, 64, 4), (128, 64, 4)),
    128: ((64, 64, 4), (128, 32, 4), (128, 64, 4)),
    160: ((64, 64, 4), (128, 32, 4), (128, 64, 8)),
    192: ((64, 64, 4), (128, 64, 8)),
    224: ((64, 64, 4), (128, 64, 8)),
    256: ((64, 64, 4), (128, 64, 8)),
}
_SPLIT: Tiles = {
    32: ((64, 256, 4),),
    64: ((64, 256, 4),),
    96: ((64, 128, 4),),
    128: ((64, 128, 4),),
    160: ((64, 64, 4),),
    192: ((64, 64, 4),),
    224: ((64, 64, 4),),
    256: ((64, 64, 4),),
}
_SPLIT_2_13: Tiles = {
    32: ((64, 128, 4), (64, 256, 4)),
    64: ((64, 128, 4), (64, 256, 4)),
    96: ((64, 64, 4), (64, 128, 4)),
    128: ((64, 64, 4), (64, 128, 4)),
    192: ((64, 64, 4),),
    256: ((64, 64, 4),),
}


def _record(wheel: str, templates: tuple[int, ...], split: Tiles = _SPLIT) -> Record:
    forward = {size: _FORWARD[size] for size in templates}
    return Record(wheel, templates, forward, {size: split[size] for size in templates})


_ALL = (32, 64, 96, 128, 160, 192, 224, 256)
_WITHOUT_224 = (32, 64, 96, 128, 160, 192, 256)
_WITHOUT_160 = (32, 64, 96, 128, 192, 256)

RECORDS: Mapping[str, Record] = {
    "2.6.0": _record("torch-2.6.0-cp312-cp312-manylinux1_x86_64 (CUDA 12.4)", _ALL),
    "2.8.0": _record("torch-2.8.0-cp312-cp312-manylinux_2_28_x86_64 (CUDA 12.8)", _WITHOUT_224),
    "2.9.1": _record("torch-2.9.1-cp311-cp311-manylinux_2_28_x86_64 (CUDA 12.8)", _WITHOUT_224),
    "2.10.0": _record("torch-2.10.0-3-cp312-cp312-manylinux_2_28_x86_64 (CUDA 12.8)", _WITHOUT_224),
    "2.11.0": _record("torch-2.11.0-cp312-cp312-manylinux_2_28_x86_64 (CUDA 13)", _WITHOUT_160),
    "2.12.0": _record("torch-2.12.0-cp312-cp312-manylinux_2_28_x86_64 (CUDA 13)", _WITHOUT_160),
    "2.13.0": _record(
        "torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64 (CUDA 13)", _WITHOUT_160, _SPLIT_2_13
    ),
}
