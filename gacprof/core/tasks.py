"""How work runs: in pieces, here or elsewhere, without the garbage collector, or whole."""

from __future__ import annotations

import gc
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Tasks:
    """Runs a function at once, in this process. Others run it elsewhere, so functions and their
    arguments have to survive pickling."""

    ahead = 0
    """How many more pieces may be submitted before the first one's result is asked for."""

    def submit(self, function: Callable[..., T], *args: object) -> Callable[[], T]:
        """Gives the result when called; raises then what the function raised."""
        found = function(*args)
        return lambda: found

    def in_order(
        self, function: Callable[..., T], calls: Iterable[tuple[object, ...]]
    ) -> Iterator[T]:
        """What the function gives for each of ``calls``, in their order whoever is done first."""
        pending: deque[Callable[[], T]] = deque()
        for args in calls:
            pending.append(self.submit(function, *args))
            while len(pending) > self.ahead:
                yield pending.popleft()()
        while pending:
            yield pending.popleft()()


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection. It would be timed as the work's; in a CUDA capture it may free what
    must not be freed there, in a block it lets a GPU run dry; and where many objects are made
    that stay, it visits them all again and again. Also a decorator."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextmanager
def ctrl_c_held_back() -> Iterator[None]:
    """Ctrl-C waits until the end of the block. A module whose import it broke off half-way can not
    be imported again, which is what is done to leave things in order."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)
