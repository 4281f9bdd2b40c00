"""A map was asked about something that it does not hold."""

from __future__ import annotations

from collections.abc import Mapping

from gacprof.core.errors import MapError
from gacprof.core.points import Flag


class MapMiss(MapError):  # noqa: N818 - a miss is an answer, and reads as one
    """The map lacks what was asked; the message names the sweep that would fill it.

    The attributes say what was asked, so that a caller can gather misses into a suite.
    ``axis`` is None where a single point was asked for; ``command`` is the one that measures it,
    where it is known.
    """

    def __init__(
        self,
        why: str,
        *,
        operator: str,
        dims: Mapping[str, int],
        dtype: str | None,
        flags: Mapping[str, Flag] | None = None,
        axis: str | None = None,
        command: str = "",
    ) -> None:
        self.operator = operator
        self.dims = dict(dims)
        self.dtype = dtype
        self.flags = dict(flags or {})
        self.axis = axis
        self.command = command
        fill = f"to measure it: {command}" if command else f"to fill it, sweep {self.sweep}"
        super().__init__(f"{why}; {fill}")

    @property
    def sweep(self) -> str:
        """The missing sweep in words, as a suite would state it."""
        dims = ", ".join(f"{name} = {size}" for name, size in sorted(self.dims.items()))
        flags = "".join(f", {name} = {value}" for name, value in sorted(self.flags.items()))
        over = f" over {self.axis}" if self.axis else ""
        at = f" at {dims}" if dims else ""
        dtype = f", dtype {self.dtype}" if self.dtype else ""
        return f"operator '{self.operator}'{over}{at}{dtype}{flags} (gacprof sweep SUITE)"
