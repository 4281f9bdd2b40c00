"""In which order points are visited: shuffled within each pass, with hidden duplicates.

A duplicate is a point measured again as if it were another. What it and its twin differ by
is what the machine's drift and noise can feign: the A/A noise floor.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from gacprof.points import Point


@dataclass(frozen=True)
class Visit:
    """One measurement to take: ``number`` is the pass it belongs to.

    A ``thorough`` visit is timed until its median is known twice as well as in others.
    """

    point: Point
    number: int
    duplicate: bool
    thorough: bool = False

    @property
    def key(self) -> tuple[str, int, bool]:
        return self.point.id, self.number, self.duplicate


def visits(
    points: Iterable[Point], passes: int, duplicates: float, least_duplicates: int, seed: int
) -> list[Visit]:
    """Every visit of a sweep, in order. The same arguments give the same order, always."""
    ordered = sorted(points, key=lambda point: point.id)
    draw = random.Random(seed)
    count = 0
    if duplicates > 0:
        count = min(len(ordered), max(least_duplicates, round(duplicates * len(ordered))))
    doubled = draw.sample(ordered, count)
    order: list[Visit] = []
    for number in range(passes):
        this_pass = [Visit(point, number, False) for point in ordered]
        this_pass += [Visit(point, number, True) for point in doubled]
        draw.shuffle(this_pass)
        order += this_pass
    return order
