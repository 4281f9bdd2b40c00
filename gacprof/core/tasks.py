"""Independent pieces of work, computed here or elsewhere."""

from __future__ import annotations

from collections.abc import Callable
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
