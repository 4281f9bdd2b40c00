"""What torch.save's pickles mean: tensors by reference, and the model among their values.

Nothing here does anything to the pickle's objects. A :class:`NamedGlobal` is two strings, a
:class:`PickledObject` is what the pickle *said* about an object; nothing is imported, called or
instantiated for it. They compare by identity, so that no hash or comparison walks into what an
untrusted file nested.

A whole-model pickle is a tree of records whose state has ``_parameters``, ``_buffers`` and
``_modules`` (torch/nn/modules/module.py). Walking it gives what ``state_dict()`` would, with
non-persistent buffers left out, and without any of the classes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gacprof.core.dtypes import BY_NAME, BY_STORAGE
from gacprof.core.errors import CheckpointError
from gacprof.core.points import MAX_DIM

MAX_NDIM = 64
MAX_ELEMENTS = 1 << 60

_MAX_ENTRIES = 250_000
_MAX_NAME = 1000
_MAX_NAMES = 64 << 20
"""Characters in all names of a model's modules and tensors together."""
_MAX_DEPTH = 64
_MAX_CONFIG = 1 << 20
"""Values of a config and characters of its texts together."""


@dataclass(frozen=True, eq=False)
class NamedGlobal:
    """A global that a pickle names. It is not looked up."""

    module: str
    name: str

    def __post_init__(self) -> None:
        if len(self.module) + len(self.name) > _MAX_NAME:
            raise CheckpointError(f"pickle: a class's name is longer than {_MAX_NAME} characters")

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False, slots=True)
class PickledObject:
    """An object that a pickle would have made: what of, from what, and its state."""

    of: Any
    args: Any = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)

    @property
    def class_name(self) -> str:
        return str(self.of) if isinstance(self.of, NamedGlobal) else "?"

    @property
    def attributes(self) -> Mapping[Any, Any]:
        """Its attributes; with slots the state is a pair whose first is the dict."""
        state = self.state[0] if isinstance(self.state, tuple) and self.state else self.state
        return state if isinstance(state, dict) else {}


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


@dataclass
class PickledState:
    """Tensors by name, and what a pickled model says besides."""

    tensors: dict[str, TensorRef] = field(default_factory=dict)
    attributes: dict[str, dict[str, Any]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


_BUILTINS = ("builtins", "__builtin__")
_EMPTY_DICTS = {
    "collections.OrderedDict",
    "collections.defaultdict",
    *(f"{b}.dict" for b in _BUILTINS),
}
_SEQUENCES = {f"{b}.{kind}" for b in _BUILTINS for kind in ("set", "frozenset", "list", "tuple")}
_VIEW_MAKERS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3")
_PARAMETERS = ("_rebuild_parameter", "_rebuild_parameter_with_state")


def reduced(of: Any, args: Any) -> Any:
    """What ``of(*args)`` stands for. A handful of names mean plain data; all else is a record.

    The names are those that ``torch.save`` writes for tensors (torch/_utils.py), and the
    plain containers of Python. Nothing is copied: a list that is used a million times stays one.
    """
    if not isinstance(of, NamedGlobal) or not isinstance(args, tuple):
        return PickledObject(of, args)
    if of.module == "torch._utils" and args:
        if of.name in _VIEW_MAKERS:
            return _view(of.name, args)
        if of.name in _PARAMETERS and isinstance(args[0], TensorRef):
            return args[0]
    name = str(of)
    if name == "torch._tensor._rebuild_from_type_v2" and len(args) >= 3:
        inner = args[0]
        if isinstance(inner, NamedGlobal) and inner.name != "_rebuild_from_type_v2":
            return reduced(inner, args[2])
    if name in _EMPTY_DICTS and (not args or name == "collections.defaultdict"):
        return {}
    if name in _SEQUENCES and not args:
        return []
    is_sequence = name in _SEQUENCES or name == "torch.Size"
    if is_sequence and len(args) == 1 and isinstance(args[0], list | tuple):
        return args[0]
    return PickledObject(of, args)


def dict_key(key: Any) -> Any:
    """``key`` if it is safe to hash: a scalar, a record, or a short flat tuple of those."""
    if isinstance(key, tuple) and len(key) <= 16:
        return tuple(_atom(part) for part in key)
    return _atom(key)


def _atom(key: Any) -> Any:
    if isinstance(key, int) and key.bit_length() > 64:
        raise CheckpointError("pickle: a dict key is a number of more than 64 bits")
    if key is None or isinstance(
        key, str | bytes | int | float | NamedGlobal | PickledObject | TensorRef
    ):
        return key
    raise CheckpointError(f"pickle: a {type(key).__name__} as a dict key is refused")


def persistent(pid: Any) -> StorageRef:
    """The storage that a persistent id of ``torch.save`` means: ``('storage', class, key, location,
    numel)``."""
    if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage":
        raise CheckpointError("pickle: a persistent id is not a torch storage")
    of, key, numel = pid[1], pid[2], pid[4]
    dtype = BY_STORAGE.get(of.name) if isinstance(of, NamedGlobal) else None
    if dtype is None:
        kind = str(of)[:80] if isinstance(of, NamedGlobal) else type(of).__name__
        raise CheckpointError(f"pickle: storage type {kind!r} is not known")
    if not isinstance(key, str) or not _is_count(numel):
        raise CheckpointError("pickle: a storage has no valid key or size")
    return StorageRef(key, dtype, numel)


def _view(maker: str, args: tuple[Any, ...]) -> TensorRef:
    if len(args) < 4:
        raise CheckpointError(f"pickle: {maker} with {len(args)} arguments")
    storage, offset, shape, stride = args[:4]
    if not isinstance(storage, StorageRef) or not _is_count(offset):
        raise CheckpointError("pickle: a tensor without a storage or offset")
    if not are_counts(shape, MAX_DIM) or not are_counts(stride) or len(shape) != len(stride):
        raise CheckpointError("pickle: a tensor's shape or stride is not a list of sizes")
    dtype = storage.dtype
    if maker == "_rebuild_tensor_v3":
        given = args[6] if len(args) > 6 else None
        dtype = given.name if isinstance(given, NamedGlobal) and given.module == "torch" else ""
        if dtype not in BY_NAME:
            raise CheckpointError(f"pickle: element type {dtype[:40]!r} is not known")
    return TensorRef(storage, offset, tuple(shape), tuple(stride), dtype)


def _is_count(value: Any) -> bool:
    return are_counts((value,))


def are_counts(value: Any, most: int = MAX_ELEMENTS) -> bool:
    """Whether it is a list of whole numbers, as a shape, a stride or a range of offsets is."""
    if not isinstance(value, (tuple, list)) or len(value) > MAX_NDIM:
        return False
    if not set(map(type, value)) <= {int}:
        return False
    return min(value, default=0) >= 0 and max(value, default=0) <= most


_AROUND = ("model", "state_dict", "model_state_dict", "module", "net")
"""Keys of dicts that people save around a model."""


def find_state(value: Any, where: str) -> PickledState:
    """The model in a pickle's value: itself, or one entry of a dict around it."""
    for _ in range(4):
        if _is_module(value):
            return _walk(value, where)
        if not isinstance(value, dict):
            break
        if any(isinstance(v, TensorRef) for v in value.values()):
            return _flat(value, where)
        inner = {k: v for k, v in value.items() if _is_module(v) or isinstance(v, dict)}
        key = next((k for k in _AROUND if k in inner), None)
        if key is None and len(inner) == 1:
            key = next(iter(inner))
        if key is None:
            break
        value = inner[key]
    kind = value.class_name if isinstance(value, PickledObject) else type(value).__name__
    raise CheckpointError(
        f"{where}: no state dict and no model in this pickle (its value is a {kind[:80]}); "
        "save model.state_dict() with torch.save"
    )


def _is_module(value: Any) -> bool:
    return isinstance(value, PickledObject) and isinstance(value.attributes.get("_modules"), dict)


def _flat(value: Mapping[Any, Any], where: str) -> PickledState:
    tensors = {name: ref for name, ref in value.items() if isinstance(ref, TensorRef)}
    if not all(isinstance(name, str) and _is_text(name) for name in tensors):
        raise CheckpointError(f"{where}: a tensor's name is not text")
    found = PickledState(tensors)
    others = len(value) - len(tensors)
    if others:
        found.notes.append(f"{others} entries of the state dict are not tensors and are left out")
    return found


def _walk(root: PickledObject, where: str) -> PickledState:
    """The state dict of a module tree. One module may be reached by several names (sharing).

    Each module is looked through once. What each of its names costs is counted, so that a few
    modules that share each other do not become more than a model has.
    """
    found = PickledState(config=_config(root.attributes.get("config"), where))
    known: dict[int, _Parts] = {}
    todo: list[tuple[str, PickledObject, int]] = [("", root, 0)]
    reached = characters = 0
    while todo:
        prefix, record, depth = todo.pop()
        if id(record) not in known:
            known[id(record)] = _parts(record)
        found.attributes[prefix], tensors, children = known[id(record)]
        reached += len(children)
        characters += (len(prefix) + 1) * (1 + len(tensors) + len(children))
        entries = max(reached, len(found.tensors) + len(tensors))
        if entries > _MAX_ENTRIES or characters > _MAX_NAMES or depth > _MAX_DEPTH:
            raise CheckpointError(
                f"{where}: more than {_MAX_ENTRIES} modules or tensors, or nested deeper than "
                f"{_MAX_DEPTH}, or with longer names: not a model"
            )
        for name, tensor in tensors:
            found.tensors[_joined(prefix, name, where)] = tensor
        for name, child in reversed(children):
            todo.append((_joined(prefix, name, where), child, depth + 1))
    return found


_Parts = tuple[dict[str, Any], list[tuple[str, TensorRef]], list[tuple[str, PickledObject]]]
"""What one module says of itself, and the tensors and modules that it holds by its own names."""


def _parts(record: PickledObject) -> _Parts:
    state = record.attributes
    transient = state.get("_non_persistent_buffers_set", ())
    transient = transient if isinstance(transient, list | tuple) else ()
    hidden = {name for name in transient if isinstance(name, str)}
    stored = (*_entries(state, "_parameters"), *_entries(state, "_buffers"))
    return (
        {"class": record.class_name, **_scalars(state)},
        [(n, value) for n, value in stored if isinstance(value, TensorRef) and n not in hidden],
        [
            (n, value)
            for n, value in _entries(state, "_modules")
            if isinstance(value, PickledObject)
        ],
    )


def _entries(state: Mapping[Any, Any], group: str) -> list[tuple[str, Any]]:
    entries = state.get(group)
    named = entries.items() if isinstance(entries, dict) else ()
    return [(name, value) for name, value in named if isinstance(name, str)]


def _joined(prefix: str, name: str, where: str) -> str:
    if len(prefix) + len(name) > _MAX_NAME:
        raise CheckpointError(f"{where}: a module's name is longer than {_MAX_NAME} characters")
    if not _is_text(name):
        raise CheckpointError(f"{where}: the name {name[:120]!r} is not text")
    return f"{prefix}.{name}" if prefix else name


def _scalars(state: Mapping[Any, Any]) -> dict[str, Any]:
    """A module's own plain attributes: numbers and short texts."""
    return {
        key: value
        for key, value in state.items()
        if isinstance(key, str)
        and not key.startswith("_")
        and key != "training"
        and not (isinstance(value, str) and len(value) > 200)
        and _is_scalar(value)
    }


def _is_scalar(value: Any) -> bool:
    """Null, text, a number of 64 bits, a finite float: what JSON can say."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return value.bit_length() <= 64
    return value is None or (isinstance(value, str) and _is_text(value))


def _is_text(value: str) -> bool:
    """Whether it can be written: a pickle may hold halves of characters (lone surrogates)."""
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


_CONFIG_CLASS = re.compile(r"transformers\.models\.([a-z0-9_]+)\.configuration_")
_NOT_PLAIN = object()


def _config(value: Any, where: str) -> dict[str, Any]:
    """A pickled ``PretrainedConfig`` as config.json would have it; empty for anything else.

    Entries that JSON cannot say are left out.
    """
    if not isinstance(value, PickledObject):
        return {}
    budget = [_MAX_CONFIG]
    config = {}
    for key, entry in value.attributes.items():
        if isinstance(key, str) and _is_text(key) and not key.startswith("_"):
            plain = _plain(entry, 0, budget, where)
            if plain is not _NOT_PLAIN:
                config[key] = plain
    found = _CONFIG_CLASS.match(value.class_name)
    if found and config:
        config.setdefault("model_type", found.group(1).replace("_", "-"))
    return config


def _plain(value: Any, depth: int, budget: list[int], where: str) -> Any:
    """``value`` as JSON has it, or ``_NOT_PLAIN``. ``budget`` counts down what was seen."""
    budget[0] -= 1 + (len(value) if isinstance(value, str) else 0)
    if budget[0] < 0:
        raise CheckpointError(f"{where}: its config has more than {_MAX_CONFIG} values or letters")
    if isinstance(value, NamedGlobal) and value.module == "torch":
        return value.name  # torch.float16
    if _is_scalar(value):
        return value
    if depth >= 8 or not isinstance(value, list | tuple | dict):
        return _NOT_PLAIN
    if isinstance(value, dict):
        budget[0] -= sum(len(key) for key in value if isinstance(key, str))
        if budget[0] < 0 or not all(
            _is_scalar(key) and isinstance(key, str | int) for key in value
        ):
            return _NOT_PLAIN
        made = {str(k): _plain(v, depth + 1, budget, where) for k, v in value.items()}
        return _NOT_PLAIN if _NOT_PLAIN in made.values() else made
    parts = [_plain(part, depth + 1, budget, where) for part in value]
    return _NOT_PLAIN if _NOT_PLAIN in parts else parts
