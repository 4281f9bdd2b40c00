"""Safe ranks are those that no larger rank beats in both products together; sizes are explained
by the next better one."""

from __future__ import annotations

import pytest
import torch
from formula_source import FormulaSource, stairs_of, teeth_of
from planted import PlantedRun

from gacprof.cliffmap.build import build_map
from gacprof.core.errors import MapError
from gacprof.core.points import Axis
from gacprof.diagnosing.explain import explain
from gacprof.diagnosing.safe_ranks import break_even_rank, safe_ranks

SHAPES = [(512, 256), (128, 256)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("make", [teeth_of, stairs_of])
def test_safe_ranks_are_those_of_the_definition(make, shape) -> None:
    formula = make(16)
    n, k = shape
    times = {r: sum(formula(m, r, k) + formula(m, n, r) for m in (1, 64)) for r in range(1, 1025)}
    best, safe = float("inf"), []
    for rank in sorted(times, reverse=True):
        best = min(best, times[rank])
        if times[rank] <= 1.02 * best and 16 <= rank <= 96:
            safe.append(rank)
    assert safe_ranks(shape, FormulaSource(formula), low=16, high=96) == safe[::-1]


def test_a_layer_is_as_good_as_its_shape() -> None:
    source = FormulaSource(teeth_of(8))
    layer = torch.nn.Linear(256, 512, bias=False)
    ranks = safe_ranks(layer, source)
    assert ranks == safe_ranks((512, 256), source) == safe_ranks(layer.weight, source)
    assert max(ranks) <= break_even_rank(512, 256)
    assert max(safe_ranks((128, 256), source, high=1000)) <= 128


def test_both_ends_of_the_search_are_included() -> None:
    axes = [
        Axis("linear", dim, tuple(range(64, 129)), {"M": 64, other: length}, "float16")
        for dim, other, length in (("N", "K", 256), ("K", "N", 512))
    ]
    cliff_map = build_map(PlantedRun(tuple(axes)))
    assert safe_ranks((512, 256), cliff_map, dtype="float16", low=80, high=96) == [80, 88, 96]


def test_a_pair_that_was_not_measured_is_refused() -> None:
    with pytest.raises(MapError, match="sweep"):
        safe_ranks((512, 256), FormulaSource(teeth_of(8), frozenset({(1, 1, 1)})))


def test_where_no_rank_is_safe_a_warning_says_why() -> None:
    with pytest.warns(UserWarning, match="no rank"):
        assert safe_ranks((1024, 1024), "cpu-example", low=113, high=119) == []


def test_a_type_that_is_named_is_asked_about() -> None:
    """A map's only type stands in for none that was named."""
    shape = {"dim": "K", "other": 1024, "tokens": [256]}
    assert explain(107, "cpu-example", **shape).now.verdict == "misaligned"
    assert explain(107, "cpu-example", dtype="float16", **shape).now.verdict == "unknown"


@pytest.mark.parametrize("dim", ["N", "K", "rank", "head_dim"])
def test_an_explanation_compares_with_the_next_safe_size(dim) -> None:
    explanation = explain(107, FormulaSource(teeth_of(8)), dim=dim, other=4096)
    assert explanation.now.size == 107 and explanation.now.verdict == "misaligned"
    assert explanation.better is not None and explanation.better.size == 112
    if dim != "head_dim":
        assert explanation.slower is not None and 0.2 < explanation.slower.value < 0.4
