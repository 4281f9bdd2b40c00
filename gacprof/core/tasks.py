"""How work runs: in pieces, here or elsewhere, and without the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
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
