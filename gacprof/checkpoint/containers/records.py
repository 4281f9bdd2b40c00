"""What comes out of a pickle: plain containers, tensors by reference, and inert records.

None of these classes does anything. A :class:`Named` is two strings, a :class:`Record` is what
the pickle *said* about an object; nothing is ever imported, called or instantiated for it.
They compare by identity, so that no hash or comparison walks into what a stranger nested.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gacprof.checkpoint.dtypes import BY_NAME, BY_STORAGE
from gacprof.core.errors import CheckpointError

MAX_NDIM = 64
MAX_ELEMENTS = 1 << 60


@dataclass(frozen=True, eq=False)
class Named:
    """A global that a pickle names. It is not looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, slots=True)
class Record:
    """An object that a pickle would have made: what of, from what, and its state."""

    of: Any
    args: Any = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)

    @property
    def class_name(self) -> str:
        return str(self.of) if isinstance(self.of, Named) else "?"


@dataclass(frozen=True, eq=False)
class StorageRef:
    """A storage by its key in the container; ``numel`` counts elements of ``dtype``."""

    key: str
    dtype: str
    numel: int


@dataclass(frozen=True, eq=False)
class TensorRef:
    """A view of a storage; ``offset`` and ``stride`` are in elements."""

    storage: StorageRef
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str


_BUILTINS = ("builtins", "__builtin__")
_EMPTY_DICTS = {("collections", "OrderedDict"), *((b, "dict") for b in _BUILTINS)}
_SEQUENCES = ("set", "frozenset", "list", "tuple")
_VIEW_MAKERS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3")
_WRAPPERS = ("_rebuild_parameter", "_rebuild_parameter_with_state")


def reduced(of: Any, args: Any) -> Any:
    """What ``of(*args)`` stands for. A handful of names mean plain data; all else is a record.

    The names are those that ``torch.save`` writes for tensors (torch/_utils.py), and the
    plain containers of Python.
    """
    if not isinstance(of, Named) or not isinstance(args, tuple):
        return Record(of, args)
    if of.module == "torch._utils" and args:
        if of.name in _VIEW_MAKERS:
            return _view(of.name, args)
        if of.name in _WRAPPERS and isinstance(args[0], TensorRef):
            return args[0]
    if str(of) == "torch._tensor._rebuild_from_type_v2" and len(args) >= 3:
        inner = args[0]
        if isinstance(inner, Named) and inner.name != "_rebuild_from_type_v2":
            return reduced(inner, args[2])
    return _container(of, args)


def _container(of: Named, args: tuple[Any, ...]) -> Any:
    """Plain containers. Nothing is copied: a list that is used a million times stays one."""
    if not args and (of.module, of.name) in _EMPTY_DICTS:
        return {}
    if str(of) == "collections.defaultdict":
        return {}
    items = args[0] if len(args) == 1 else []
    if isinstance(items, list | tuple):
        if of.module in _BUILTINS and of.name in _SEQUENCES and len(args) <= 1:
            return items
        if str(of) == "torch.Size" and args:
            return items
    return Record(of, args)


def dict_key(key: Any) -> Any:
    """``key`` if it is safe to hash: a scalar, a record, or a short flat tuple of those."""
    if isinstance(key, tuple) and len(key) <= 16:
        return tuple(_atom(part) for part in key)
    return _atom(key)


def _atom(key: Any) -> Any:
    if isinstance(key, int) and key.bit_length() > 64:
        raise CheckpointError("pickle: a dict key is a number of more than 64 bits")
    if key is None or isinstance(key, str | bytes | int | float | Named | Record | TensorRef):
        return key
    raise CheckpointError(f"pickle: a {type(key).__name__} as a dict key is refused")


def persistent(pid: Any) -> StorageRef | Named:
    """The storage that a persistent id of ``torch.save`` means.

    Zip files: ``('storage', class, key, location, numel)``; legacy files add a sixth entry,
    a view into another storage, which torch has not written since 0.4 and which is refused.
    Legacy whole-model pickles also keep classes this way, with the text of their source file:
    ``('module', class, file, source)`` gives the class's name.
    """
    if isinstance(pid, tuple) and len(pid) == 4 and pid[0] == "module":
        if isinstance(pid[1], Named):
            return pid[1]
        raise CheckpointError("pickle: a persistent id of a class names none")
    if not isinstance(pid, tuple) or len(pid) not in (5, 6) or pid[0] != "storage":
        raise CheckpointError("pickle: a persistent id is not a torch storage")
    of, key, numel = pid[1], pid[2], pid[4]
    dtype = BY_STORAGE.get(of.name) if isinstance(of, Named) else None
    if dtype is None:
        raise CheckpointError(f"pickle: storage type {str(of)[:80]!r} is not known")
    if not isinstance(key, str) or not _is_count(numel):
        raise CheckpointError("pickle: a storage has no valid key or size")
    if len(pid) == 6 and pid[5] is not None:
        raise CheckpointError("pickle: views of storages (torch < 0.4) are not read; save it anew")
    return StorageRef(key, dtype, numel)


def _view(maker: str, args: tuple[Any, ...]) -> TensorRef:
    if len(args) < 4:
        raise CheckpointError(f"pickle: {maker} with {len(args)} arguments")
    storage, offset, shape, stride = args[:4]
    if not isinstance(storage, StorageRef) or not _is_count(offset):
        raise CheckpointError("pickle: a tensor without a storage or offset")
    if not _are_counts(shape) or not _are_counts(stride) or len(shape) != len(stride):
        raise CheckpointError("pickle: a tensor's shape or stride is not a list of sizes")
    dtype = storage.dtype
    if maker == "_rebuild_tensor_v3":
        given = args[6] if len(args) > 6 else None
        name = given.name if isinstance(given, Named) and given.module == "torch" else ""
        if name not in BY_NAME:
            raise CheckpointError(f"pickle: element type {name[:40]!r} is not known")
        dtype = name
    return TensorRef(storage, offset, tuple(shape), tuple(stride), dtype)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_ELEMENTS


def _are_counts(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) <= MAX_NDIM and all(map(_is_count, value))
