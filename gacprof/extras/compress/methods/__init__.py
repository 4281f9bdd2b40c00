"""The compression methods that can be run: one file each, and one line in
:data:`gacprof.extras.compress.request.METHODS`.

How the tools lay out their checkpoints is known to :mod:`gacprof.checkpoint.layouts`."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from gacprof.core.errors import CompressionError
from gacprof.core.plugins import brought
from gacprof.extras.compress.depth import DropLayers
from gacprof.extras.compress.methods.llmpruner import TaylorPruning
from gacprof.extras.compress.methods.method import LowRank
from gacprof.extras.compress.request import METHODS, method_names

__all__ = ["Method", "method_named"]

Method = LowRank | TaylorPruning | DropLayers


def method_named(name: str, options: dict[str, Any]) -> Method:
    """The method of that name with its own options. Raises :class:`CompressionError`."""
    if name not in method_names():
        raise CompressionError(f"unknown method '{name}' (there are {', '.join(method_names())})")
    made = resolve_name(METHODS[name]) if name in METHODS else brought("methods", _class)[name]
    try:
        found: Method = made(**options)
    except TypeError:
        raise CompressionError(f"{name} does not take {', '.join(options)}") from None
    return found


def _class(found: Any) -> type[Method]:
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise TypeError("a subclass of LowRank is needed")
    return found
