"""The A/A noise floor: of a whole map, and of the points that are like a curve's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gacprof.cliffmap.schema import Noise
from gacprof.cliffmap.visits import Visits, least_disturbed
from gacprof.measure.stats import median, quantile
from gacprof.points import Point

FLOOR_QUANTILE = 0.95
"""The share of A/A differences that the noise floor is not to fall short of."""

ALIKE = 1.5
"""A pair is like a curve's points if its latency is at most this factor outside their range.
A call of 7 µs and one of 700 µs are disturbed by different things."""

LEAST_PAIRS = 12
"""Of fewer pairs the largest is exceeded too often (by one in thirteen with twelve): then the
floor of the whole map is taken."""


@dataclass(frozen=True)
class Pair:
    """One point, measured twice in disguise. ``difference`` is a fraction."""

    operator: str
    latency_us: float
    difference: float


def aa_pairs(visits: Mapping[Point, Visits]) -> list[Pair]:
    return [
        Pair(point.operator, median(least_disturbed(v.own)), difference)
        for point, v in visits.items()
        if (difference := v.disagreement) is not None
    ]


def noise_floor(pairs: Sequence[Pair]) -> Noise:
    """The 95 % quantile of the pairs' differences; null with the reason where there is none."""
    if not pairs:
        return Noise(floor=None, reason="the samples hold no duplicate visits")
    floor = quantile((pair.difference for pair in pairs), FLOOR_QUANTILE)
    return Noise(floor=float(f"{floor:.4g}"), quantile=FLOOR_QUANTILE, pairs=len(pairs))


def noise_of_curve(
    pairs: Iterable[Pair], operator: str, latencies_us: Sequence[float]
) -> Noise | None:
    """The floor of the pairs of this operator whose latency is like the curve's; None where
    they are too few to tell."""
    shortest, longest = min(latencies_us) / ALIKE, max(latencies_us) * ALIKE
    alike = [p for p in pairs if p.operator == operator and shortest <= p.latency_us <= longest]
    return noise_floor(alike) if len(alike) >= LEAST_PAIRS else None
