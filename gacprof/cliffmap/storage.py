"""Cliff maps on disk: found by name or path, checked, written small; and in numbers, for lists."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gacprof.cliffmap import detect
from gacprof.cliffmap.schema import SCHEMA, Curve, MapFile
from gacprof.core.errors import MapError, other_version
from gacprof.core.files import Record, beginning, read_text, write_text
from gacprof.operators import OPERATORS

ROUNDING = 2e-4
"""Jumps are kept with four decimals, latencies with six digits."""


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
    fault = next(_contradictions(file), None)
    if fault is not None:
        raise MapError(f"{where} contradicts itself: {fault}")
    return file


def is_map(path: Path) -> bool:
    """Whether a file begins as a map does."""
    return b"gacprof.cliffmap/" in beginning(path)


def shipped_maps() -> list[str]:
    """Names of the maps that come with the package."""
    names = (entry.name for entry in resources.files("gacprof.maps").iterdir())
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


def write_map(file: MapFile, path: Path) -> None:
    """Write atomically: one line a curve, so that maps stay small and differences readable."""
    data = file.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    lines = []
    for key, value in data.items():
        text = _compact(value)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = "[\n" + ",\n".join(map(_compact, value)) + "\n]"
        lines.append(f'"{key}": {text}')
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _text(name_or_path: str | Path) -> tuple[str, str]:
    place: Path | Traversable = Path(name_or_path)
    name = str(name_or_path)
    named = isinstance(name_or_path, str) and not name.endswith(".json") and "/" not in name
    if named and not place.is_file():
        why = "it is no regular file" if os.path.lexists(name) else "no such file"
        why = "it is a folder, a sweep's has its map in cliffmap.json" if place.is_dir() else why
        place = resources.files("gacprof.maps") / f"{name}.json"
        if name not in shipped_maps():
            raise MapError(
                f"there is no map '{name}': {why}, and the shipped maps are "
                f"{', '.join(shipped_maps()) or 'none'}"
            )
    try:
        text = read_text(place) if isinstance(place, Path) else place.read_text(encoding="utf-8")
        return text, name
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise MapError(f"cannot read the map {name}: {reason}") from None


def _reason(text: str, error: ValidationError) -> str:
    """The first thing wrong, with its place; a version we do not know comes before all else."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as fault:
        return f"not JSON ({fault})"
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema is None:
        return f"its 'schema' is missing (a map says \"{SCHEMA}\")"
    if schema == SCHEMA:
        if _is_of_rules(data):
            stack, device = data["provenance"].get("stack") or {}, data.get("device") or {}
            return (
                "it is by rules, of an earlier gacprof that wrote them as a map; make it anew: "
                f"gacprof map rules --gpu '{device.get('name', 'GPU')}' --torch "
                f"{stack.get('torch', 'RELEASE')} --out FILE"
            )
        first = error.errors()[0]
        return f"{_place(first['loc'], data)}: {first['msg'].removeprefix('Value error, ')[:300]}"
    if schema == "gacprof.rules/1":
        return "it is by rules, a rule table of tiers: it knows no latency, which this needs"
    return other_version(
        schema, SCHEMA, "; make it anew: gacprof map build RUN (RUN: its sweep's folder; without "
        "one, gacprof sweep … --out RUN first)",
    )  # fmt: skip


def _is_of_rules(data: Any) -> bool:
    provenance = data.get("provenance")
    return isinstance(provenance, dict) and provenance.get("kind") == "rules"


def _place(loc: tuple[int | str, ...], data: Any) -> str:
    """``curves[3] (linear K …).points.d``: the position, and the curve in words if it has one."""
    words = ""
    for part in loc:
        words += f"[{part}]" if isinstance(part, int) else f".{part}" if words else str(part)
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            data = None
        if isinstance(data, dict) and isinstance(part, int) and "axis" in data:
            words += f" ({data.get('operator')} {data.get('axis')} {data.get('fixed')})"
    return words or "the file"


def _contradictions(file: MapFile) -> Iterator[str]:
    """Findings that the points of their curve contradict, in words."""
    for number, curve in enumerate(file.curves):
        for fault in chain(_of_dims(curve), _of_cliffs(curve)):
            yield f"curves[{number}] ({curve.identity}): {fault}"


def _of_dims(curve: Curve) -> Iterator[str]:
    """The axis and the fixed dims are all that a known operator has; verdicts follow from the
    penalties' bounds, and these hold the penalty itself."""
    known, p, coverage = OPERATORS.get(curve.operator), curve.points, curve.coverage
    if known is not None and {curve.axis, *curve.fixed} != set(known.dims):
        yield f"{curve.operator} has the dims {', '.join(known.dims)}"
    if coverage.measured != len(p.d):
        yield f"'coverage' says {coverage.measured} dims were measured, there are {len(p.d)}"
    most = curve.tolerance
    columns = (p.d, curve.verdicts, detect.penalty(p.latency_us), p.penalty_low, p.penalty_high)
    for d, verdict, penalty, low, high in zip(*columns, strict=True):
        if d in coverage.failed:
            yield f"{d} is among the measured and the failed dims"
        if not low - ROUNDING <= penalty or (high is not None and penalty > high + ROUNDING):
            yield f"the penalty of {d} is {penalty:.1%}, its bounds are {low} and {high}"
        if verdict == "safe" and (high is None or high > most + ROUNDING):
            yield f"'safe' names {d}, whose penalty may be {high or penalty:.1%}"
        if verdict == "misaligned" and low <= most - ROUNDING:
            yield f"'misaligned' names {d}, whose penalty may be as low as {low:.1%}"
        if verdict == "safe" and not coverage.compares(d):
            yield f"'safe' names {d}, but what it would be padded to was not measured"


def _of_cliffs(curve: Curve) -> Iterator[str]:
    latency = curve.latencies
    for cliff in curve.cliffs:
        jump = latency[cliff.after] / latency[cliff.before] - 1
        if abs(jump - cliff.jump) > ROUNDING * (1 + abs(jump)):
            yield (
                f"the cliff {cliff.before} → {cliff.after} says {cliff.jump:+.1%}, "
                f"the points say {jump:+.1%}"
            )


@dataclass(frozen=True)
class MapFacts(Record):
    """Where a map is from, what it holds, how its dims were judged. ``age_days`` counts from its
    creation, None for an unreadable date."""

    name: str
    device: str
    arch: str
    provenance: str
    source: str
    citation: str
    created: str
    age_days: int | None
    stack: Mapping[str, str | None]
    noise_floor: float | None
    too_noisy: str
    tolerances: list[float]
    curves: int
    points: int
    cliffs: int
    safe: int
    misaligned: int
    undecided: int


def map_facts(file: MapFile) -> MapFacts:
    verdicts = {
        verdict: sum(len(getattr(curve, verdict)) for curve in file.curves)
        for verdict in ("safe", "misaligned", "undecided")
    }
    return MapFacts(
        name=file.name,
        device=file.device.name,
        arch=file.device.arch,
        provenance=file.provenance.kind,
        source=file.provenance.source,
        citation=file.provenance.citation,
        created=file.provenance.created,
        age_days=_age(file.provenance.created),
        stack=dict(file.provenance.stack),
        noise_floor=file.noise.floor,
        too_noisy=file.too_noisy,
        tolerances=sorted({curve.tolerance for curve in file.curves}),
        curves=len(file.curves),
        points=sum(len(curve.points.d) for curve in file.curves) + len(file.isolated),
        cliffs=sum(len(curve.cliffs) for curve in file.curves),
        **verdicts,
    )


def _age(created: str) -> int | None:
    try:
        moment = datetime.fromisoformat(created.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (datetime.now(UTC) - (moment if moment.tzinfo else moment.replace(tzinfo=UTC))).days
