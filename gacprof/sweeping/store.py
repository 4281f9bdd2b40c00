"""Where samples go: a journal that survives anything, folded into Parquet as it grows.

Every sample is one line of ``journal.jsonl``, on disk before the next point begins, so that
neither a kill nor a power cut loses more than the point being measured; a torn last line is
dropped on reading. The journal is folded into ``samples.parquet`` whenever it has grown by
half of what is there, and at the end; the Parquet file is replaced whole, never appended to.
Readers see the union of both.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gacprof.errors import MeasurementError
from gacprof.files import replacing, sync, write_json
from gacprof.points import Environment, Point, Sample

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

RUN_SCHEMA = "gacprof.run/1"
RUN, JOURNAL, PARQUET, LOCK = "run.json", "journal.jsonl", "samples.parquet", ".lock"
FOLD_AT_LEAST = 500
ADDED_LATER = ("mem_clock_mhz", "temperature_c", "power_w")
"""Columns that samples written by earlier versions lack; they are read as null."""


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
        """What stands in the folder, but for what a sweep that wrote nothing yet can have left:
        its lock, a header that a kill kept from its name. Only for a folder not started."""
        ours = (LOCK, f".{RUN}.")
        return sorted(e.name for e in self.path.iterdir() if not e.name.startswith(ours))

    def lock(self) -> None:
        """Take the folder for writing. Raises :class:`MeasurementError` if another has it."""
        if not self.path.is_dir():
            self.path.mkdir(parents=True)
            sync(self.path.parent)
        handle = (self.path / LOCK).open("w")
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

    def append(self, sample: Sample) -> None:
        """Keep a sample; on return it is on disk.

        Not in the background: that would disturb the next point's timings and lose two.
        """
        if self._journal is None:
            _cut_torn_line(self.path / JOURNAL)
            self._journal = (self.path / JOURNAL).open("a", encoding="utf-8")
            sync(self.path)  # a new file's name is not on disk before its folder is
        self._journal.write(json.dumps(to_row(sample)) + "\n")
        self._journal.flush()
        os.fsync(self._journal.fileno())
        self._unfolded += 1
        if self._unfolded >= max(FOLD_AT_LEAST, self._folded // 2):
            self.fold()

    def fold(self) -> None:
        """Move the journal's samples into Parquet; the journal empties after they are safe."""
        import pyarrow.parquet as pq

        if self._journal is not None:
            self._journal.close()
            self._journal = None
        rows = list(_rows(self.path))
        with replacing(self.path / PARQUET) as temporary:
            pq.write_table(_table(rows), temporary, compression="zstd")
        (self.path / JOURNAL).unlink(missing_ok=True)
        self._folded, self._unfolded = len(rows), 0

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def read_header(path: Path) -> dict[str, Any]:
    """``run.json`` of a run folder. Raises :class:`MeasurementError` if it is none."""
    try:
        header = json.loads((path / RUN).read_text(encoding="utf-8"))
    except OSError as error:
        raise MeasurementError(
            f"{path} is not a sweep's folder: cannot read {RUN} in it ({error.strerror})"
        ) from None
    except (ValueError, RecursionError):
        raise MeasurementError(
            f"{path / RUN} is garbled, no JSON: restore it, or sweep into another folder"
        ) from None
    if not isinstance(header, dict) or header.get("schema") != RUN_SCHEMA:
        raise MeasurementError(
            f"{path / RUN} is not of schema {RUN_SCHEMA}; was it written by another version?"
        )
    return header


def read_samples(path: Path) -> list[Sample]:
    """All samples of a run folder. Raises :class:`MeasurementError` for an unreadable one."""
    return [from_row(row) for row in _rows(path)]


def read_frame(path: Path) -> pd.DataFrame:
    """The samples as a table, one row a visit, dims and flags as columns of their own.

    ``median_us``, ``tflops``, ``gb_s`` and ``roof_share`` are derived (:mod:`.rates`); the
    last is missing for a device whose peaks are not known here.
    """
    import pandas as pd

    from gacprof.sweeping.rates import rates

    environment = Environment.from_dict(read_header(path)["environment"])
    rows = []
    for sample in read_samples(path):
        row = to_row(sample)
        row.pop("dims"), row.pop("flags")
        rows.append(row | sample.point.dim | sample.point.flag | rates(sample, environment))
    return pd.DataFrame(rows)


def to_row(sample: Sample) -> dict[str, Any]:
    """A sample as one flat row; ``dims`` and ``flags`` are JSON so that any operator fits."""
    point = sample.point
    return {
        "point": point.id,
        "operator": point.operator,
        "dims": json.dumps(point.dim),
        "dtype": point.dtype,
        "flags": json.dumps(point.flag),
        "axes": list(sample.axes),
        "timings_us": list(sample.timings_us),
        "timer": sample.timer,
        "visit": sample.visit,
        "duplicate": sample.duplicate,
        "status": sample.status,
        "reason": sample.reason,
        "kernels": list(sample.kernels),
        "sm_clock_mhz": sample.sm_clock_mhz,
        "taken_at": sample.taken_at,
        "mem_clock_mhz": sample.mem_clock_mhz,
        "temperature_c": sample.temperature_c,
        "power_w": sample.power_w,
    }


def from_row(row: dict[str, Any]) -> Sample:
    try:
        return Sample(
            Point.of(
                row["operator"], json.loads(row["dims"]), row["dtype"], json.loads(row["flags"])
            ),
            tuple(row["axes"]),
            tuple(row["timings_us"]),
            row["timer"],
            row["visit"],
            row["duplicate"],
            row["status"],
            row["reason"],
            tuple(row["kernels"]),
            row["sm_clock_mhz"],
            row["taken_at"],
            row.get("mem_clock_mhz"),
            row.get("temperature_c"),
            row.get("power_w"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MeasurementError(f"a row of samples lacks or garbles a field: {error!r}") from None


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Parquet's rows, then the journal's that are not yet among them."""
    seen: set[tuple[str, int, bool]] = set()
    for row in chain(_parquet_rows(path / PARQUET), _journal_rows(path / JOURNAL)):
        key = (row["point"], row["visit"], row["duplicate"])
        if key not in seen:
            seen.add(key)
            yield row


def _parquet_rows(file: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not file.exists():
        return
    try:
        yield from pq.read_table(file, schema=_schema()).to_pylist()  # lacking columns: null
    except (pa.ArrowException, OSError, ValueError) as error:
        raise MeasurementError(
            f"{file} is not readable as samples ({_one_line(error)}): "
            "restore it, or delete it to keep only what the journal holds"
        ) from None


def _journal_rows(file: Path) -> Iterator[dict[str, Any]]:
    if not file.exists():
        return
    lines = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            row = json.loads(line)
            yield {
                name: row.get(name) if name in ADDED_LATER else row[name]
                for name in _schema().names
            }
        except (ValueError, KeyError, TypeError):
            if number == len(lines):
                return  # the line that a kill tore
            raise MeasurementError(f"{file} line {number} is garbled: delete that line") from None


def _cut_torn_line(file: Path) -> None:
    """Drop what follows the last newline, so that the next line does not join a torn one."""
    if not file.exists():
        return
    with file.open("rb+") as handle:
        text = handle.read()
        handle.truncate(text.rfind(b"\n") + 1)


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist(rows, schema=_schema())


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("point", pa.string()),
            ("operator", pa.string()),
            ("dims", pa.string()),
            ("dtype", pa.string()),
            ("flags", pa.string()),
            ("axes", pa.list_(pa.string())),
            ("timings_us", pa.list_(pa.float64())),
            ("timer", pa.string()),
            ("visit", pa.int64()),
            ("duplicate", pa.bool_()),
            ("status", pa.string()),
            ("reason", pa.string()),
            ("kernels", pa.list_(pa.string())),
            ("sm_clock_mhz", pa.int64()),
            ("taken_at", pa.float64()),
            ("mem_clock_mhz", pa.int64()),
            ("temperature_c", pa.int64()),
            ("power_w", pa.float64()),
        ]
    )


def _one_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
