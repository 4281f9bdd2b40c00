"""``align``: a compressor's sizes in, safe sizes within the same parameters out."""

from itertools import product

import numpy as np
import pytest
from formula_source import FormulaSource, teeth_of

from gacprof.compress.align import align
from gacprof.core.errors import PlanError
from gacprof.core.sizes import Gemm, Side, Use

SOURCE = FormulaSource(teeth_of(8))
Q, K = (4096, 4096), (1024, 4096)


def parameters(dims, costs):
    return sum(dim * sum(cost) for dim, cost in zip(dims, costs, strict=True))


def best(dims, costs, options, value):
    """By trying all."""
    budget = parameters(dims, costs)
    fitting = [row for row in product(*options) if parameters(row, costs) <= budget]
    return max(sum(value(i, dim) for i, dim in enumerate(row)) for row in fitting)


def test_equation_four_is_maximised():
    dims, costs, scores = [107, 60, 93], [Q, K, Q], [1.0, 3.0, 0.5]
    options = [[96, 104, 112, 120], [48, 56, 64, 72], [80, 88, 96, 104]]

    def value(i, dim):
        return scores[i] * sum(costs[i]) * (dim - dims[i])

    aligned = align(dims, scores, costs, SOURCE)
    assert parameters(aligned, costs) <= parameters(dims, costs)
    total = sum(value(i, dim) for i, dim in enumerate(aligned))
    assert total == pytest.approx(best(dims, costs, options, value))


def test_curves_of_quality_are_kept_to_the_most():
    flat = [1 - 0.999**rank for rank in range(513)]
    steep = [1 - 0.8**rank for rank in range(513)]
    a, b = align([50, 50], [flat, steep], [K, K], SOURCE, window=0.5)
    assert a > 50 > b and a + b <= 100 and a % 8 == b % 8 == 0


def test_no_size_beyond_the_end_of_a_curve_is_chosen():
    curve = [rank / 4096 for rank in range(110)]
    assert align([107], [curve], [Q], SOURCE, 10**9) == [104]


def test_widths_are_judged_in_the_products_that_they_are_part_of():
    use = Use(Gemm("up", 101, 4096), Side(0, 1), Side(4096), 64, "float16")
    assert align([101], [1.0], [4096], SOURCE, 4096 * 110, uses=[[use]]) == [104]


def test_arrays_are_read():
    curve = [rank / 4096 for rank in range(4097)]
    arrays = np.array([107.0]), np.array([curve]), np.array([Q])
    assert align(*arrays, SOURCE) == align([107], [curve], [Q], SOURCE) == [104]


CURVE = [rank / 4096 for rank in range(4097)]


@pytest.mark.parametrize(
    ("dims", "scores", "costs"),
    [
        ([], [], []),
        ([5], [1.0, 2.0], [Q]),
        ([107], [1.0], [8192]),
        ([59, 59], [CURVE, 1.0], [Q, Q]),
        ([107], [[0.0, 1.0, 0.5]], [Q]),
        ([107], [[2.0] * 200], [Q]),
        ([107], [CURVE[:60]], [Q]),
    ],
)
def test_what_cannot_be_aligned_is_refused(dims, scores, costs):
    with pytest.raises(PlanError):
        align(dims, scores, costs, SOURCE)


def test_a_budget_that_nothing_fits_is_refused():
    with pytest.raises(PlanError):
        align([107], [1.0], [Q], SOURCE, budget=5)
