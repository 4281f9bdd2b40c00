"""Dims that are alike as one row: named fully, and never with one that is not among them."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gacprof.reporting.grouping import group


def names(dims):
    return [row.name for row in group(dims, lambda d: d[0], lambda d: d[1])]


def of(layers, ends, size=lambda layer: 1):
    return [(f"model.layers.{n}.{end}", size(n)) for n in layers for end in ends]


@pytest.mark.parametrize(
    ("dims", "rows"),
    [
        (of(range(32), [f"self_attn.{p}_proj" for p in "qkvo"]),
         ["layers 0–31 self_attn.{q,k,v,o}_proj"]),
        (of(range(8), ["mlp"], lambda n: 64 + (n == 5)), ["layers 0–4, 6–7 mlp", "layer 5 mlp"]),
        ([("h.0.q", 1), ("h.1.q", 1), ("h.1.k", 1)], ["h layers 0–1 q", "h layer 1 k"]),
        (of(range(2), [f"mlp.experts.{e}:width" for e in range(16)]),
         ["layers 0–1 mlp.experts.0–15:width"]),
        ([], []),
    ],
)  # fmt: skip
def test_dims_that_are_alike_are_a_row(dims, rows):
    assert names(dims) == rows


def test_experts_are_ranges():
    dims = [
        (f"model.layers.{layer}.mlp.experts.{e}.{p}_proj", 9)
        for layer in range(2) for e in range(128) for p in ("gate", "up")
    ]  # fmt: skip
    assert names(dims) == ["layers 0–1 mlp.experts.0–127.{gate,up}_proj"]
    assert names(dims[:-1]) == [
        "layers 0–1 mlp.experts.0–127.gate_proj",
        "layers 0–1 mlp.experts.0–126.up_proj",
        "layer 0 mlp.experts.127.up_proj",
    ]


def expand(name: str) -> set[str]:
    """Every name that a row stands for."""
    layers, end = re.fullmatch(r"layers? ([0-9–, ]+?) ((?!\d).+)", name).groups()
    experts = re.search(r"experts\.([0-9–, ]+)\.", end)
    braces = re.search(r"{(.*)}", end)
    ends = [end]
    if braces:
        ends = [end.replace(braces[0], choice) for choice in braces[1].split(",")]
    if experts:
        ends = [e.replace(experts[0], f"experts.{n}.") for e in ends for n in numbers(experts[1])]
    return {f"model.layers.{n}.{e}" for n, e in product(numbers(layers), ends)}


def numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(", "):
        first, _, last = part.partition("–")
        found += range(int(first), int(last or first) + 1)
    return found


WEIGHTS = (
    "self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj", "mlp",
    *(f"experts.{n}.{p}" for n in (0, 1, 2, 7) for p in ("up", "gate")),
)  # fmt: skip


@given(st.dictionaries(st.tuples(st.integers(0, 6), st.sampled_from(WEIGHTS)), st.integers(0, 2)))
def test_rows_name_each_dim_once_and_no_other(sizes):
    dims = [(f"model.layers.{layer}.{end}", size) for (layer, end), size in sizes.items()]
    rows = group(dims, lambda d: d[0], lambda d: d[1])
    message = [name for row in rows for name in expand(row.name)]
    assert sorted(message) == sorted(name for name, _ in dims)
    for row in rows:
        assert {name for name, _ in row.members} == expand(row.name)
        assert len({size for _, size in row.members}) == 1
