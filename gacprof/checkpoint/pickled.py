"""Read tensors and attributes of a pickled model or state dict without running its code.

Every class that it names is a stand-in (:class:`Inert`). Those are walked as ``state_dict()`` walks
modules (torch/nn/modules/module.py). ``torch.save`` writes a zip file of ``<root>/data.pkl`` and a
record for each storage, ``<root>/data/<key>``, uncompressed (torch/serialization.py).
"""

import math
import os
import pickle
import struct
import zipfile
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from gacprof.checkpoint.inventory import Contents, TensorInfo
from gacprof.checkpoint.layouts.names import WORDS
from gacprof.core.dtypes import BY_NAME
from gacprof.core.errors import CheckpointError
from gacprof.core.files import row_of_word

MAX_PICKLE_BYTES = 64 << 20  # whole models carry a tokenizer, seldom more than 10 MB
MAX_OPCODES = 10_000_000  # 250,000 words and their merges take 4 million, at a million a second
MAX_MODULES = 100_000
_STORAGES = row_of_word(WORDS["storages"])  # element types by a pickle's class of storage
_AROUND = ("model", "state_dict", "model_state_dict", "module", "net")  # dicts around a model


class Inert:
    """A stand-in for an object of any class: what it was called with, its state and its items."""

    class_name = ""
    args: tuple[Any, ...]
    state: Any
    items: dict[Any, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> "Inert":
        self = object.__new__(cls)
        self.args, self.state, self.items = args, {}, {}
        return self

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items[key] = value

    def append(self, value: Any) -> None:
        """Drop the item: those of lists and sets are not kept."""

    extend = add = append


def _load_short_list(unpickler: Any, length: int) -> None:
    unpickler.stack[-length:] = [unpickler.stack[-length:]]


_LOADERS = pickle._Unpickler.dispatch
_AS_LISTS: dict[int, Any] = {
    pickle.EMPTY_TUPLE[0]: _LOADERS[pickle.EMPTY_LIST[0]],
    pickle.TUPLE1[0]: partial(_load_short_list, length=1),
    pickle.TUPLE2[0]: partial(_load_short_list, length=2),
    pickle.TUPLE3[0]: partial(_load_short_list, length=3),
    pickle.TUPLE[0]: _LOADERS[pickle.LIST[0]],
    pickle.FROZENSET[0]: _LOADERS[pickle.LIST[0]],
}


class BoundedLoaders(dict[int, Any]):
    """Loaders by opcode, which are looked up once for every opcode of a pickle."""

    lookups = 0

    def __getitem__(self, opcode: int) -> Any:
        self.lookups += 1
        if self.lookups > MAX_OPCODES:
            raise ValueError(f"its pickle has more than {MAX_OPCODES:,} opcodes")
        return super().__getitem__(opcode)


class InertUnpickler(pickle._Unpickler):
    """Python's own unpickler (the one in C would not be safer), every global an empty class.

    Tuples and frozen sets are read as lists, so that Python refuses them as keys of dicts: to hash
    a nest of tuples can take a time exponential in its depth.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream, encoding="utf-8")
        self.dispatch = BoundedLoaders(_LOADERS | _AS_LISTS)  # type: ignore[misc]

    def find_class(self, module: str, name: str) -> type[Inert]:
        # A new class each time, which holds nothing but the name: no import takes place
        return type("Inert", (Inert,), {"class_name": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> tuple[str, str]:
        """Return key and type of a storage; ``pid`` is ['storage', class, key, location, size]."""
        _, storage, key, *_ = pid
        if not isinstance(key, str):
            raise TypeError("the key of a storage is no text")
        return key, _STORAGES[storage.class_name.rpartition(".")[2]]


def read_torch_file(path: Path) -> Contents:
    """Return the tensors of a ``torch.save`` file, and what a pickled model says of itself."""
    tensors: dict[str, TensorInfo] = {}
    attributes: dict[str, dict[str, Any]] = {}
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            model, storages = _unpickled(archive, file)
        modules = list(islice(_modules(model), MAX_MODULES + 1))
        if len(modules) > MAX_MODULES:
            raise ValueError(f"it has more than {MAX_MODULES:,} modules")
        for prefix, module in modules:
            for name, tensor in _tensors(module).items():
                tensors[prefix + name] = _located(prefix + name, tensor, storages, path.name)
            if _is_module(module):
                facts = {"class": module.class_name} | _scalars(module.state)
                attributes[prefix.removesuffix(".")] = facts
        config = _config(_items(getattr(model, "state", None)).get("config"))
    except Exception as error:  # whatever a foreign pickle makes Python's own unpickler raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CheckpointError(
            f"{path} holds no state dict and no model that can be read ({reason}): save "
            "model.state_dict() with torch.save"
        ) from None
    return Contents(tensors, config, attributes=attributes, container="torch")


def _unpickled(archive: zipfile.ZipFile, file: Any) -> tuple[Any, dict[str, range]]:
    """Return the pickled model, and where in the file each storage lies."""
    entries = archive.infolist()
    (pickled,) = [e for e in entries if e.filename.rpartition("/")[2] == "data.pkl"]
    if pickled.file_size > MAX_PICKLE_BYTES or any(e.compress_type for e in entries):
        raise ValueError("its pickle is too large, or a record is compressed")
    with archive.open(pickled) as stream:
        value = InertUnpickler(stream).load()
    root = pickled.filename.removesuffix("data.pkl") + "data/"
    storages = {}
    file_size = file.seek(0, os.SEEK_END)
    for entry in entries:
        # a record's local header: 30 bytes, the last four the lengths of name and extra field
        file.seek(entry.header_offset + 26)
        start = entry.header_offset + 30 + sum(struct.unpack("<HH", file.read(4)))
        # The directory may claim more bytes than the file has
        stop = min(start + entry.file_size, file_size)
        storages[entry.filename.removeprefix(root)] = range(start, stop)
    return _model_in(value), storages


def _model_in(value: Any) -> Any:
    """Return the model or state dict: a pickle's value, or an entry of the dict around it."""
    # A pickle may hold itself: the depth is bounded
    for _ in range(4):
        items = _items(value)
        if _is_module(value) or _tensors(value):
            return value
        value = next((items[key] for key in (*_AROUND, *items) if _items(items.get(key))), None)
    raise ValueError("there is no model")


def _is_module(value: Any) -> bool:
    return isinstance(value, Inert) and "_modules" in _items(value.state)


def _items(value: Any) -> dict[Any, Any]:
    """Return the entries of a dict, of an ordered or defaulting one, or of an object's state."""
    if isinstance(value, Inert):
        return value.items or _items(value.state)
    return value if isinstance(value, dict) else {}


def _modules(module: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every module with its name and a dot; a state dict is one module."""
    yield prefix, module
    for name, child in _items(_items(module).get("_modules")).items():
        if _is_module(child):
            yield from _modules(child, f"{prefix}{name}.")


def _tensors(module: Any) -> dict[str, Inert]:
    """Return the tensors of a module or a state dict (torch/_utils.py rebuilds them)."""
    items = _items(module)
    entries = {**items, **_items(items.get("_parameters")), **_items(items.get("_buffers"))}
    transient = items.get("_non_persistent_buffers_set")
    hidden = transient.args[0] if isinstance(transient, Inert) and transient.args else ()
    tensors = {}
    for name, value in entries.items():
        is_tensor = getattr(value, "class_name", "").startswith("torch._utils._rebuild_")
        if is_tensor and name not in hidden:
            tensors[str(name)] = value
    return tensors


def _located(name: str, tensor: Inert, storages: Mapping[str, range], file: str) -> TensorInfo:
    """Return a tensor in its storage; raise ``ValueError`` where it does not fit."""
    while isinstance(tensor.args[0], Inert):  # a parameter is called with its tensor
        tensor = tensor.args[0]
    (key, dtype), start, shape, strides, *rest = tensor.args
    if dtype == "untyped":
        dtype = rest[2].class_name.removeprefix("torch.")
    if not all(type(n) is int and n >= 0 for n in (start, *shape, *strides)):
        raise ValueError(f"tensor {name[:100]!r} has no counts for sizes")
    itemsize, record = BY_NAME[dtype].itemsize, storages[key]
    numel = math.prod(shape)
    spans = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    if numel and (start + sum(spans) + 1) * itemsize > len(record):
        raise ValueError(f"tensor {name[:100]!r} reaches beyond its storage")
    # Strides of axes of length 1 may be anything, so spans are compared
    flat = [(n - 1) * math.prod(shape[i + 1 :]) for i, n in enumerate(shape)]
    stride = None if flat == spans or not numel else tuple(strides)
    offset = record.start + start * itemsize
    return TensorInfo(name, tuple(shape), dtype, file, offset, numel * itemsize, stride)


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _scalars(state: Any) -> dict[str, Any]:
    """Return a module's own attributes that are numbers or texts."""
    items = {str(key): value for key, value in _items(state).items() if _is_scalar(value)}
    return {key: items[key] for key in items if key[:1] != "_" and key != "training"}


def _config(config: Any) -> dict[str, Any]:
    """Return a pickled ``PretrainedConfig`` as config.json has it, without what JSON cannot say."""
    plain = _scalars(config)
    for key, value in _items(config).items():
        parts = [*value.values(), *value] if isinstance(value, dict) else value
        if isinstance(parts, list) and all(map(_is_scalar, parts)):
            plain[str(key)] = value
        elif isinstance(value, type):
            plain[str(key)] = getattr(value, "class_name", "").removeprefix("torch.")  # a dtype
    words = getattr(config, "class_name", "").split(".")
    if words[:2] == ["transformers", "models"]:
        plain.setdefault("model_type", words[2])
    return plain
