"""The folder of a sweep: its axes, its environment, and every block.

A block is one line of ``blocks.jsonl``, written before the next begins: a kill loses no more than
the block under way. A sweep that comes to its end folds the lines into ``blocks.parquet``, one row
a call. Anybody may read a folder at any time; one process at a time writes.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import pandas as pd
from pydantic import BaseModel, model_validator

from gacprof.cliffmap.cliffmap import MAP_FILE
from gacprof.core.errors import MeasurementError
from gacprof.core.files import read_record, replacing, write_record
from gacprof.core.points import Axis, Block, Environment, KernelRun

RUN, JOURNAL, PARQUET, POINTS = "run.json", "blocks.jsonl", "blocks.parquet", "points.json"
LOCK = ".lock"  # empty; locked by the process that writes


@dataclass(frozen=True)
class RunHeader:
    """The axes that a run is to measure, and the device that does."""

    schema: ClassVar[str] = "gacprof.run/3"
    name: str
    environment: Environment
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class PointRecords:
    """A call's kernels, their time, and why a point cannot be called, by axis key and size."""

    schema: ClassVar[str] = "gacprof.points/1"
    kernels: dict[str, dict[int, tuple[str, ...]]] = field(default_factory=dict)
    # Together, as a tracer saw them once, with warm weights.
    kernel_us: dict[str, dict[int, float]] = field(default_factory=dict)
    failures: dict[str, dict[int, str]] = field(default_factory=dict)


class BlockRow(BaseModel, strict=True):
    """A block as a file holds it."""

    block: int = 0  # its number among all; a fold counts anew
    axis: str
    process: int
    order: tuple[int, ...]
    times_us: tuple[float, ...]
    conditions: dict[str, float] = {}

    @model_validator(mode="after")
    def _has_a_time_for_each_size(self) -> Self:
        times = np.array(self.times_us)
        if (times <= 0).any() | np.isinf(times).any() | (len(self.order) != len(times)):
            raise ValueError("a block has a positive time for each of its sizes, or nan")
        return self


class RunFolder:
    """A sweep's folder, read. Raises :class:`MeasurementError` for another, or a damaged file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        header = read_header(self.path)
        self.name = header.name
        self.environment = header.environment
        self.axes = header.axes
        self.points = PointRecords()
        if (self.path / POINTS).is_file():
            self.points = read_record(self.path / POINTS, PointRecords, "gacprof sweep")
        # The journal first: a fold between the two reads then loses nothing.
        journal = read_journal(self.path / JOURNAL)
        folded = read_folded(self.path / PARQUET)
        # A kill within a fold leaves its blocks in both files.
        unfolded = [row for row in journal if row.block >= len(folded)]
        self.ended = len(folded) > 0 == len(unfolded)  # a sweep's end folds all blocks
        sizes = {axis.key: set(axis.sizes) for axis in self.axes}
        self._blocks: dict[str, list[Block]] = {key: [] for key in sizes}
        for row in [*folded, *unfolded]:
            if not sizes.get(row.axis, set()).issuperset(row.order):
                raise MeasurementError(
                    f"{path}: a block of '{row.axis}' has sizes that {RUN} lacks: sweep again"
                )
            block = Block(row.axis, row.process, row.order, row.times_us, row.conditions)
            self._blocks[row.axis].append(block)

    def blocks(self, axis: Axis) -> list[Block]:
        """Return the blocks of an axis, in the order measured."""
        return list(self._blocks.get(axis.key, ()))

    def kernels(self, axis: Axis) -> Mapping[int, tuple[str, ...]]:
        """By size: names of the kernels of one call."""
        return self.points.kernels.get(axis.key, {})

    def failures(self, axis: Axis) -> Mapping[int, str]:
        """By size: why it could not be measured."""
        return self.points.failures.get(axis.key, {})


class RunWriter(RunFolder):
    """A sweep's folder, which this process alone writes until it is closed or the process ends.
    Raises :class:`MeasurementError` where it is none, or where a sweep still runs in it."""

    def __init__(self, path: str | Path) -> None:
        read_header(Path(path))  # before locking: a folder that is no sweep's gets no lock file
        lock = os.open(Path(path) / LOCK, os.O_CREAT | os.O_RDWR)
        self.close = weakref.finalize(self, os.close, lock)
        try:
            # The kernel frees this lock when its process dies, so that none is ever stale.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MeasurementError(
                f"a sweep still runs in {path}: wait for its end, or name another folder"
            ) from None
        super().__init__(path)
        with suppress(FileNotFoundError):  # a kill may have torn the last line
            journal = self.path / JOURNAL
            os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)

    @classmethod
    def create(cls, path: str | Path, header: RunHeader) -> RunWriter:
        """Begin a run in a new or empty folder."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise MeasurementError(
                f"{folder} is not empty: resume the sweep in it, or name another"
            )
        (folder / LOCK).touch(exist_ok=False)  # where two sweeps begin at once, one fails here
        write_record(folder / RUN, header)
        return cls(folder)

    def append(self, block: Block) -> None:
        """Write a block, which survives whatever kills the sweep later. A map of earlier blocks is
        removed."""
        (self.path / MAP_FILE).unlink(missing_ok=True)
        row = {"block": sum(map(len, self._blocks.values())), **asdict(block)}
        with (self.path / JOURNAL).open("a", encoding="utf-8") as journal:
            journal.write(json.dumps(row) + "\n")
        self._blocks[block.axis].append(block)
        self.ended = False

    def record_points(
        self, axis: Axis, kernels: Mapping[int, Sequence[KernelRun]], failures: Mapping[int, str]
    ) -> None:
        """Keep the kernels and failures of an axis, beside those recorded before."""
        for size, runs in kernels.items():
            self.points.kernels.setdefault(axis.key, {})[size] = tuple(run.name for run in runs)
            total_us = sum(run.us for run in runs)
            if not math.isnan(total_us):
                self.points.kernel_us.setdefault(axis.key, {})[size] = round(total_us, 3)
        self.points.failures.setdefault(axis.key, {}).update(failures)

    def save_points(self) -> None:
        write_record(self.path / POINTS, self.points)

    def fold(self) -> None:
        """Move all blocks into Parquet, one row a call: the sweep has come to its end."""
        self.save_points()
        frames = [pd.DataFrame(columns=["block", "axis", "process"])]
        for number, block in enumerate(chain.from_iterable(self._blocks.values())):
            calls = {"size": block.order, "us": block.times_us, **block.conditions}
            row = {"block": number, "axis": block.axis, "process": block.process, **calls}
            frames.append(pd.DataFrame(row))
        frame = pd.concat(frames[1:] or frames).astype({"axis": "category"})
        with replacing(self.path / PARQUET) as temporary:
            frame.to_parquet(temporary, compression="zstd", index=False)
        (self.path / JOURNAL).unlink(missing_ok=True)
        self.ended = True


def read_folded(path: Path) -> list[BlockRow]:
    """Read the blocks of a Parquet file that :meth:`RunWriter.fold` wrote, if there is one."""
    rows = []
    with refusing_damage(path), suppress(FileNotFoundError):
        for _, calls in pd.read_parquet(path).groupby("block", sort=True):
            first = calls.iloc[0]
            # What stands behind the times are a block's conditions.
            numbers = first["us":].iloc[1:].dropna()
            row = BlockRow(
                axis=first["axis"],
                process=int(first["process"]),
                order=tuple(calls["size"].tolist()),
                times_us=tuple(calls["us"].tolist()),
                conditions={str(name): float(number) for name, number in numbers.items()},
            )
            rows.append(row)
    return rows


def read_journal(path: Path) -> list[BlockRow]:
    """Read the blocks of a journal, without a last line that is torn or under way just now."""
    with refusing_damage(path), suppress(FileNotFoundError):
        *lines, _ = path.read_bytes().split(b"\n")
        return [BlockRow.model_validate_json(line) for line in lines]
    return []


def read_header(folder: Path) -> RunHeader:
    """Read what a run is to measure."""
    if not (folder / RUN).is_file():
        raise MeasurementError(f"{folder} is no sweep's folder: it has no {RUN}")
    return read_record(folder / RUN, RunHeader, "gacprof sweep")


@contextmanager
def refusing_damage(path: Path) -> Iterator[None]:
    """Raise :class:`MeasurementError`, in one line, for whatever a damaged file makes fail."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        problem = " ".join(str(error).partition(" [type=")[0].split())
        raise MeasurementError(f"{path} is damaged: {problem}") from None
