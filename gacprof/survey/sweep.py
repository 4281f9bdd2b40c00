"""Stages ``sweep`` and ``map``: the suite and the end-to-end shapes' candidates, measured.

A later call goes on with the same sweeps: curves whose dims are undecided get more blocks.
"""

from __future__ import annotations

import time
from collections import Counter

from gacprof.survey.samples import all_notes, publish, sweep_into
from gacprof.survey.setting import MAP, Setting
from gacprof.survey.shapes import inventory_of, unaligned_ranks, unaligned_widths
from gacprof.survey.state import Outcome
from gacprof.sweeping import RunSummary, Suite, load_suite
from gacprof.sweeping.for_checkpoint import suite_for
from gacprof.sweeping.suite import parse_suite

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
