"""Which source of sizes answers: a map's name or file, a rule table's file, or a GPU's name.

A new source is one more branch of :func:`open_source`; all that diagnoses, plans or compresses
takes what it returns.
"""

from __future__ import annotations

from pathlib import Path

from gacprof.cliffmap import CliffMap, shipped_maps
from gacprof.cliffmap.source import SizeSource
from gacprof.core.errors import MapError
from gacprof.core.files import beginning
from gacprof.devices.datasheet import sheets
from gacprof.kernels import fa2
from gacprof.rules.table import SCHEMA, RuleTable
from gacprof.rules.target import target

NEWEST = tuple(fa2.RECORDS)[-1]
"""The newest PyTorch release whose wheel was read: taken where a GPU is named without one."""


def rule_table(gpu: str, torch: str | None = None, dtypes: tuple[str, ...] = ()) -> RuleTable:
    """The rules of a GPU that is not at hand (``h100``) with a PyTorch release (``2.11``; default:
    the newest one known).

    Raises :class:`MapError` for a GPU, a release or a data type without rules."""
    for name, text in (("gpu", gpu), ("torch", torch)):
        if not isinstance(text, str | None) or (name == "gpu" and text is None):
            raise MapError(f"{name} must be a name such as 'h100' or '2.11', not {text!r}")
    return RuleTable(target(gpu, torch or NEWEST), dtypes)


def open_source(
    source: SizeSource | str | Path | None = None,
    *,
    gpu: str | None = None,
    torch: str | None = None,
) -> SizeSource:
    """A source as it is, a map by its name, a map or a rule table by its file, or the rules of a
    ``gpu``. Raises :class:`MapError` for none of them or for two."""
    if (source is None) == (gpu is None):
        raise MapError(
            "give either a map (--map, a name or a file) or, for the rules of a GPU that is not at "
            f"hand, its name (--gpu {', '.join(sheets())})"
        )
    if gpu is not None:
        return rule_table(gpu, torch)
    if torch is not None:
        raise MapError("a PyTorch release goes with a GPU's name (--gpu): a map has its own")
    if hasattr(source, "view"):
        return source  # type: ignore[return-value]
    if not isinstance(source, str | Path):
        raise MapError(f"{source!r} is no source of sizes: give a map or a rule table, or its file")
    path = Path(source)
    if path.is_file() and SCHEMA.partition("/")[0].encode() in beginning(path):
        return RuleTable.load(path)
    known = {sheet.key for sheet in sheets().values()}
    if not path.exists() and str(source) in known and str(source) not in shipped_maps():
        raise MapError(f"'{source}' is a GPU, not a map: --gpu {source} takes its rules")
    return CliffMap.load(source)
