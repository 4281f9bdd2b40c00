"""Checkpoints of compression tools, as the tools wrote them but for the weights' values.

A ``*.headers`` fixture holds names, shapes, configs and pickles; :func:`restored` makes the files
around zeros, and :func:`filled` puts a value for every element: 1/256ths from -0.5, by the tensor's
name, so that products in float64 are exact.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path

import numpy as np

from gacprof.checkpoint.scan import scan

FIXTURES = Path(__file__).parents[1] / "fixtures" / "checkpoints"


def restored(name: str, into: Path) -> Path:
    """The checkpoint ``name`` with zeros for weights, in a folder of ``into``."""
    headers = FIXTURES / f"{name}.headers"
    folder = into / name
    folder.mkdir(parents=True)
    for file in headers.glob("*.json"):
        if file.name not in ("header.json", "records.json"):
            (folder / file.name).write_bytes(file.read_bytes())
    if (headers / "header.json").exists():
        header = (headers / "header.json").read_bytes()
        tensors = [entry for key, entry in json.loads(header).items() if key != "__metadata__"]
        with (folder / "model.safetensors").open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + max(t["data_offsets"][1] for t in tensors))
        return folder
    records = json.loads((headers / "records.json").read_text())
    with zipfile.ZipFile(folder / records["file"], "w", zipfile.ZIP_STORED) as archive:
        root = records["root"]
        archive.writestr(f"{root}/data.pkl", (headers / "data.pkl").read_bytes())
        archive.writestr(f"{root}/byteorder", "little")
        for key, size in records["data"].items():
            archive.writestr(f"{root}/data/{key}", bytes(size))
    return folder


def filled(name: str, into: Path) -> Path:
    """The checkpoint ``name`` with values for weights, in a folder of ``into``."""
    folder = restored(name, into)
    for tensor, info in scan(folder).tensors.items():
        rng = np.random.default_rng(zlib.crc32(tensor.encode()))
        values = rng.integers(-128, 128, info.shape) / 256
        file = np.memmap(folder / info.file, np.uint8, "r+")
        itemsize = np.dtype(info.dtype).itemsize
        strides = tuple(itemsize * n for n in info.stride) if info.stride else None
        np.ndarray(info.shape, info.dtype, file, info.offset, strides)[...] = values
        file.flush()
    return folder
