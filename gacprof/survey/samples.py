"""The survey's samples: several sweeps, each its own folder, read and published as one.

A sweep is bound to its suite, so what a survey measures beside its suite (candidates for a plan,
the shapes of its models) are sweeps beside it. ``samples.parquet`` at the top holds the blocks
of all, numbered on from sweep to sweep.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gacprof.cliffmap import CliffMap
from gacprof.core.points import Block, Point, PointNote
from gacprof.survey.setting import MAP, Setting
from gacprof.survey.state import NotYetError
from gacprof.sweeping import RunSummary, Suite, build_map_of, read_blocks, run_sweep
from gacprof.sweeping.store import read_header, read_notes, write_run

LEAST_S = 1e-3


def sweep_into(setting: Setting, name: str, suite: Suite, seconds: float | None) -> RunSummary:
    """Begin the sweep ``sweeps/name-…``, or go on with it, for ``seconds`` at most.

    The suite's hash is part of the folder's name: a suite that another version makes otherwise
    is another sweep, and what the first one measured still counts.
    """
    with setting.machine.sweeper(suite.timing.processes) as device:
        return run_sweep(
            suite,
            device,
            setting.sweep_folder / f"{name}-{suite.hash[:8]}",
            resume=True,
            progress=setting.advance,
            budget_s=None if seconds is None else max(LEAST_S, seconds),
        )


def sweep_folders(setting: Setting) -> list[Path]:
    folder = setting.sweep_folder
    return sorted(folder.iterdir()) if folder.is_dir() else []


def all_blocks(setting: Setting) -> Iterator[Block]:
    """Every block of every sweep; blocks and processes are numbered on from sweep to sweep."""
    number = process = 0
    for folder in sweep_folders(setting):
        first = process
        for block in read_blocks(folder):
            yield replace(block, number=number, process=first + block.process)
            number, process = number + 1, max(process, first + block.process + 1)


def all_notes(setting: Setting) -> dict[Point, PointNote]:
    """What the sweeps know of their points; a failure in one gives way to success in another."""
    found: dict[Point, PointNote] = {}
    for folder in sweep_folders(setting):
        for point, note in read_notes(folder).items():
            known = found.get(point)
            if known is None or known.failed or (note.kernels and not note.failed):
                found[point] = note
    return found


def publish(setting: Setting, suite: Suite) -> CliffMap:
    """Write a sweep's folder like any other at the top, and the map of them all.

    Raises :class:`NotYetError` where nothing was measured, :class:`MapError` where the
    samples make no map.
    """
    blocks = list(all_blocks(setting))
    if not blocks:
        raise NotYetError("the sweep measured nothing yet: go on with --resume")
    header = read_header(sweep_folders(setting)[0])
    header |= {"suite": suite.plain(), "suite_hash": suite.hash}
    write_run(setting.folder, header, blocks, all_notes(setting))
    made = build_map_of(setting.folder, _slug(setting.machine.device.environment.name))
    made.save(setting.folder / MAP)
    return made


def _slug(name: str) -> str:
    kept = "".join(c if c.isalnum() or c == "." else "-" for c in name.lower())
    return "-".join(part for part in kept.split("-") if part)
