"""Candidates for compressors, and the table of constraints."""

from __future__ import annotations

import pytest

from gacprof.cliffmap.cliffmap import load_map
from gacprof.cliffmap.tables import candidates, map_table
from gacprof.core.errors import MapError

HEAD_DIM = {"operator": "attention", "dim": "head_dim"}


def test_candidates_are_the_nearest_safe_sizes() -> None:
    verdicts = candidates(107, "a100-published", **HEAD_DIM, below=1, above=1)
    assert [v.size for v in verdicts] == [96, 128]
    assert {v.verdict for v in verdicts} == {"safe"}
    assert [v.size for v in candidates(128, "a100-published", **HEAD_DIM, below=1)] == [
        128,
        160,
        192,
    ]
    assert candidates(107, "a100-published", **HEAD_DIM, below=0, above=0) == []


def test_candidates_of_several_maps_are_safe_on_all() -> None:
    both = candidates(107, ["a100-published", "h100-published"], **HEAD_DIM, below=99, above=99)
    apart = [
        {v.size for v in candidates(107, name, **HEAD_DIM, below=99, above=99)}
        for name in ("a100-published", "h100-published")
    ]
    assert {v.size for v in both} == apart[0] & apart[1]


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (107, {"dim": "N", "dtype": "bfloat16"}),
        (10_000, {"dim": "N"}),
        (4_050, {"dim": "N"}),  # M = 1 and M = 512
        (107, {"operator": "no such"}),
    ],
)
def test_a_curve_that_is_none_or_several_is_refused(size: int, options: dict[str, str]) -> None:
    with pytest.raises(MapError):
        candidates(size, "a100-published", **options)


def test_other_dims_tell_curves_apart() -> None:
    verdicts = candidates(4_050, "a100-published", dim="K", fixed={"M": 512})
    assert all(v.size % 16 == 0 for v in verdicts)


def test_the_last_size_of_a_curve_has_candidates() -> None:
    curves = load_map("cpu-example").curves_of("linear", "K", fixed={"M": 256})
    curve = max(curves, key=lambda curve: curve.sizes[-1].size)
    last, fixed = curve.sizes[-1].size, curve.axis.fixed
    verdicts = candidates(last, "cpu-example", dim="K", fixed=fixed, above=0)
    assert verdicts == [v for v in curve.sizes if v.verdict == "safe"][-2:]


@pytest.mark.parametrize("word", ["M=x", "M", "M=", "M=-1", "=512", "M=1.5", ""])
def test_a_word_that_fixes_no_dim_is_refused(word: str) -> None:
    with pytest.raises(MapError):
        candidates(4_050, "a100-published", dim="K", fixed=[word])


def test_words_fix_dims() -> None:
    by_words = candidates(4_050, "a100-published", dim="K", fixed=["M=512", "N=4096"])
    assert by_words == candidates(4_050, "a100-published", dim="K", fixed={"M": 512, "N": 4096})


def test_the_table_has_a_row_a_curve() -> None:
    cliff_map = load_map("a100-published")
    table = map_table(cliff_map)
    assert len(table) == len(cliff_map.curves)
    row = table[(table.operator == "linear") & (table.dim == "K") & (table.fixed == "M=512 N=4096")]
    assert row.multiple.item() == 16
    assert row.penalty.item() > 0.3
    assert row.safe.item() == len(row.safe_sizes.item().split(", ")) or row.safe.item() > 1
