"""Blocks as rows: of the journal (one a block) and of Parquet (one a call)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gacprof.core.points import Block, Call, Point

if TYPE_CHECKING:
    import pandas as pd

STATE = ("throttled", "sm_clock_mhz", "mem_clock_mhz", "temperature_c", "power_w")
"""Columns of a block's state."""
COLUMNS = (
    "block", "process", "axis", "timer", "taken_at", "position", "point", "replicate",
    "predecessor", "us", "disturbed", *STATE, "operator", "dims", "dtype", "flags",
)  # fmt: skip
"""Of ``samples.parquet``. ``position`` counts a block's calls from 0, ``predecessor`` is the
point of the call before it (none at 0)."""


def point_of(row: Mapping[str, Any]) -> Point:
    """The point of a row with ``operator``, ``dims``, ``dtype`` and ``flags``, the latter as
    mappings or as JSON. Raises ``KeyError``, ``TypeError``, ``ValueError``."""
    dims, flags = (json.loads(v) if isinstance(v, str) else v for v in (row["dims"], row["flags"]))
    if not all(type(size) is int for size in dims.values()):
        raise ValueError(f"dims {dims} are no whole numbers")
    return Point.of(str(row["operator"]), dims, str(row["dtype"]), flags)


def row_of(block: Block) -> dict[str, Any]:
    """A line of the journal; points by their id."""
    return {
        "number": block.number,
        "process": block.process,
        "axis": block.axis,
        "timer": block.timer,
        "taken_at": round(block.taken_at, 3),
        "calls": [
            [c.point.id, int(c.replicate), round(c.us, 4), int(c.disturbed)] for c in block.calls
        ],
    } | {name: value for name in STATE if (value := getattr(block, name))}


def block_of(row: Mapping[str, Any], points: Mapping[str, Point]) -> Block:
    """The block of a journal's line. Raises ``KeyError``, ``TypeError``, ``ValueError``."""
    calls = tuple(
        Call(points[point], bool(replicate), _time(us), bool(disturbed))
        for point, replicate, us, disturbed in row["calls"]
    )
    state = {name: row[name] for name in STATE if name in row}
    return Block(
        int(row["number"]), int(row["process"]), str(row["axis"]), str(row["timer"]),
        calls, float(row["taken_at"]), **state,
    )  # fmt: skip


def frame_of(blocks: Iterable[Block]) -> pd.DataFrame:
    """One row a call."""
    import pandas as pd

    texts: dict[Point, dict[str, str]] = {}
    rows = []
    for block in blocks:
        common = {
            "block": block.number,
            "process": block.process,
            "axis": block.axis,
            "timer": block.timer,
            "taken_at": block.taken_at,
        } | {name: getattr(block, name) for name in STATE}
        before: str | None = None
        for position, call in enumerate(block.calls):
            if call.point not in texts:
                texts[call.point] = _texts(call.point)
            rows.append(
                common
                | texts[call.point]
                | {
                    "position": position,
                    "replicate": call.replicate,
                    "predecessor": before,
                    "us": call.us,
                    "disturbed": call.disturbed,
                }
            )
            before = call.point.id
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    for name in ("axis", "timer", "point", "predecessor", "operator", "dims", "dtype", "flags"):
        frame[name] = frame[name].astype("category")
    for name in ("sm_clock_mhz", "mem_clock_mhz", "temperature_c"):
        frame[name] = frame[name].astype("Int64")
    frame["power_w"] = frame["power_w"].astype("float64")
    return frame


def blocks_of_frame(frame: pd.DataFrame) -> Iterator[Block]:
    """The blocks of :func:`frame_of`. Raises ``KeyError``, ``ValueError`` for another table."""
    columns = {name: frame[name].tolist() for name in COLUMNS}
    points: dict[str, Point] = {}
    start, count = 0, len(frame)
    while start < count:
        number, end = columns["block"][start], start
        calls = []
        while end < count and columns["block"][end] == number:
            name = columns["point"][end]
            if name not in points:
                points[name] = point_of({key: columns[key][end] for key in
                                         ("operator", "dims", "dtype", "flags")})  # fmt: skip
            calls.append(
                Call(
                    points[name],
                    bool(columns["replicate"][end]),
                    _time(columns["us"][end]),
                    bool(columns["disturbed"][end]),
                )
            )
            end += 1
        state = {name: _present(columns[name][start]) for name in STATE[1:]}
        yield Block(
            int(number),
            int(columns["process"][start]),
            str(columns["axis"][start]),
            str(columns["timer"][start]),
            tuple(calls),
            float(columns["taken_at"][start]),
            str(columns["throttled"][start]),
            **state,
        )
        start = end


def _texts(point: Point) -> dict[str, str]:
    return {
        "point": point.id,
        "operator": point.operator,
        "dims": json.dumps(point.dim),
        "dtype": point.dtype,
        "flags": json.dumps(point.flag),
    }


def _time(value: Any) -> float:
    """Microseconds. Raises ``ValueError`` for what is no duration."""
    us = float(value)
    if not 0 < us < float("inf"):
        raise ValueError(f"a time of {us} µs is no duration")
    return us


def _present(value: Any) -> Any:
    """None for pandas' missing values."""
    import pandas as pd

    return None if pd.isna(value) else value
