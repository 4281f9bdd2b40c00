"""Checkpoints made for tests: sparse where only headers matter, in memory for fuzzing."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gacprof.checkpoint.layouts import Contents
from gacprof.core.dtypes import BY_NAME
from gacprof.core.errors import CheckpointError

PEAK_KIB = """
def peak_kib():
    with open("/proc/self/status") as status:  # not ru_maxrss: that includes the parent's peak
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
"""
"""Source of a function for child processes: the most memory they have held, in KiB."""


def told_by(code: str, folder: Path) -> str:
    """What a Python process that runs ``code`` with that argument prints."""
    command = [sys.executable, "-c", code, str(folder)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


Shapes = Mapping[str, tuple[int, ...] | tuple[str, tuple[int, ...]]]


def header_of(shapes: Shapes, dtype: str = "float16") -> tuple[bytes, int]:
    """A safetensors header and the length of the data it describes."""
    entries: dict[str, Any] = {}
    at = 0
    for name, given in shapes.items():
        own, shape = given if given and isinstance(given[0], str) else (dtype, given)
        element = BY_NAME[str(own)]
        nbytes = element.itemsize
        for size in shape:
            nbytes *= size
        entries[name] = {
            "dtype": element.code,
            "shape": list(shape),
            "data_offsets": [at, at + nbytes],
        }
        at += nbytes
    return json.dumps(entries).encode(), at


def write_safetensors(path: Path, shapes: Shapes, dtype: str = "float16") -> Path:
    """A sparse safetensors file of zeros."""
    header, length = header_of(shapes, dtype)
    return write_header(path, header, length)


def write_header(path: Path, header: bytes, length: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + length)
    return path


def checkpoint(folder: Path, shapes: Shapes, config: Mapping[str, Any] | None = None) -> Path:
    """A folder with model.safetensors and, if given, config.json."""
    write_safetensors(folder / "model.safetensors", shapes)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def contents(shapes: Shapes, config: Mapping[str, Any] | None = None, **more: Any) -> Contents:
    """What a layout sees, without any file."""
    from gacprof.checkpoint.containers import parse_header

    header, length = header_of(shapes)
    return Contents(parse_header(header, 0, length, "", "test").tensors, config or {}, **more)


def restored(headers: Path, into: Path) -> Path:
    """A checkpoint of the right names, shapes and files from a ``*.headers`` fixture."""
    folder = into / headers.name.removesuffix(".headers")
    folder.mkdir()
    for file in headers.glob("*.json"):
        if file.name not in ("header.json", "records.json"):
            (folder / file.name).write_bytes(file.read_bytes())
    if (headers / "header.json").exists():
        header = (headers / "header.json").read_bytes()
        ends = [e["data_offsets"][1] for n, e in json.loads(header).items() if n[:2] != "__"]
        write_header(folder / "model.safetensors", header, max(ends))
    else:
        records = json.loads((headers / "records.json").read_text())
        pickled = (headers / "data.pkl").read_bytes()
        write_torch_zip(folder / records["file"], records["root"], pickled, records["data"])
    return folder


def write_torch_zip(path: Path, root: str, pickled: bytes, data: Mapping[str, int]) -> Path:
    """A torch.save file around ``pickled`` with records of zeros of the given sizes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{root}/data.pkl", pickled)
        archive.writestr(f"{root}/byteorder", "little")
        for key, size in data.items():
            archive.writestr(f"{root}/data/{key}", bytes(size))
    return path


class MemoryFolder:
    """A folder that exists in memory only: nothing read from it can have come from disk."""

    location = "memory"

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.files))

    def size(self, name: str) -> int:
        if name not in self.files:
            raise CheckpointError(f"memory/{name}: cannot be read")
        return len(self.files[name])

    def prepare(self, names: Iterable[str]) -> None:
        """Nothing to do."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        data = self.files[name][offset : offset + length]
        if offset < 0 or length < 0 or len(data) != length:
            raise CheckpointError(f"memory/{name}: ends too early")
        return data
