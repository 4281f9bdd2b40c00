"""The folder of a sweep: its axes, its environment, and every block.

A block is one line of ``blocks.jsonl``, written before the next begins: a kill loses no more than
the block under way. At the end of a sweep the lines are folded once into
``blocks.parquet``, one row a call. ``points.json`` has the kernels of points, and why some failed.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from gacprof.core.errors import MeasurementError
from gacprof.core.files import read_record, replacing, write_record
from gacprof.core.points import Axis, Block, Environment, KernelRun

SCHEMA = "gacprof.run/3"
POINTS_SCHEMA = "gacprof.points/1"
RUN, JOURNAL, PARQUET, POINTS = "run.json", "blocks.jsonl", "blocks.parquet", "points.json"


@dataclass(frozen=True)
class RunHeader:
    """The axes that a run is to measure, and the device that does."""

    name: str
    environment: Environment
    axes: tuple[Axis, ...]


@dataclass(frozen=True)
class PointRecords:
    """By axis key and size: the kernels that a call launches, how long a tracer saw them run
    together (once, with warm weights), and why a point cannot be called."""

    kernels: dict[str, dict[int, tuple[str, ...]]] = field(default_factory=dict)
    kernel_us: dict[str, dict[int, float]] = field(default_factory=dict)
    failures: dict[str, dict[int, str]] = field(default_factory=dict)


class RunFolder:
    """A sweep's folder, being written or read.

    Parameters
    ----------
    path
        A folder that :meth:`create` or an earlier sweep made.

    Raises
    ------
    MeasurementError
        Where it is none.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not (self.path / RUN).is_file():
            raise MeasurementError(f"{path} is no sweep's folder: it has no {RUN}")
        self.header = read_record(self.path / RUN, RunHeader, SCHEMA, "gacprof sweep")
        self.points = PointRecords()
        if (self.path / POINTS).is_file():
            self.points = read_record(
                self.path / POINTS, PointRecords, POINTS_SCHEMA, "gacprof sweep"
            )

    @classmethod
    def create(cls, path: str | Path, header: RunHeader) -> RunFolder:
        """Begin a run in a new or empty folder."""
        folder = Path(path)
        if folder.exists() and any(folder.iterdir()):
            raise MeasurementError(
                f"{folder} is not empty: resume the sweep in it, or name another"
            )
        write_record(folder / RUN, header, SCHEMA)
        return cls(folder)

    @property
    def name(self) -> str:
        return self.header.name

    @property
    def environment(self) -> Environment:
        return self.header.environment

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.header.axes

    def blocks(self, axis: Axis) -> list[Block]:
        """The blocks of an axis, in the order measured."""
        return list(self._blocks.get(axis.key, ()))

    def kernels(self, axis: Axis) -> Mapping[int, tuple[str, ...]]:
        """By size: names of the kernels of one call."""
        return self.points.kernels.get(axis.key, {})

    def failures(self, axis: Axis) -> Mapping[int, str]:
        """By size: why it could not be measured."""
        return self.points.failures.get(axis.key, {})

    def append(self, block: Block) -> None:
        """Keep a block: on return a kill of the sweep loses it no more."""
        row = {"block": sum(map(len, self._blocks.values())), **asdict(block)}
        with (self.path / JOURNAL).open("a", encoding="utf-8") as journal:
            journal.write(json.dumps(row) + "\n")
        self._blocks[block.axis].append(block)

    def record_points(
        self, axis: Axis, kernels: Mapping[int, Sequence[KernelRun]], failures: Mapping[int, str]
    ) -> None:
        """Keep the kernels and failures of an axis, beside those recorded before."""
        for size, runs in kernels.items():
            self.points.kernels.setdefault(axis.key, {})[size] = tuple(run.name for run in runs)
            total_us = sum(run.us for run in runs)
            if not math.isnan(total_us):
                self.points.kernel_us.setdefault(axis.key, {})[size] = round(total_us, 3)
        if failures:
            self.points.failures.setdefault(axis.key, {}).update(failures)

    def save_points(self) -> None:
        """Write kernels and failures to disk."""
        write_record(self.path / POINTS, self.points, POINTS_SCHEMA)

    def fold(self) -> None:
        """Move all blocks into Parquet."""
        self.save_points()
        blocks = [block for blocks in self._blocks.values() for block in blocks]
        with replacing(self.path / PARQUET) as temporary:
            frame_of(blocks).to_parquet(temporary, compression="zstd", index=False)
        (self.path / JOURNAL).unlink(missing_ok=True)

    @cached_property
    def _blocks(self) -> dict[str, list[Block]]:
        blocks: defaultdict[str, list[Block]] = defaultdict(list)
        folded = []
        if (self.path / PARQUET).is_file():
            folded = blocks_of(pd.read_parquet(self.path / PARQUET))
        for block in [*folded, *read_journal(self.path / JOURNAL, after=len(folded))]:
            blocks[block.axis].append(block)
        return blocks


def frame_of(blocks: Iterable[Block]) -> pd.DataFrame:
    """One row a call, in the order of calls; ``block`` numbers the blocks, and what stands behind
    ``us`` are their conditions."""
    frames = [
        pd.DataFrame(
            {
                "block": i,
                "axis": b.axis,
                "process": b.process,
                "size": b.order,
                "us": b.times_us,
                **b.conditions,
            }
        )
        for i, b in enumerate(blocks)
    ]
    frame = pd.concat(frames) if frames else pd.DataFrame(columns=["block", "axis", "process"])
    return frame.astype({"axis": "category"})


def blocks_of(frame: pd.DataFrame) -> list[Block]:
    """The blocks of :func:`frame_of`'s rows."""
    blocks = []
    for _, calls in frame.groupby("block", sort=True):
        first = calls.iloc[0]
        order, times = tuple(calls["size"].tolist()), tuple(calls["us"].tolist())
        rest = first["us":].iloc[1:].dropna()
        conditions = {str(name): float(value) for name, value in rest.items()}
        blocks.append(Block(str(first["axis"]), int(first["process"]), order, times, conditions))
    return blocks


def read_journal(path: Path, after: int) -> list[Block]:
    """The blocks of a journal but the run's first ``after``, which a kill left here although they
    are folded. A last line that a kill tore is left out, and cut off."""
    if not path.is_file():
        return []
    *lines, torn = path.read_bytes().split(b"\n")
    if torn:
        os.truncate(path, path.stat().st_size - len(torn))
    rows = [json.loads(line) for line in lines]
    return [
        Block(
            row["axis"],
            row["process"],
            tuple(row["order"]),
            tuple(row["times_us"]),
            row.get("conditions", {}),  # older runs have none
        )
        for row in rows
        if row.get("block", after) >= after  # older journals have no numbers
    ]
