"""Do a curve's findings follow from its points? A map edited by hand may say otherwise."""

from __future__ import annotations

from gacprof.cliffmap import detect
from gacprof.cliffmap.schema import Curve, MapFile

ROUNDING = 2e-4
"""Jumps are kept with four decimals, medians with six digits."""


def contradiction(file: MapFile) -> str | None:
    """The first finding that the points of its curve contradict, in words; None if all follow."""
    for number, curve in enumerate(file.curves):
        fault = _of_safe(curve) or _of_cliffs(curve) or _of_coverage(curve)
        if fault is not None:
            return f"curves[{number}] ({curve.identity}): {fault}"
    return None


def _of_safe(curve: Curve) -> str | None:
    """Verdicts follow from the penalties' bounds, and these hold the penalty itself."""
    p, safe, misaligned = curve.points, set(curve.safe), set(curve.misaligned)
    for d, penalty, low, high in zip(
        p.d, detect.penalty(p.median_us), p.penalty_low, p.penalty_high, strict=True
    ):
        if not low - ROUNDING <= penalty or (high is not None and penalty > high + ROUNDING):
            return f"the penalty of {d} is {penalty:.1%}, its bounds are {low} and {high}"
        if d in safe and (high is None or high > curve.tolerance + ROUNDING):
            return f"'safe' names {d}, whose penalty may be {high or penalty:.1%}"
        if d in misaligned and low <= curve.tolerance - ROUNDING:
            return f"'misaligned' names {d}, whose penalty may be as low as {low:.1%}"
        if d in safe and d > curve.coverage.settled:
            return f"'safe' names {d}, but nothing above {curve.coverage.settled} is settled"
    return None


def _of_cliffs(curve: Curve) -> str | None:
    latency = dict(zip(curve.points.d, curve.points.median_us, strict=True))
    for cliff in curve.cliffs:
        jump = latency[cliff.after] / latency[cliff.before] - 1
        if abs(jump - cliff.jump) > ROUNDING * (1 + abs(jump)):
            return (
                f"the cliff {cliff.before} → {cliff.after} says {cliff.jump:+.1%}, "
                f"the points say {jump:+.1%}"
            )
    return None


def _of_coverage(curve: Curve) -> str | None:
    measured = len(curve.points.d)
    if curve.coverage.measured != measured:
        return f"'coverage' says {curve.coverage.measured} dims were measured, there are {measured}"
    both = [d for d in curve.coverage.failed if d in set(curve.points.d)]
    return f"{both[0]} is among the measured and the failed dims" if both else None
