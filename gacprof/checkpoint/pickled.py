"""Tensors and attributes of a pickled model or state dict, read without running its code.

A pickle imports the classes that it names and calls them. Every class is a stand-in (:class:`Inert`)
that keeps what it was called with and its state; nothing else is ever imported or called. Then
:func:`tensors_of` walks those records as ``state_dict()`` would walk the modules
(torch/nn/modules/module.py). ``torch.save`` writes a zip file of the pickle, ``<root>/data.pkl``, and
a record for each storage, ``<root>/data/<key>``, uncompressed (torch/serialization.py).
"""

from __future__ import annotations

import math
import pickle
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gacprof.checkpoint.inventory import Contents, TensorInfo
from gacprof.core.dtypes import BY_NAME
from gacprof.core.errors import CheckpointError

MAX_PICKLE_BYTES = 64 << 20
"""Whole-model pickles carry a tokenizer, seldom more than 10 MB; tensors are not in there."""
MAX_MODULES = 250_000
MAX_DEPTH = 64

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "UntypedStorage": "uint8",
}
"""Element types by the class that a pickle names for a storage (torch/storage.py)."""

_AROUND = ("model", "state_dict", "model_state_dict", "module", "net")
"""Keys of dicts that people save around a model."""


class Inert:
    """Stand-in for an object of any class: what it was made of, its state and its items."""

    class_name = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> Inert:
        self = object.__new__(cls)
        self.__dict__.update(args=args, state={}, items={})
        return self

    def __setstate__(self, state: Any) -> None:
        self.__dict__["state"] = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__["items"][key] = value

    def append(self, value: Any) -> None:
        """Lists' items are not kept."""

    add = append

    def extend(self, values: Any) -> None:
        """Lists' items are not kept."""


class InertUnpickler(pickle._Unpickler):  # type: ignore[name-defined, misc]
    """Python's own unpickler, every global an empty class. The C one would be as safe, but a
    ``find_class`` that returns no real class keeps both from calling anything."""

    def find_class(self, module: str, name: str) -> type[Inert]:
        return type("Inert", (Inert,), {"class_name": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> tuple[str, str]:
        """The key of a storage and its element type, of ``('storage', class, key, location, n)``."""
        storage = pid[1].class_name.rpartition(".")[2]
        return str(pid[2]), _STORAGES[storage]


def read_torch_file(path: Path) -> Contents:
    """Return the tensors of a ``torch.save`` file, and what a pickled model says of itself.

    Raises :class:`CheckpointError`.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            value, storages = _unpickled(archive, file)
        return _contents(value, storages, path.name)
    except Exception as error:  # whatever a foreign pickle makes Python's own unpickler raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CheckpointError(
            f"{path} holds no state dict and no model that can be read ({reason}): save "
            "model.state_dict() with torch.save"
        ) from None


def _unpickled(archive: zipfile.ZipFile, file: Any) -> tuple[Any, dict[str, range]]:
    """The pickled value, and where in the file each storage lies."""
    entries = archive.infolist()
    (pickled,) = [e for e in entries if e.filename.rpartition("/")[2] == "data.pkl"]
    if pickled.file_size > MAX_PICKLE_BYTES or any(e.compress_type for e in entries):
        raise ValueError("its pickle is too large, or a record is compressed")
    with archive.open(pickled) as stream:
        value = InertUnpickler(stream, encoding="utf-8").load()
    root = pickled.filename.removesuffix("data.pkl") + "data/"
    storages = {}
    for entry in entries:
        if entry.filename.startswith(root):
            # a record's local header: 30 bytes, the last four the lengths of name and extra field
            file.seek(entry.header_offset + 26)
            start = entry.header_offset + 30 + sum(struct.unpack("<HH", file.read(4)))
            storages[entry.filename.removeprefix(root)] = range(start, start + entry.file_size)
    return value, storages


def _contents(value: Any, storages: Mapping[str, range], file: str) -> Contents:
    """The model among a pickle's values: itself, or an entry of a dict around it."""
    for _ in range(4):
        if _is_module(value) or any(_is_tensor(entry) for entry in _items(value).values()):
            break
        items = _items(value)
        keys = [
            key
            for key in (*_AROUND, *items)
            if _items(items.get(key)) or _is_module(items.get(key))
        ]
        value = items[keys[0]]
    tensors: dict[str, TensorInfo] = {}
    attributes: dict[str, dict[str, Any]] = {}
    for prefix, module in _modules(value):
        if _is_module(module):
            attributes[prefix] = {"class": module.class_name, **_plain_items(module.state)}
        for name, tensor in _tensors(module):
            full = f"{prefix}.{name}".removeprefix(".")
            tensors[full] = _located(full, tensor, storages, file)
    config = _config(value.state.get("config")) if _is_module(value) else {}
    return Contents(tensors, config, attributes=attributes, container="torch")


def _is_module(value: Any) -> bool:
    return isinstance(value, Inert) and "_modules" in _items(value.state)


def _is_tensor(value: Any) -> bool:
    """Tell whether it is a tensor, or a parameter around one (torch/_utils.py)."""
    is_call = isinstance(value, Inert) and value.class_name.startswith("torch._utils._rebuild_")
    return is_call and len(value.args) > 0


def _items(value: Any) -> dict[Any, Any]:
    """The entries of a dict, or of an ordered or defaulting one."""
    if isinstance(value, Inert):
        return value.items
    return value if isinstance(value, dict) else {}


def _modules(root: Any) -> Iterator[tuple[str, Any]]:
    """Every module by its name; a state dict is one module."""
    stack = [("", root)]
    for visited in range(MAX_MODULES):
        if not stack:
            return
        prefix, module = stack.pop()
        yield prefix, module
        if _is_module(module):
            children = list(_items(module.state["_modules"]).items())
            stack += [(f"{prefix}.{name}".removeprefix("."), m) for name, m in children[::-1]]
        if prefix.count(".") > MAX_DEPTH:
            break
    raise ValueError(f"it has more than {MAX_MODULES} modules or is deeper than {MAX_DEPTH}")


def _tensors(module: Any) -> Iterator[tuple[str, Inert]]:
    groups = [_items(module)]
    transient: Any = ()
    if _is_module(module):
        state = module.state
        groups = [_items(state.get("_parameters")), _items(state.get("_buffers"))]
        transient = state.get("_non_persistent_buffers_set", ())
    if isinstance(transient, Inert):  # pickled as a call of set with a list
        (transient,) = transient.args
    for group in groups:
        for name, value in group.items():
            if _is_tensor(value) and name not in transient:
                yield str(name), value


def _located(name: str, tensor: Inert, storages: Mapping[str, range], file: str) -> TensorInfo:
    """A tensor in its storage; ``ValueError`` where it does not fit."""
    while isinstance(tensor.args[0], Inert):  # a parameter
        tensor = tensor.args[0]
    (key, dtype), start, shape, strides = tensor.args[:4]
    itemsize, record = BY_NAME[dtype].itemsize, storages[key]
    shape, strides = tuple(shape), tuple(strides)
    numel = math.prod(shape)
    last = start + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    is_counts = all(type(n) is int and n >= 0 for n in (start, *shape, *strides))
    if not is_counts or (numel and (last + 1) * itemsize > len(record)):
        raise ValueError(f"tensor {name[:100]!r} reaches beyond its storage")
    offset = record.start + start * itemsize
    stride = None if _is_contiguous(shape, strides) else strides
    return TensorInfo(name, shape, dtype, file, offset, numel * itemsize, stride)


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    rows = zip(shape, strides, expected, strict=True)
    return 0 in shape or all(n == 1 or stride == step for n, stride, step in rows)


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Tell whether JSON can say it: null, text, numbers, and lists and dicts of those."""
    if isinstance(value, dict | list | tuple) and depth < 8:
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        return all(_is_plain(part, depth + 1) for part in parts)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)


def _plain_items(state: Mapping[Any, Any]) -> dict[str, Any]:
    """A module's own attributes that are numbers or texts."""
    return {
        key: value
        for key, value in state.items()
        if isinstance(key, str) and not key.startswith("_") and key != "training"
        if _is_plain(value) and not isinstance(value, dict | list | tuple)
    }


def _config(config: Any) -> dict[str, Any]:
    """A pickled ``PretrainedConfig`` as config.json has it; what JSON cannot say is left out."""
    if not isinstance(config, Inert):
        return {}
    plain = {}
    for key, value in _items(config.state).items():
        if isinstance(value, type) and issubclass(value, Inert):
            value = value.class_name.removeprefix("torch.")  # torch.float16
        if isinstance(key, str) and not key.startswith("_") and _is_plain(value):
            plain[key] = value
    match = re.match(r"transformers\.models\.([a-z0-9_]+)\.configuration_", config.class_name)
    if match and plain:
        plain.setdefault("model_type", match[1].replace("_", "-"))
    return plain
