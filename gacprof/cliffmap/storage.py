"""Cliff maps on disk: found by name or path, checked, and written small."""

from __future__ import annotations

import json
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gacprof.cliffmap.consistency import contradiction
from gacprof.cliffmap.crossings import disagreement
from gacprof.cliffmap.schema import SCHEMA, MapFile
from gacprof.core.errors import MapError
from gacprof.core.files import write_text

FAMILY = SCHEMA.rsplit("/", 1)[0]


def read_map(name_or_path: str | Path) -> MapFile:
    """A shipped map by its name, or a file by its path.

    Raises :class:`MapError` naming the place and the reason for anything that is no map of
    this version.
    """
    text, where = _text(name_or_path)
    try:
        file = MapFile.model_validate_json(text)
    except ValidationError as error:
        raise MapError(f"{where} is no cliff map: {_reason(text, error)}") from None
    fault = contradiction(file) or disagreement(file)
    if fault is not None:
        raise MapError(f"{where} contradicts itself: {fault}")
    return file


def shipped_maps() -> list[str]:
    """Names of the maps that come with the package."""
    names = (entry.name for entry in resources.files("gacprof.maps").iterdir())
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


def write_map(file: MapFile, path: Path) -> None:
    """Write atomically: one line a curve, so that maps stay small and differences readable."""
    data = file.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    lines = [f'"{key}": {_value(value)}' for key, value in data.items()]
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _value(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(_compact(entry) for entry in value) + "\n]"
    return _compact(value)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _text(name_or_path: str | Path) -> tuple[str, str]:
    place: Path | Traversable = Path(name_or_path)
    if not _is_path(name_or_path):
        name = str(name_or_path)
        place = resources.files("gacprof.maps") / f"{name}.json"
        if name not in shipped_maps():
            raise MapError(
                f"there is no map '{name}': no such file, and the shipped maps are "
                f"{', '.join(shipped_maps()) or 'none'}"
            )
    try:
        return place.read_text(encoding="utf-8"), str(name_or_path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise MapError(f"cannot read the map {name_or_path}: {reason}") from None


def _is_path(name_or_path: str | Path) -> bool:
    if isinstance(name_or_path, Path):
        return True
    return name_or_path.endswith(".json") or "/" in name_or_path or Path(name_or_path).is_file()


def _reason(text: str, error: ValidationError) -> str:
    """The first thing wrong, with its place; a version we do not know comes before all else."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as fault:
        return f"not JSON ({fault})"
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema is None:
        return f"its 'schema' is missing (a map says \"{SCHEMA}\")"
    if schema != SCHEMA:
        family, _, version = str(schema).rpartition("/")
        if family == FAMILY and version.isdigit() and int(version) > int(SCHEMA.split("/")[1]):
            return f"it is {schema}, newer than the {SCHEMA} of this gacprof; upgrade gacprof"
        if family == FAMILY and version.isdigit():
            return (
                f"it is {schema}, of an earlier gacprof that did not measure in blocks; make it "
                "anew (gacprof sweep … --out RUN, then gacprof map build RUN)"
            )
        return f"its schema is {schema!r}, not {SCHEMA}"
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    return f"{_place(first['loc'], data)}: {message}"


def _place(loc: tuple[int | str, ...], data: Any) -> str:
    """``curves[3] (linear K …).points.d``: the position, and the curve in words if it has one."""
    words = ""
    for part in loc:
        words += f"[{part}]" if isinstance(part, int) else f".{part}" if words else str(part)
        data = data[part] if _holds(data, part) else None
        if isinstance(data, dict) and isinstance(part, int) and "axis" in data:
            words += f" ({data.get('operator')} {data.get('axis')} {data.get('fixed')})"
    return words or "the file"


def _holds(data: Any, part: int | str) -> bool:
    if isinstance(data, list):
        return isinstance(part, int) and 0 <= part < len(data)
    return isinstance(data, dict) and part in data
