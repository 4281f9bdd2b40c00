"""An unpickler that runs nothing: a small stack machine over the opcodes of a pickle.

``pickle.Unpickler`` imports what a pickle names and calls it; even with ``find_class``
replaced it sizes its memo by what the stream says and hashes nested keys in C. This machine
decodes with :mod:`pickletools` (which only parses), keeps a plain stack and a dict as memo,
and turns every call into an inert record (``pickled.py``). Work and memory are bounded by
the length of the stream and by ``MAX_OPERATIONS``.
"""

from __future__ import annotations

import pickletools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gacprof.checkpoint.pickled import (
    NamedGlobal,
    PickledObject,
    StorageRef,
    dict_key,
    persistent,
    reduced,
)
from gacprof.core.errors import CheckpointError

MAX_OPERATIONS = 4_000_000
"""A 7B whole-model pickle with its tokenizer has about 200 000; a slow tokenizer with
150 000 words adds up to 2 million."""

_MARK = object()


@dataclass(frozen=True)
class Unpickled:
    """A pickle's value, and every storage it names, by key."""

    value: Any
    storages: dict[str, StorageRef]


def unpickle(data: bytes, where: str) -> Unpickled:
    """Run a pickle.

    Raises :class:`CheckpointError`, naming ``where``, for a stream that is broken or refused.
    """
    machine = Machine()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickletools about odd escapes in the stream
            for count, (opcode, arg, _) in enumerate(pickletools.genops(data)):
                if count >= MAX_OPERATIONS:
                    raise CheckpointError(f"pickle: more than {MAX_OPERATIONS} operations")
                machine.step(opcode.name, arg)
        return Unpickled(machine.pop(), machine.storages)
    except CheckpointError as error:
        raise CheckpointError(f"{where}: {error}") from None
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeError) as error:
        # What pickletools and a stack that runs empty raise for a broken stream.
        raise CheckpointError(f"{where}: broken pickle: {str(error)[:200]}") from None


class Machine:
    """The pickle machine: a stack, a memo, and methods for what does more than push a literal."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, StorageRef] = {}

    def step(self, name: str, arg: Any) -> None:
        handler = _HANDLERS.get(name)
        if handler is None:
            raise CheckpointError(f"pickle: operation {name} is refused")
        handler(self, arg)

    def pop(self) -> Any:
        value = self.top()
        self.stack.pop()
        return value

    def pop_to_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise CheckpointError("pickle: no mark on the stack")
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def top(self) -> Any:
        if self.stack[-1] is _MARK:
            raise CheckpointError("pickle: a mark where a value was expected")
        return self.stack[-1]

    def put(self, index: int | None) -> None:
        self.memo[len(self.memo) if index is None else index] = self.top()

    def get(self, index: int) -> None:
        if index not in self.memo:
            raise CheckpointError(f"pickle: memo has no entry {index}")
        self.stack.append(self.memo[index])

    def stack_named(self, _: Any) -> None:
        name, module = self.pop(), self.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise CheckpointError("pickle: a global's name is not text")
        self.stack.append(NamedGlobal(module, name))

    def reduce(self, _: Any) -> None:
        args, of = self.pop(), self.pop()
        self.stack.append(reduced(of, args))

    def new_object_ex(self, _: Any) -> None:
        kwargs, args, of = self.pop(), self.pop(), self.pop()
        self.stack.append(PickledObject(of, (args, kwargs)))

    def instance_of(self, items: list[Any]) -> None:
        self.stack.append(reduced(items[0], tuple(items[1:])))

    def persistent(self, pid: Any) -> None:
        value = persistent(pid)
        self.storages.setdefault(value.key, value)
        self.stack.append(value)

    def build(self, _: Any) -> None:
        state, made = self.pop(), self.top()
        if isinstance(made, PickledObject):
            made.state = state  # a container's or tensor's extra attributes are not kept

    def tuple_of(self, count: int) -> None:
        self.stack.append(tuple([self.pop() for _ in range(count)][::-1]))

    def dict_of(self, _: Any) -> None:
        items = self.pop_to_mark()
        self.stack.append({})
        self.set_items(items)

    def append(self, items: list[Any]) -> None:
        target = self.top()
        if isinstance(target, PickledObject):
            target.items.extend(items)
        elif isinstance(target, list):
            target.extend(items)
        else:
            raise CheckpointError(f"pickle: append to a {type(target).__name__}")

    def set_items(self, items: list[Any]) -> None:
        target = self.top()
        if len(items) % 2:
            raise CheckpointError("pickle: a key without a value")
        pairs = zip(items[::2], items[1::2], strict=True)
        if isinstance(target, PickledObject):
            target.items.extend(pairs)
        elif isinstance(target, dict):
            target.update((dict_key(key), value) for key, value in pairs)
        else:
            raise CheckpointError(f"pickle: set an item of a {type(target).__name__}")


_BY_OPERATIONS: dict[str, Callable[[Machine, Any], Any]] = {
    "PROTO FRAME STOP": lambda m, _: None,
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT "
    "STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 "
    "UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BYTEARRAY8": lambda m, arg: m.stack.append(
        arg
    ),
    "NONE": lambda m, _: m.stack.append(None),
    "NEWTRUE": lambda m, _: m.stack.append(True),
    "NEWFALSE": lambda m, _: m.stack.append(False),
    "EMPTY_TUPLE": lambda m, _: m.stack.append(()),
    # sets come out as lists: their elements need not be safe to hash
    "EMPTY_LIST EMPTY_SET": lambda m, _: m.stack.append([]),
    "EMPTY_DICT": lambda m, _: m.stack.append({}),
    "MARK": lambda m, _: m.stack.append(_MARK),
    "POP": lambda m, _: m.stack.pop(),
    "DUP": lambda m, _: m.stack.append(m.top()),
    "POP_MARK": lambda m, _: m.pop_to_mark(),
    "PUT BINPUT LONG_BINPUT MEMOIZE": Machine.put,
    "GET BINGET LONG_BINGET": Machine.get,
    "GLOBAL": lambda m, arg: m.stack.append(_named(arg)),
    "STACK_GLOBAL": Machine.stack_named,
    "EXT1 EXT2 EXT4": lambda m, code: m.stack.append(NamedGlobal("copyreg", f"extension {code}")),
    "REDUCE NEWOBJ": Machine.reduce,
    "NEWOBJ_EX": Machine.new_object_ex,
    "INST": lambda m, arg: m.instance_of([_named(arg), *m.pop_to_mark()]),
    "OBJ": lambda m, _: m.instance_of(m.pop_to_mark()),
    "BUILD": Machine.build,
    "PERSID": Machine.persistent,
    "BINPERSID": lambda m, _: m.persistent(m.pop()),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.pop_to_mark())),
    "TUPLE1": lambda m, _: m.tuple_of(1),
    "TUPLE2": lambda m, _: m.tuple_of(2),
    "TUPLE3": lambda m, _: m.tuple_of(3),
    "LIST FROZENSET": lambda m, _: m.stack.append(m.pop_to_mark()),
    "DICT": Machine.dict_of,
    "APPEND": lambda m, _: m.append([m.pop()]),
    "APPENDS ADDITEMS": lambda m, _: m.append(m.pop_to_mark()),
    "SETITEM": lambda m, _: m.set_items([m.pop(), m.pop()][::-1]),
    "SETITEMS": lambda m, _: m.set_items(m.pop_to_mark()),
}
"""NEXT_BUFFER and READONLY_BUFFER (out-of-band data) are missing: there is no such data."""

_HANDLERS = {name: handler for names, handler in _BY_OPERATIONS.items() for name in names.split()}


def _named(arg: str) -> NamedGlobal:
    module, _, name = arg.partition(" ")  # pickletools joins the two lines by a blank
    return NamedGlobal(module, name)
