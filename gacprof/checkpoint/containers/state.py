"""From the value of a pickle to named tensors: a state dict, or a model's module tree.

A whole-model pickle is a tree of records whose state has ``_parameters``, ``_buffers`` and
``_modules`` (torch/nn/modules/module.py). Walking it gives what ``state_dict()`` would, with
non-persistent buffers left out, and without any of the classes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gacprof.checkpoint.containers.records import Named, Record, TensorRef
from gacprof.core.errors import CheckpointError

_WRAPPERS = ("model", "state_dict", "model_state_dict", "module", "net")
_MAX_ENTRIES = 250_000
_MAX_NAME = 1000
_MAX_DEPTH = 64
_MAX_CONFIG_VALUES = 100_000
_MODEL_FILE = re.compile(r"transformers\.models\.([a-z0-9_]+)\.configuration_")


@dataclass
class State:
    """Tensors by name, and what a pickled model says besides."""

    tensors: dict[str, TensorRef] = field(default_factory=dict)
    attributes: dict[str, dict[str, Any]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def find_state(value: Any, where: str) -> State:
    """The model in a pickle's value: itself, or one entry of a dict around it."""
    for _ in range(4):
        if _is_module(value):
            return _walk(value, where)
        if not isinstance(value, dict):
            break
        if any(isinstance(v, TensorRef) for v in value.values()):
            return _flat(value, where)
        inner = {k: v for k, v in value.items() if _is_module(v) or isinstance(v, dict)}
        key = next((k for k in _WRAPPERS if k in inner), None)
        if key is None and len(inner) == 1:
            key = next(iter(inner))
        if key is None:
            break
        value = inner[key]
    kind = value.class_name if isinstance(value, Record) else type(value).__name__
    raise CheckpointError(
        f"{where}: no state dict and no model in this pickle (its value is a {kind[:80]}); "
        "save model.state_dict() with torch.save"
    )


def _is_module(value: Any) -> bool:
    return isinstance(value, Record) and isinstance(_state(value).get("_modules"), dict)


def _state(record: Record) -> Mapping[Any, Any]:
    """The attributes of a record; with slots the state is a pair whose first is the dict."""
    state = record.state
    if isinstance(state, tuple) and state:
        state = state[0]
    return state if isinstance(state, dict) else {}


def _flat(value: Mapping[Any, Any], where: str) -> State:
    found = State()
    others = 0
    for name, tensor in value.items():
        if isinstance(tensor, TensorRef):
            if not isinstance(name, str):
                raise CheckpointError(f"{where}: a tensor's name is not text")
            found.tensors[name] = tensor
        else:
            others += 1
    if others:
        found.notes.append(f"{others} entries of the state dict are not tensors and are left out")
    return found


def _walk(root: Record, where: str) -> State:
    """The state dict of a module tree. One module may be reached by several names (sharing)."""
    found = State(config=config_of(_state(root).get("config"), where))
    todo: list[tuple[str, Record, int]] = [("", root, 0)]
    reached = 0
    while todo:
        prefix, record, depth = todo.pop()
        state = _state(record)
        found.attributes[prefix] = {"class": record.class_name, **_scalars(state)}
        for name, tensor in _own_tensors(state):
            found.tensors[_joined(prefix, name, where)] = tensor
        children = state.get("_modules")
        for name, child in reversed(children.items()) if isinstance(children, dict) else ():
            if isinstance(name, str) and isinstance(child, Record):
                todo.append((_joined(prefix, name, where), child, depth + 1))
                reached += 1
        if reached > _MAX_ENTRIES or len(found.tensors) > _MAX_ENTRIES or depth > _MAX_DEPTH:
            raise CheckpointError(
                f"{where}: more than {_MAX_ENTRIES} modules or tensors, or nested deeper than "
                f"{_MAX_DEPTH}: not a model"
            )
    return found


def _own_tensors(state: Mapping[Any, Any]) -> Iterator[tuple[str, TensorRef]]:
    transient = state.get("_non_persistent_buffers_set", ())
    transient = transient if isinstance(transient, list | tuple) else ()
    hidden = {name for name in transient if isinstance(name, str)}
    for group in ("_parameters", "_buffers"):
        entries = state.get(group)
        for name, tensor in entries.items() if isinstance(entries, dict) else ():
            if isinstance(tensor, TensorRef) and isinstance(name, str) and name not in hidden:
                yield name, tensor


def _joined(prefix: str, name: str, where: str) -> str:
    if len(prefix) + len(name) > _MAX_NAME:
        raise CheckpointError(f"{where}: a module's name is longer than {_MAX_NAME} characters")
    return f"{prefix}.{name}" if prefix else name


def _scalars(state: Mapping[Any, Any]) -> dict[str, Any]:
    """A module's own plain attributes: numbers and short texts."""
    return {
        key: value
        for key, value in state.items()
        if isinstance(key, str)
        and not key.startswith("_")
        and key != "training"
        and _is_scalar(value)
        and not (isinstance(value, str) and len(value) > 200)
    }


def _is_scalar(value: Any) -> bool:
    """Null, text, a number of 64 bits, a finite float: what JSON can say."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return value.bit_length() <= 64
    return value is None or isinstance(value, str)


def config_of(value: Any, where: str) -> dict[str, Any]:
    """A pickled ``PretrainedConfig`` as config.json would have it; empty for anything else.

    Entries that JSON cannot say are left out.
    """
    if not isinstance(value, Record):
        return {}
    budget = [_MAX_CONFIG_VALUES]
    config = {}
    for key, entry in _state(value).items():
        if isinstance(key, str) and not key.startswith("_"):
            plain = _plain(entry, 0, budget, where)
            if plain is not _NOT_PLAIN:
                config[key] = plain
    found = _MODEL_FILE.match(value.class_name)
    if found and config:
        config.setdefault("model_type", found.group(1).replace("_", "-"))
    return config


_NOT_PLAIN = object()


def _plain(value: Any, depth: int, budget: list[int], where: str) -> Any:
    """``value`` as JSON has it, or ``_NOT_PLAIN``. ``budget`` counts down the values seen."""
    budget[0] -= 1
    if budget[0] < 0:
        raise CheckpointError(f"{where}: its config has more than {_MAX_CONFIG_VALUES} values")
    if isinstance(value, Named) and value.module == "torch":
        return value.name  # torch.float16
    if _is_scalar(value):
        return value
    if depth >= 8 or not isinstance(value, list | tuple | dict):
        return _NOT_PLAIN
    if isinstance(value, dict):
        if not all(isinstance(key, str | int) for key in value):
            return _NOT_PLAIN
        made = {str(k): _plain(v, depth + 1, budget, where) for k, v in value.items()}
        return _NOT_PLAIN if _NOT_PLAIN in made.values() else made
    parts = [_plain(part, depth + 1, budget, where) for part in value]
    return _NOT_PLAIN if _NOT_PLAIN in parts else parts
