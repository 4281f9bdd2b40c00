"""Stretches of an axis that are padded, cut and chosen from: against plain indexing."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gacprof.checkpoint.inventory import Dim, Inventory, Place, TensorInfo
from gacprof.realigning.changes import Change, NewCheckpoint
from gacprof.realigning.values import NewValues

Case = tuple[int, list[tuple[int, int, int, list[int]]], list[int]]


@st.composite
def axes(draw: Any) -> Case:
    """A length; start, size, new size and kept entries of stretches; by new entry the source's."""
    parts = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=6))
    stretches: list[tuple[int, int, int, list[int]]] = []
    expected: list[int] = []
    start = 0
    for size, new in parts:
        entries = list(range(size))
        if new == 0:  # stays as it is
            kept = entries
        else:
            kept = sorted(draw(st.permutations(entries))[:new])
            stretches.append((start, size, new, kept))
        expected += [start + entry for entry in kept] + [-1] * (new - size)
        start += size
    return start, stretches, expected


def new_values(source: torch.Tensor, axis: int, case: Case) -> NewValues:
    changes = []
    importance = {}
    for start, size, new, kept in case[1]:
        dim = Dim(f"{start}", "width", size, (Place("w", axis, start),), (), 0)
        if new != size:
            changes.append(Change(dim, new))
        importance[dim.name] = torch.zeros(size).index_fill(0, torch.tensor(kept), 1.0)
    tensors = {"w": TensorInfo("w", tuple(source.shape), "int16", "<memory>", 0, source.nbytes)}
    inventory = Inventory(tensors, path="", layout="plain", modules=(), dims=(), attentions=())
    new_checkpoint = NewCheckpoint(inventory, {}, tuple(changes), (), ())
    return NewValues(new_checkpoint, lambda name: source, importance)


@settings(deadline=None, derandomize=True)
@given(axes(), st.integers(0, 1))
def test_every_stretch_changes_and_the_rest_stays(case: Case, axis: int) -> None:
    length, _, expected = case
    source = torch.arange(1, 3 * length + 1, dtype=torch.int16).reshape(length, 3)
    rows = [source[i] if i >= 0 else torch.zeros_like(source[0]) for i in expected]
    lines = torch.stack(rows)
    if axis:
        source, lines = source.T, lines.T
    assert torch.equal(new_values(source, axis, case).changed("w"), lines)
