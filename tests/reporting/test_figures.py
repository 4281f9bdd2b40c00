"""Which curves a page draws, and on which axes."""

from __future__ import annotations

from itertools import chain

import pytest

from gacprof.cliffmap.cliffmap import load_map, shipped_maps
from gacprof.reporting.figures import (
    CURVES_DRAWN,
    curves_that_matter,
    split_at_gaps,
    staircase,
)


@pytest.mark.parametrize("name", shipped_maps())
def test_of_each_operator_dim_and_dtype_the_curve_most_like_a_prefill_is_drawn(name: str) -> None:
    cliff_map = load_map(name)
    drawn = curves_that_matter(cliff_map)
    groups = {(c.axis.operator, c.axis.dim, c.axis.dtype): c for c in drawn}
    assert 0 < len(drawn) == len(groups) <= CURVES_DRAWN
    for curve in cliff_map.curves:
        rival = groups.get((curve.axis.operator, curve.axis.dim, curve.axis.dtype))
        is_timed = any(verdict.latency_us for verdict in curve.sizes)
        if rival is not None and is_timed and not curve.is_forced:
            assert rival.unlike_prefill <= curve.unlike_prefill
    assert not any(curve.is_forced for curve in drawn)


@pytest.mark.parametrize(
    ("sizes", "panels"),
    [
        ([*range(96, 257, 8), *range(3584, 4609, 8)], [(96, 256), (3584, 4608)]),
        (
            [96, 104, 256, 1000, 1004, *range(3584, 4609, 256)],
            [(96, 256), (1000, 1004), (3584, 4608)],
        ),
        ([64, 96, 128, 192, 256], [(64, 256)]),
        (range(256, 4289, 64), [(256, 4288)]),
        ([128], [(128, 128)]),
    ],
)
def test_a_wide_gap_parts_the_axis(sizes: list[int], panels: list[tuple[int, int]]) -> None:
    parts = split_at_gaps(sizes)
    assert [(part[0], part[-1]) for part in parts] == panels
    assert [*chain(*parts)] == [*sizes]


@pytest.mark.parametrize("name", shipped_maps())
def test_every_timed_size_lies_within_the_axes(name: str) -> None:
    cliff_map = load_map(name)
    for curve in curves_that_matter(cliff_map):
        figure = staircase(cliff_map, curve)
        low, high = figure.axes[0].get_ylim()
        for verdict in curve.sizes:
            if verdict.latency_us:
                assert low < verdict.latency_us.low <= verdict.latency_us.high < high
                assert any(a.get_xlim()[0] <= verdict.size <= a.get_xlim()[1] for a in figure.axes)
