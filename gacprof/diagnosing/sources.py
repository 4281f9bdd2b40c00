"""Which source of sizes answers: a map's name or file, a rule table's file, or a GPU's name (its
rules, with times where others' measurements of it are installed).

A new source is one more branch of :func:`open_source`; all that diagnoses, plans or compresses
takes what it returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gacprof.cliffmap import CliffMap, shipped_maps
from gacprof.cliffmap.source import SizeSource
from gacprof.core.errors import MapError
from gacprof.core.files import read_bytes
from gacprof.devices.datasheet import sheets
from gacprof.elsewhere import data
from gacprof.elsewhere.data import short_name
from gacprof.elsewhere.table import ElsewhereTable
from gacprof.elsewhere.times import ProductTimes
from gacprof.kernels import fa2
from gacprof.rules.table import SCHEMA, RuleTable
from gacprof.rules.target import target

NEWEST = tuple(fa2.RECORDS)[-1]
"""The newest PyTorch release whose wheel was read: taken where a GPU is named without one."""


def rule_table(
    gpu: str, torch: str | None = None, dtypes: Sequence[str] = (), name: str = ""
) -> RuleTable:
    """The rules of a GPU that is not at hand (``h100``) with a PyTorch release (``2.11``; default:
    the newest one known).

    Raises :class:`MapError` for a GPU, a release or a data type without rules."""
    for what, text in (("gpu", gpu), ("torch", torch)):
        if not isinstance(text, str | None) or (what == "gpu" and text is None):
            raise MapError(f"{what} must be a name such as 'h100' or '2.11', not {text!r}")
    return RuleTable(target(gpu, torch or NEWEST), dtypes, name)


def gpu_source(gpu: str, torch: str | None = None, engine: str | None = None) -> SizeSource:
    """The rules of a GPU, with times where others' measurements of it are installed. Raises as
    :func:`open_source`."""
    try:
        rules = rule_table(gpu, torch)
    except MapError as error:
        raise MapError(_without_rules(gpu) or str(error)) from None
    try:
        return ElsewhereTable(rules.target, data.installed(), engine)
    except MapError:
        if engine is not None:
            raise
        return rules


def times_elsewhere(source: SizeSource) -> ProductTimes:
    """What others measured of a source's GPU, whether or not the source holds it. Raises
    :class:`MapError` where nobody measured that, or none of it is installed."""
    found: ProductTimes | None = source.times
    return found or ProductTimes(target(source.gpu, NEWEST), data.installed())


def _without_rules(gpu: str) -> str:
    """What to say of a GPU that others measured and that has no rules; empty for any other."""
    if short_name(gpu) in {short_name(known) for known in sheets()}:
        return ""
    try:
        data.installed().gpu(gpu)
    except MapError:
        return ""
    return (
        f"others measured '{gpu}', but it has no rules, so its sizes are not judged: "
        f"'gacprof gpus --gpu {gpu}' lists what there is; there are rules of {', '.join(sheets())}"
    )


def open_source(
    source: SizeSource | str | Path | None = None,
    *,
    gpu: str | None = None,
    torch: str | None = None,
    engine: str | None = None,
) -> SizeSource:
    """A source as it is, a map by its name, a map or a rule table by its file, or the rules of a
    ``gpu``, with others' times of it where they are installed, of one ``engine`` (vllm, sglang,
    trtllm) or by default the median of all. Raises :class:`MapError` for none of them or for two,
    and for an engine that was not measured."""
    if (source is None) == (gpu is None):
        raise MapError(
            "give either a map (--map, a name or a file) or, for the rules of a GPU that is not at "
            f"hand, its name (--gpu {', '.join(sheets())})"
        )
    if gpu is not None:
        return gpu_source(gpu, torch, engine)
    if torch is not None:
        raise MapError("a PyTorch release goes with a GPU's name (--gpu): a map has its own")
    if engine is not None:
        raise MapError("--engine goes with --gpu: a map is of one device and stack")
    if hasattr(source, "view"):
        return source  # type: ignore[return-value]
    if not isinstance(source, str | Path):
        raise MapError(f"{source!r} is no source of sizes: give a map or a rule table, or its file")
    path = Path(source)
    if path.is_file() and _is_rule_table(path):
        return RuleTable.load(path)
    known = {sheet.key for sheet in sheets().values()}
    if not path.exists() and str(source) in known and str(source) not in shipped_maps():
        raise MapError(
            f"'{source}' is a GPU, not a map: --gpu {source} takes its rules; in Python "
            f"gpu='{source}', or rule_table('{source}') as the source"
        )
    return CliffMap.load(source)


def _is_rule_table(path: Path) -> bool:
    """Whether a file names the schema of rule tables, of any version, wherever that stands in it.
    What cannot be read is none, and refused as a map."""
    try:
        return f'"{SCHEMA.partition("/")[0]}/'.encode() in read_bytes(path)
    except OSError:
        return False
