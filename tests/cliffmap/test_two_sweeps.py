"""One suite swept twice on one H200: what a map says again, and what it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gacprof.cliffmap.build import build_map
from gacprof.cliffmap.cliffmap import CliffMap
from gacprof.cliffmap.run_folder import RunFolder
from gacprof.core.sizes import Interval, SizeVerdict

H200 = Path(__file__).parents[1] / "fixtures/h200"
Pairs = list[tuple[SizeVerdict, SizeVerdict]]


@pytest.fixture(scope="module")
def maps() -> list[CliffMap]:
    return [build_map(RunFolder(H200 / run)) for run in ("quick", "again")]


@pytest.fixture(scope="module")
def pairs(maps: list[CliffMap]) -> Pairs:
    """Each size in both maps."""
    both = []
    for first, second in zip(maps[0].curves, maps[1].curves, strict=True):
        assert first.axis == second.axis
        both += zip(first.sizes, second.sizes, strict=True)
    return both


def disjoint(a: Interval | None, b: Interval | None) -> bool:
    assert a is not None and b is not None
    return a.low > b.high or b.low > a.high


def test_no_verdict_is_turned_round_and_most_are_given_again(pairs: Pairs) -> None:
    decided = [
        {a.verdict, b.verdict} for a, b in pairs if "undecided" not in (a.verdict, b.verdict)
    ]
    assert {"safe", "misaligned"} not in decided
    assert len(decided) > 0.85 * len(pairs)


def test_intervals_of_penalties_meet(pairs: Pairs) -> None:
    apart = [disjoint(a.penalty, b.penalty) for a, b in pairs]
    assert np.mean(apart) <= 0.02


def test_the_noise_floor_says_what_latencies_of_two_runs_differ_by(
    maps: list[CliffMap], pairs: Pairs
) -> None:
    """A latency's own interval holds within its run; a size lies elsewhere in the next."""
    floor = min(cliff_map.noise_floor or 0.0 for cliff_map in maps)
    values = [(a.latency_us, b.latency_us) for a, b in pairs]
    ratios = np.array([b.value / a.value for a, b in values if a is not None and b is not None])
    assert np.mean(np.abs(np.log(ratios)) <= floor) >= 0.95
    assert abs(np.median(ratios) - 1) < 0.002
