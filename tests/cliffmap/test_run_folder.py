"""A sweep's folder: what was appended is there, whatever happened after."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from planted import PLANTED, PlantedRun

from gacprof.cliffmap.build import build_map
from gacprof.cliffmap.run_folder import JOURNAL, PARQUET, RunFolder, RunHeader
from gacprof.core.errors import MeasurementError
from gacprof.core.points import Axis, Block, KernelRun

SIZES = tuple(range(64, 97))
AXES = tuple(
    Axis("linear", dim, SIZES, {"M": 4, other: 64}, "float16", {"bias": False})
    for dim, other in (("N", "K"), ("K", "N"))
)
RUN = PlantedRun(AXES)


def written(path: Path) -> RunFolder:
    run = RunFolder.create(path / "run", RunHeader("planted", PLANTED, AXES))
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
    RunFolder(run.path).append(block)
    last = RunFolder(run.path).blocks(AXES[0])[-1]
    assert last.order == block.order and math.isnan(last.times_us[1])
    RunFolder(run.path).fold()
    assert len(RunFolder(run.path).blocks(AXES[0])) == len(RUN.blocks(AXES[0])) + 1


def test_a_kill_within_a_fold_counts_no_block_twice(tmp_path: Path) -> None:
    run = written(tmp_path)
    journal = (run.path / JOURNAL).read_bytes()
    run.fold()
    (run.path / JOURNAL).write_bytes(journal)
    again = RunFolder(run.path)
    assert again.blocks(AXES[0]) == RUN.blocks(AXES[0])
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


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    run = written(tmp_path)
    with (run.path / JOURNAL).open("a") as journal:
        journal.write('{"axis": "lin')
    again = RunFolder(run.path)
    assert again.blocks(AXES[0]) == RUN.blocks(AXES[0])
    again.append(RUN.blocks(AXES[0])[0])
    assert len(RunFolder(run.path).blocks(AXES[0])) == len(RUN.blocks(AXES[0])) + 1


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
        RunFolder.create(tmp_path, RunHeader("x", PLANTED, AXES))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
