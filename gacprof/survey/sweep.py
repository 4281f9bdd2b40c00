"""Stages ``sweep`` and ``map``: the suite and the end-to-end shapes' candidates, measured.

A first call measures every point once over; each later call adds a round in another order, so
that every point is seen in more states of the machine.
"""

from __future__ import annotations

import time

from gacprof.points import Sample
from gacprof.survey.samples import all_samples, publish, round_names, sweep_into
from gacprof.survey.setting import MAP, Setting
from gacprof.survey.shapes import inventory_of, unaligned_ranks, unaligned_widths
from gacprof.survey.state import Outcome
from gacprof.sweeping import Suite, load_suite
from gacprof.sweeping.for_checkpoint import suite_for
from gacprof.sweeping.suite import parse_suite

CANDIDATES, SUITE = "candidates", "suite-"
CANDIDATES_SHARE = 0.3
MOST_ROUNDS = 6
DEEPEN_SHARE = 0.1
"""Of a budget, for each round beyond the first: what other stages lack comes before it."""
PLAN_TOKENS = (1, 1024)
"""What the plan is made for: decoding, and the papers' prompt length."""

CPU_TIMING = {"cap_ms": 10, "passes": 2}
GPU_TIMING = {"cap_ms": 20, "passes": 2}


def sweep(setting: Setting) -> Outcome:
    """The candidates, then the suite in rounds: with a budget as many as it pays for (up to
    :data:`MOST_ROUNDS`), without one those there are and one more."""
    known = sum(name.startswith(SUITE) for name in round_names(setting))
    most = MOST_ROUNDS if setting.budget_s is not None else min(known + 1, MOST_ROUNDS)
    before, began = _count(setting), time.monotonic()
    left = setting.left_s()
    share = None if left is None else CANDIDATES_SHARE * left
    unmeasured = sweep_into(setting, CANDIDATES, candidate_suite(setting), share).left
    suite = load_suite(setting.suite)
    made = 0
    while made < most and not (made and setting.out_of_time):
        made += 1
        name, seconds = f"{SUITE}{made}", setting.left_s()
        if made > 1 and seconds is not None and setting.budget_s is not None:
            seconds = min(seconds, DEEPEN_SHARE * setting.budget_s)
        left_over = sweep_into(setting, name, _round(suite, made), seconds).left
        unmeasured += left_over
        if left_over:
            break
    took = time.monotonic() - began
    samples = list(all_samples(setting))
    taken = len(samples) - before
    rate = f"{taken} visits in {took:.0f} s, {taken / max(took, 1e-9):.1f} a second"
    failed = [sample for sample in samples if sample.status != "ok"]
    return Outcome(notes=(rate, *_failures(failed)), thin=_thin(unmeasured, made))


def build(setting: Setting) -> Outcome:
    """The map of everything measured, with ``samples.parquet`` beside it."""
    made = publish(setting, load_suite(setting.suite))
    noise = made.file.noise
    floor = f"{noise.floor:.1%} from {noise.pairs} pairs" if noise.floor is not None else "none"
    points = sum(len(curve.points.d) for curve in made.curves)
    cliffs = sum(len(curve.cliffs) for curve in made.curves)
    note = f"{len(made.curves)} curves, {points} points, {cliffs} cliffs; A/A floor {floor}"
    return Outcome(artefacts=(MAP, "samples.parquet", "run.json"), notes=(note,))


def candidate_suite(setting: Setting) -> Suite:
    """What the unaligned ranks and widths could become, at the tokens that the plan is for."""
    shape = setting.machine.shape
    timing = GPU_TIMING if setting.machine.is_gpu else CPU_TIMING
    tables = []
    for sizes in (unaligned_ranks(shape), unaligned_widths(shape)):
        made = suite_for(inventory_of(shape, sizes), PLAN_TOKENS, dtype=shape.dtype, timing=timing)
        tables += made.model_dump(mode="json", by_alias=True)["sweep"]
    return parse_suite(
        {
            "name": "survey-candidates",
            "description": f"sizes near the uneven ranks and widths of {shape.scale}",
            "timing": timing,
            "sweep": tables,
        },
        "the survey's candidates",
    )


def _round(suite: Suite, number: int) -> Suite:
    """Later rounds: the same points once more each, in another order."""
    if number == 1:
        return suite
    timing = suite.timing.model_copy(update={"passes": 1, "seed": suite.timing.seed + number})
    return suite.model_copy(update={"timing": timing})


def _count(setting: Setting) -> int:
    return sum(1 for _ in all_samples(setting))


def _failures(failed: list[Sample]) -> list[str]:
    reasons: dict[str, int] = {}
    for sample in failed:
        key = f"{sample.status}: {sample.reason.partition(': ')[2] or sample.reason}"
        reasons[key] = reasons.get(key, 0) + 1
    ordered = sorted(reasons.items(), key=lambda item: -item[1])
    return [f"{count} visits {reason}" for reason, count in ordered[:3]]


def _thin(unmeasured: int, rounds: int) -> str:
    if unmeasured:
        return f"{unmeasured} visits are still to be taken: the time was up"
    if rounds < MOST_ROUNDS:
        return f"{rounds} of {MOST_ROUNDS} rounds over the suite were made"
    return ""
