"""Stretches of an axis that are padded, cut and chosen from: against plain indexing."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gacprof.realigning.values import Mix, Stretch, Take, Zeros, compose, resized


@st.composite
def axes(draw: Any) -> tuple[int, list[Stretch], list[int]]:
    """A length, stretches of it, and by new entry the source's (-1: zero)."""
    parts = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=6))
    stretches: list[Stretch] = []
    expected: list[int] = []
    start = 0
    for size, new in parts:
        entries = list(range(start, start + size))
        if new == 0:  # stays as it is
            expected += entries
        elif new > size:
            padded = (Take(range(start, start + size)), Zeros(new - size))
            stretches.append((start, size, padded))
            expected += entries + [-1] * (new - size)
        else:
            chosen = sorted(draw(st.permutations(entries))[:new])
            stretches.append((start, size, (Take(chosen),)))
            expected += chosen
        start += size
    return start, stretches, expected


@settings(deadline=None, derandomize=True)
@given(axes(), st.integers(0, 1))
def test_every_stretch_changes_and_the_rest_stays(
    case: tuple[int, list[Stretch], list[int]], axis: int
) -> None:
    length, stretches, expected = case
    source = torch.arange(1, 3 * length + 1, dtype=torch.int16).reshape(length, 3)
    rows = [source[i] if i >= 0 else torch.zeros_like(source[0]) for i in expected]
    lines = torch.stack(rows)
    if axis:
        source, lines = source.T, lines.T
    assert torch.equal(resized(source, axis, compose(length, stretches)), lines)


def test_combined_entries_are_a_matrix_product_on_their_stretch() -> None:
    source = torch.randn(6, 4, dtype=torch.float32)
    matrix = torch.randn(3, 2, dtype=torch.float64)
    new = resized(source, 0, compose(6, [(2, 3, (Mix(2, matrix),))]))
    combined = (matrix.T @ source[2:5].double()).float()
    assert torch.equal(new, torch.cat([source[:2], combined, source[5:]]))
    transposed = resized(source.T, 1, compose(6, [(2, 3, (Mix(2, matrix),))]))
    torch.testing.assert_close(transposed, new.T)
