"""The folder of a sweep: a journal of its blocks that survives a crash, folded into Parquet.

Every block is one line of ``journal.jsonl``, on disk before the next begins: neither a kill nor a
power cut loses more than the block under way. A torn last line is dropped on reading. The journal
is folded into ``samples.parquet`` (one row a call) and ``points.json`` (what a point launches, or
why it fails) whenever it has grown by half of what is there, and at the end. Both are replaced
whole, never appended to. Readers see the union.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gacprof.core.errors import MeasurementError, first_line
from gacprof.core.files import (
    open_regular,
    read_bytes,
    read_json,
    refuse_half_pairs,
    replacing,
    sync,
    write_json,
)
from gacprof.core.points import LEVEL, Block, Call, Environment, Point, PointNote
from gacprof.core.tasks import ctrl_c_held_back

if TYPE_CHECKING:
    import pandas as pd

RUN_SCHEMA = "gacprof.run/2"
RUN, JOURNAL, PARQUET, POINTS, LOCK = (
    "run.json", "journal.jsonl", "samples.parquet", "points.json", ".lock",
)  # fmt: skip
FOLD_AT_LEAST = 4000
"""Blocks in the journal before it is folded."""
STATE = ("throttled", "sm_clock_mhz", "mem_clock_mhz", "temperature_c", "power_w", "device")
"""Columns of a block's state; the last is not in tables of earlier versions."""
POINT = ("operator", "dims", "dtype", "flags")
"""Columns of a point."""
CALL = ("point", "replicate", "us", "disturbed")
"""Columns of a call, in the order of the journal's."""
COLUMNS = (
    "block", "process", "axis", "timer", "taken_at", "position", "point", "replicate",
    "predecessor", "us", "disturbed", *STATE, *POINT,
)  # fmt: skip
"""Of ``samples.parquet``. ``axis`` is empty in level blocks; ``position`` counts a block's calls
from 0, ``predecessor`` is the point of the call before it (none at 0)."""


MOST_BLOCKS = 1 << 31
"""Of a run, and of processes: a number beyond is no count."""
MOST_STATE = 1_000_000
"""No clock in MHz, temperature or power reaches it."""
MOST_ROWS, MOST_UNFOLDED = 200_000, 64 << 20
"""Of ``samples.parquet``, beyond what its size allows: a call takes 11 bytes there, one byte at
least, and unfolds by less than 20."""
LONGEST_US = 1e10
"""No call takes three hours: a worker is stopped long before."""


class RunFolder:
    """One sweep's folder, held under an exclusive lock while open for writing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        self._journal: IO[str] | None = None
        self._unfolded = 0
        self._folded = 0

    @property
    def started(self) -> bool:
        return (self.path / RUN).exists()

    def others(self) -> list[str]:
        """What is in a folder not started, without what a sweep that wrote nothing yet can have
        left: its lock, and a header that was not renamed before a kill."""
        ours = (LOCK, f".{RUN}.")
        return sorted(e.name for e in self.path.iterdir() if not e.name.startswith(ours))

    def lock(self) -> None:
        """Take the folder for writing. Raises :class:`MeasurementError` if another has it."""
        if not self.path.is_dir():
            self.path.mkdir(parents=True)
            sync(self.path.parent)
        # neither a link nor a FIFO of that name is followed or waited for
        flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW
        handle = os.fdopen(os.open(self.path / LOCK, flags, 0o666), "w")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.close()
            raise MeasurementError(
                f"another sweep is writing to {self.path}: wait for it, or use another --out"
            ) from None
        self._lock = handle

    def write_header(self, header: dict[str, Any]) -> None:
        write_json(self.path / RUN, {"schema": RUN_SCHEMA} | header)

    def append(self, *blocks: Block) -> None:
        """Keep blocks; on return they are on disk."""
        self._write([{"block": row_of(block)} for block in blocks])
        self._unfolded += len(blocks)
        if self._unfolded >= max(FOLD_AT_LEAST, self._folded // 2):
            self.fold()

    def note(self, notes: Iterable[PointNote]) -> None:
        """Keep what is known of points beside their times."""
        rows = [_note_row(note) for note in notes]
        if rows:
            self._write([{"points": rows}])

    def _write(self, entries: Sequence[dict[str, Any]]) -> None:
        if self._journal is None:
            _cut_torn_line(self.path / JOURNAL)
            self._journal = (self.path / JOURNAL).open("a", encoding="utf-8")
            sync(self.path)  # a new file's name is not on disk before its folder is
        self._journal.writelines(json.dumps(entry) + "\n" for entry in entries)
        self._journal.flush()
        os.fsync(self._journal.fileno())

    def fold(self) -> None:
        """Move the journal into Parquet and ``points.json``; it empties after they are safe."""
        self._close_journal()
        blocks = read_blocks(self.path)
        _write_folded(self.path, blocks, read_notes(self.path))
        (self.path / JOURNAL).unlink(missing_ok=True)
        self._folded, self._unfolded = len(blocks), 0

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def close(self) -> None:
        self._close_journal()
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _write_folded(path: Path, blocks: Sequence[Block], notes: Mapping[Point, PointNote]) -> None:
    with replacing(path / PARQUET) as temporary:
        frame_of(blocks).to_parquet(
            temporary, compression="zstd", index=False, write_page_checksum=True
        )
    write_json(path / POINTS, [_note_row(note) for note in notes.values()])


def read_header(path: Path) -> dict[str, Any]:
    """``run.json`` of a run folder. Raises :class:`MeasurementError` if it is none."""
    if not path.exists():
        raise MeasurementError(f"there is no {path}: a sweep without --resume begins one")
    try:
        header = read_json(path / RUN)
        if header["schema"] == "gacprof.run/1":
            raise MeasurementError(
                f"{path} was measured by an earlier gacprof, not in blocks: "
                "sweep again into another folder (gacprof sweep … --out NEW)"
            )
        if header["schema"] != RUN_SCHEMA:
            raise ValueError(f"its schema is {header['schema']!r}, not {RUN_SCHEMA}")
        Environment.from_dict(header["environment"])
        if not isinstance(header["suite"], dict):
            raise TypeError("suite is no table")
        if not all(isinstance(header[name], str) for name in ("suite_hash", "timer")):
            raise TypeError("suite_hash and timer are texts")
    except OSError as error:
        raise MeasurementError(
            f"{path} is not a sweep's folder: cannot read {RUN} in it ({error.strerror})"
        ) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MeasurementError(
            f"{path / RUN} lacks or garbles a field ({first_line(error)}): restore it, or sweep "
            "into another folder"
        ) from None
    found: dict[str, Any] = header
    return found


def read_blocks(path: Path) -> list[Block]:
    """All blocks of a run folder, in the order made. Raises :class:`MeasurementError`.

    The journal is read first: a sweep that folds it meanwhile leaves what it held in Parquet.
    """
    entries = list(_journal_entries(path / JOURNAL))
    points = {note.point.id: note.point for note in _notes(path, entries).values()}
    blocks = {block.number: block for block in _parquet_blocks(path / PARQUET)}
    for entry in entries:
        if "block" in entry:
            try:
                block = block_of(entry["block"], points)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise MeasurementError(
                    f"{path / JOURNAL} holds a block that lacks or garbles a field: {error!r}"
                ) from None
            blocks.setdefault(block.number, block)
    return [blocks[number] for number in sorted(blocks)]


def read_notes(path: Path) -> dict[Point, PointNote]:
    """What a run folder knows of its points beside times; later notes replace earlier ones."""
    return _notes(path, list(_journal_entries(path / JOURNAL)))


def _notes(path: Path, entries: Iterable[Mapping[str, Any]]) -> dict[Point, PointNote]:
    rows: list[Any] = []
    if (path / POINTS).exists():
        try:
            rows += read_json(path / POINTS)
        except (OSError, ValueError, TypeError) as error:
            raise MeasurementError(f"{path / POINTS} is garbled: {first_line(error)}") from None
    for entry in entries:
        rows += entry.get("points", [])
    found: dict[Point, PointNote] = {}
    for row in rows:
        try:
            remark = str(row.get("remark", ""))
            kernels = tuple(map(str, row["kernels"]))
            note = PointNote(point_of(row), kernels, str(row["failed"]), remark)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise MeasurementError(f"a point of {path} lacks a field: {error!r}") from None
        before = found.get(note.point)
        kernels = note.kernels or (before.kernels if before else ())
        remark = note.remark or (before.remark if before else "")
        found[note.point] = PointNote(note.point, kernels, note.failed, remark)
    return found


def _parquet_blocks(file: Path) -> Iterator[Block]:
    if not file.exists():
        return
    with ctrl_c_held_back():
        import pandas as pd
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        with open_regular(file) as opened:
            _check_size(pq.read_metadata(opened), file.stat().st_size)
            yield from blocks_of_frame(pd.read_parquet(opened, page_checksum_verification=True))
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError,
            OverflowError) as error:  # fmt: skip
        raise MeasurementError(
            f"{file} is not readable as samples ({first_line(error)}): "
            "restore it, or delete it to keep only what the journal holds"
        ) from None


def _check_size(metadata: Any, size: int) -> None:
    """Before anything is unfolded: a few kilobytes of a foreign file may stand for gigabytes.

    Raises ``ValueError``.
    """
    unfolded = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    if metadata.num_rows > MOST_ROWS + size or unfolded > MOST_UNFOLDED + 20 * size:
        raise ValueError(
            f"its {size:,} bytes would unfold to {metadata.num_rows:,} rows of {unfolded:,} bytes"
        )


def _journal_entries(file: Path) -> Iterator[dict[str, Any]]:
    if not file.exists():
        return
    try:
        *lines, _ = read_bytes(file).split(b"\n")  # what follows the last newline a kill tore
    except OSError as error:
        raise MeasurementError(f"{file} cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise ValueError("no object")
            if b"\\ud" in line.lower():
                refuse_half_pairs(entry)
            yield entry
        except (ValueError, RecursionError):
            raise MeasurementError(f"{file} line {number} is garbled: delete that line") from None


def _cut_torn_line(file: Path) -> None:
    """Drop what follows the last newline, so that the next line does not join a torn one."""
    if not file.exists():
        return
    with file.open("rb+") as handle:
        text = handle.read()
        handle.truncate(text.rfind(b"\n") + 1)


def _note_row(note: PointNote) -> dict[str, Any]:
    point = note.point
    return {
        "operator": point.operator,
        "dims": point.dim,
        "dtype": point.dtype,
        "flags": point.flag,
        "kernels": list(note.kernels),
        "failed": note.failed,
        "remark": note.remark,
    }


def point_of(row: Mapping[str, Any]) -> Point:
    """The point of a row with ``operator``, ``dims``, ``dtype`` and ``flags``, the latter as
    mappings or as JSON. Raises ``KeyError``, ``TypeError``, ``ValueError``."""
    dims, flags = (json.loads(v) if isinstance(v, str) else v for v in (row["dims"], row["flags"]))
    if not all(type(size) is int for size in dims.values()):
        raise ValueError(f"dims {dims} are no whole numbers")
    if not all(isinstance(value, bool | int | str) for value in flags.values()):
        raise ValueError(f"flags {flags} are no settings")
    refuse_half_pairs([row["operator"], row["dtype"], flags])
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
    """The block of a journal's line. Raises ``KeyError``, ``TypeError``, ``ValueError``, or
    ``OverflowError`` for an infinite number."""
    calls = tuple(
        Call(points[point], bool(replicate), _time(us), bool(disturbed))
        for point, replicate, us, disturbed in row["calls"]
    )
    axis = str(row["axis"])
    if axis != LEVEL and any(axis not in call.point.dim for call in calls):
        raise ValueError(f"'{axis}' is no dim of its points")
    state = {name: row[name] for name in STATE if name in row}
    for name, value in state.items():
        kinds = {"throttled": (str,), "device": (str,), "power_w": (int, float)}.get(name, (int,))
        if type(value) not in kinds or (type(value) is not str and not 0 <= value < MOST_STATE):
            raise ValueError(f"{name} is {str(value)[:40]}")
    number, process, taken_at = int(row["number"]), int(row["process"]), float(row["taken_at"])
    if not (0 <= number < MOST_BLOCKS and 0 <= process < MOST_BLOCKS and isfinite(taken_at)):
        raise ValueError(f"block {str(number)[:40]} of process {str(process)[:40]} is none")
    return Block(number, process, axis, str(row["timer"]), calls, taken_at, **state)


def frame_of(blocks: Iterable[Block]) -> pd.DataFrame:
    """One row a call."""
    with ctrl_c_held_back():
        import pandas as pd

    texts: dict[Point, tuple[str, ...]] = {}
    rows = []
    for block in blocks:
        head = (block.number, block.process, block.axis, block.timer, block.taken_at)
        state = tuple(getattr(block, name) for name in STATE)
        before: str | None = None
        for position, call in enumerate(block.calls):
            if (text := texts.get(call.point)) is None:
                dims, flags = json.dumps(call.point.dim), json.dumps(call.point.flag)
                text = texts[call.point] = (call.point.operator, dims, call.point.dtype, flags)
            point = call.point.id
            timed = (position, point, call.replicate, before, call.us, call.disturbed)
            rows.append(head + timed + state + text)
            before = point
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    for name in ("axis", "timer", "point", "predecessor", *POINT):
        frame[name] = frame[name].astype("category")
    for name in ("sm_clock_mhz", "mem_clock_mhz", "temperature_c"):
        frame[name] = frame[name].astype("Int64")
    frame["power_w"] = frame["power_w"].astype("float64")
    return frame


def blocks_of_frame(frame: pd.DataFrame) -> Iterator[Block]:
    """The blocks of :func:`frame_of`, read as lines of the journal are. Raises ``KeyError``,
    ``TypeError``, ``ValueError`` for another table."""
    import pandas as pd

    if "device" not in frame:
        frame = frame.assign(device="")
    points: dict[str, Point] = {}
    named = frame.drop_duplicates("point")
    for name, *row in zip(named["point"], *(named[key] for key in POINT), strict=True):
        point = points[name] = point_of(dict(zip(POINT, row, strict=True)))
        if point.id != name:
            raise ValueError(f"the sample of {point} is filed as another point")
    calls = list(zip(*(frame[name].tolist() for name in CALL), strict=True))
    heads = frame.drop_duplicates("block")[["process", "axis", "timer", "taken_at", *STATE]]
    of_block = frame["block"].tolist()
    groups = groupby(range(len(frame)), key=of_block.__getitem__)
    for head, (number, rows) in zip(heads.to_dict("records"), groups, strict=True):
        known = {str(name): value for name, value in head.items() if not pd.isna(value)}
        yield block_of(known | {"number": number, "calls": [calls[row] for row in rows]}, points)


def _time(value: Any) -> float:
    """Microseconds. Raises ``ValueError`` for what is no duration."""
    us = float(value)
    if not 0 < us < LONGEST_US:
        raise ValueError(f"a time of {us} µs is no duration")
    return us
