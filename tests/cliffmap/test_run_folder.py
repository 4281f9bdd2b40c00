"""A sweep's folder: what was appended is there, whatever happened after."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from planted import PLANTED, PlantedRun

from gacprof.cliffmap.build import build_map
from gacprof.cliffmap.run_folder import JOURNAL, PARQUET, RunFolder, RunHeader, RunWriter
from gacprof.core.errors import MeasurementError
from gacprof.core.points import Axis, Block, KernelRun

SIZES = tuple(range(64, 97))
AXES = tuple(
    Axis("linear", dim, SIZES, {"M": 4, other: 64}, "float16", {"bias": False})
    for dim, other in (("N", "K"), ("K", "N"))
)
RUN = PlantedRun(AXES)


def written(path: Path) -> RunWriter:
    run = RunWriter.create(path / "run", RunHeader("planted", PLANTED, AXES))
    for axis in AXES:
        for block in RUN.blocks(axis):
            run.append(block)
        run.record_points(axis, {64: (KernelRun("kernel", 1.5),)}, {65: "refused"})
    run.save_points()
    return run


@pytest.mark.parametrize("folded", [False, True])
def test_blocks_are_read_as_they_were_appended(tmp_path: Path, folded: bool) -> None:
    run = written(tmp_path)
    if folded:
        run.fold()
    assert (run.path / JOURNAL).exists() != folded
    again = RunFolder(run.path)
    for axis in AXES:
        assert again.blocks(axis) == RUN.blocks(axis)
        assert again.kernels(axis) == {64: ("kernel",)}
        assert again.failures(axis) == {65: "refused"}
    assert (again.axes, again.environment, again.name) == (AXES, PLANTED, "planted")


def test_blocks_after_a_fold_come_after_it(tmp_path: Path) -> None:
    run = written(tmp_path)
    run.fold()
    block = Block(AXES[0].key, 9, (64, 65), (1.0, math.nan))
    run.append(block)
    last = RunFolder(run.path).blocks(AXES[0])[-1]
    assert last.order == block.order and math.isnan(last.times_us[1])
    run.fold()
    assert len(RunFolder(run.path).blocks(AXES[0])) == len(RUN.blocks(AXES[0])) + 1


def test_a_kill_within_a_fold_counts_no_block_twice(tmp_path: Path) -> None:
    run = written(tmp_path)
    journal = (run.path / JOURNAL).read_bytes()
    run.fold()
    whole = build_map(RunFolder(run.path))
    (run.path / JOURNAL).write_bytes(journal)  # a kill between the two steps of a fold leaves both
    run.close()
    assert build_map(RunFolder(run.path)) == whole
    again = RunWriter(run.path)
    again.append(RUN.blocks(AXES[0])[0])
    assert len(RunFolder(run.path).blocks(AXES[0])) == len(RUN.blocks(AXES[0])) + 1


def test_clocks_and_durations_of_kernels_are_kept(tmp_path: Path) -> None:
    run = written(tmp_path)
    axis = AXES[0]
    run.record_points(axis, {66: (KernelRun("a", 1.25), KernelRun("b", 2.0))}, {})
    run.record_points(axis, {67: (KernelRun("a", math.nan),)}, {})
    conditions = {"clock_mhz": 1755.0, "calls": 12, "constant_us": 1.6}
    run.append(Block(axis.key, 0, (64,), (1.0,), conditions))
    for _ in range(2):
        run.fold()
        again = RunFolder(run.path)
        before, last = again.blocks(axis)[-2:]
        assert before.conditions == {}
        assert last == Block(axis.key, 0, (64,), (1.0,), conditions)
        assert again.points.kernel_us[axis.key] == {64: 1.5, 66: 3.25}
        assert again.kernels(axis)[66] == ("a", "b")


def test_readers_leave_out_a_line_under_way_and_write_nothing(tmp_path: Path) -> None:
    run = written(tmp_path)
    with (run.path / JOURNAL).open("a") as journal:
        journal.write('{"axis": "lin')
    before = {path.name: path.read_bytes() for path in run.path.iterdir()}
    assert RunFolder(run.path).blocks(AXES[0]) == RUN.blocks(AXES[0])
    build_map(RunFolder(run.path))
    assert {path.name: path.read_bytes() for path in run.path.iterdir()} == before


def test_a_resumed_sweep_cuts_a_torn_line(tmp_path: Path) -> None:
    run = written(tmp_path)
    with (run.path / JOURNAL).open("a") as journal:
        journal.write('{"axis": "lin')
    run.close()
    RunWriter(run.path).append(RUN.blocks(AXES[0])[0])
    assert len(RunFolder(run.path).blocks(AXES[0])) == len(RUN.blocks(AXES[0])) + 1


def test_one_sweep_writes_at_a_time(tmp_path: Path) -> None:
    first = written(tmp_path)
    with pytest.raises(MeasurementError):
        RunWriter(first.path)
    first.append(RUN.blocks(AXES[0])[0])
    first.close()
    second = RunWriter(first.path)
    second.append(RUN.blocks(AXES[0])[0])
    second.fold()
    assert len(RunFolder(first.path).blocks(AXES[0])) == len(RUN.blocks(AXES[0])) + 2


def test_a_killed_process_holds_no_lock(tmp_path: Path) -> None:
    folder = written(tmp_path).path  # the writer is gone with its last reference
    program = (
        "import os, signal, sys; from gacprof.cliffmap.run_folder import RunWriter; "
        "run = RunWriter(sys.argv[1]); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(folder)], check=False)
    assert killed.returncode == -signal.SIGKILL
    RunWriter(folder)


DAMAGED = {
    "no JSON": "{",
    "another file's": "[]",
    "a time is true": '{"order": [64], "times_us": [true]}',
    "a time is a text": '{"order": [64], "times_us": ["1.0"]}',
    "a time is null": '{"order": [64], "times_us": [null]}',
    "a time is 0": '{"order": [64], "times_us": [0.0]}',
    "a time is missing": '{"order": [64, 65], "times_us": [1.0]}',
    "a size is not on the axis": '{"order": [9999], "times_us": [1.0]}',
}


@pytest.mark.parametrize("line", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_block_is_refused(tmp_path: Path, line: str) -> None:
    run = written(tmp_path)
    head = f'{{"axis": {json.dumps(AXES[0].key)}, "process": 0, '
    (run.path / JOURNAL).write_text(line.replace('{"order', head + '"order') + "\n")
    with pytest.raises(MeasurementError):
        build_map(RunFolder(run.path))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_file_of_blocks_is_refused(tmp_path: Path, share: float) -> None:
    run = written(tmp_path)
    run.fold()
    content = (run.path / PARQUET).read_bytes()
    (run.path / PARQUET).write_bytes(content[: int(share * len(content))])
    with pytest.raises(MeasurementError):
        build_map(RunFolder(run.path))


def test_a_file_of_other_columns_is_refused(tmp_path: Path) -> None:
    run = written(tmp_path)
    run.fold()
    pd.DataFrame({"block": [0], "axis": [3]}).to_parquet(run.path / PARQUET)
    with pytest.raises(MeasurementError):
        build_map(RunFolder(run.path))


def test_a_map_is_built_of_a_folder(tmp_path: Path) -> None:
    run = written(tmp_path)
    run.points.kernels.clear()
    run.points.failures.clear()
    run.fold()
    assert (run.path / PARQUET).exists()
    assert build_map(run.path).curves == build_map(RUN).curves


def test_another_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(MeasurementError):
        RunFolder(tmp_path)
    with pytest.raises(MeasurementError):
        RunWriter(tmp_path)
    with pytest.raises(MeasurementError):
        RunWriter.create(tmp_path, RunHeader("x", PLANTED, AXES))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
