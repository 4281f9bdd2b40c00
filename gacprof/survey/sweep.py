"""Stages ``sweep`` and ``map``: the suite and the end-to-end shapes' candidates, measured.

A sweep is bound to its suite, so what a survey measures beside its suite (candidates for a plan,
the shapes of its models) are sweeps beside it. ``samples.parquet`` at the top holds the blocks
of all, numbered on from sweep to sweep. A later call goes on with the same sweeps: curves whose
dims are undecided get more blocks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gacprof.cliffmap import CliffMap
from gacprof.core.points import Block, Point, PointNote
from gacprof.survey.setting import MAP, Setting
from gacprof.survey.shapes import inventory_of, unaligned_ranks, unaligned_widths
from gacprof.survey.state import NotYetError, Outcome
from gacprof.sweeping import RunSummary, Suite, build_map_of, load_suite, read_blocks, run_sweep
from gacprof.sweeping.for_checkpoint import suite_for
from gacprof.sweeping.store import read_header, read_notes, write_run
from gacprof.sweeping.suite import parse_suite

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
    made = build_map_of(setting.folder)
    made.save(setting.folder / MAP)
    return made


CANDIDATES, SUITE = "candidates", "suite"
CANDIDATES_SHARE = 0.3
PLAN_TOKENS = (1, 1024)
"""What the plan is made for: decoding, and the papers' prompt length."""

TIMING = {"blocks": 12, "most_blocks": 100, "replicates": 0.15}
"""Of the sweeps beside the suite: many short curves, of whose dims only a few are chosen."""


def sweep(setting: Setting) -> Outcome:
    """The candidates, then the suite, each for its share of what time is left."""
    began, left = time.monotonic(), setting.left_s()
    share = None if left is None else CANDIDATES_SHARE * left
    made = [sweep_into(setting, CANDIDATES, candidate_suite(setting), share)]
    made.append(sweep_into(setting, SUITE, load_suite(setting.suite), setting.left_s()))
    took = time.monotonic() - began
    blocks, calls = (sum(getattr(s, name) for s in made) for name in ("blocks", "calls"))
    told = f"{blocks} blocks, {calls} calls so far; this call took {took:.0f} s"
    return Outcome(notes=(told, *_failures(setting)), thin=_thin(made))


def build(setting: Setting) -> Outcome:
    """The map of everything measured, with ``samples.parquet`` beside it."""
    made = publish(setting, load_suite(setting.suite))
    noise = made.file.noise
    floor = f"{noise.floor:.1%} from {noise.pairs} pairs" if noise.floor is not None else "none"
    undecided = sum(len(curve.undecided) for curve in made.curves)
    points = sum(len(curve.points.d) for curve in made.curves)
    cliffs = sum(len(curve.cliffs) for curve in made.curves)
    note = (
        f"{len(made.curves)} curves, {points} points, {cliffs} cliffs, {undecided} dims "
        f"undecided; A/A floor {floor}"
    )
    return Outcome(artefacts=(MAP, "samples.parquet", "run.json"), notes=(note,))


def candidate_suite(setting: Setting) -> Suite:
    """What the unaligned ranks and widths could become, at the tokens that the plan is for."""
    shape = setting.machine.shape
    tables = []
    for sizes in (unaligned_ranks(shape), unaligned_widths(shape)):
        made = suite_for(inventory_of(shape, sizes), PLAN_TOKENS, dtype=shape.dtype, timing=TIMING)
        tables += made.model_dump(mode="json", by_alias=True)["sweep"]
    return parse_suite(
        {
            "name": "survey-candidates",
            "description": f"sizes near the uneven ranks and widths of {shape.scale}",
            "timing": TIMING,
            "sweep": tables,
        },
        "the survey's candidates",
    )


def _failures(setting: Setting) -> list[str]:
    """The commonest reasons why points failed."""
    reasons = Counter(
        note.failed.partition(": ")[2] or note.failed
        for note in all_notes(setting).values()
        if note.failed
    )
    return [f"{count} points failed: {reason}" for reason, count in reasons.most_common(3)]


def _thin(made: list[RunSummary]) -> str:
    unfinished = sum(summary.unfinished for summary in made)
    return f"{unfinished} curves are not finished: the time was up" if unfinished else ""
