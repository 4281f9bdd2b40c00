"""What other packages bring by entry points: operators, devices, compressors, GPU generations."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any

from gacprof.core.errors import GacprofError, first_line


@cache
def brought(group: str) -> dict[str, Any]:
    """What the entry points of the group ``gacprof.<group>`` name, by their names.

    Raises :class:`GacprofError` for one that cannot be loaded.
    """
    found = {}
    for entry in entry_points(group=f"gacprof.{group}"):
        try:
            found[entry.name] = entry.load()
        except Exception as error:  # another package's code may raise anything
            raise GacprofError(
                f"the {group} of '{entry.value}' cannot be loaded: {first_line(error)}"
            ) from None
    return found
