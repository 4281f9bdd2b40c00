"""``align``: requested sizes in, aligned dims within the budget out, for anybody's compressor."""

import itertools

import pytest
from published_dims import ranks_map, rows_of

import gacprof
from gacprof.cliffmap import Use
from gacprof.core.errors import CompressionError, GacprofError
from gacprof.solver import InfeasibleBudget

Q, K = (4096, 4096), (1024, 4096)
CURVE = [r / 4096 for r in range(4097)]
SHAPES = {"q": Q, "k": K, "v": K, "o": Q}


@pytest.fixture(scope="module")
def cliff_map(tmp_path_factory):
    return ranks_map(tmp_path_factory.mktemp("align") / "run", 208)


@pytest.fixture(scope="module")
def published():
    """(score, ratio) → [(projection, dim)] of Llama-3-8B."""
    return rows_of(lambda row: (row["proj"], int(row["dim"])))


def spent(dims, costs):
    return sum(d * sum(c) for d, c in zip(dims, costs, strict=True))


def test_the_published_dims_are_aligned_in_full_within_their_own_budget(published, cliff_map):
    for (_, ratio), rows in published.items():
        if ratio not in ("0.6", "0.8"):
            continue
        dims = [dim for _, dim in rows]
        costs = [SHAPES[proj] for proj, _ in rows]
        found = gacprof.align(dims, [1.0] * len(dims), costs, cliff_map)
        assert len(found) == 128 and any(d % 8 for d in dims)
        assert all(d % 8 == 0 for d in found)
        spent, wished = (
            sum(d * sum(c) for d, c in zip(x, costs, strict=True)) for x in (found, dims)
        )
        assert spent <= wished


def best(dims, costs, budget, value, offered):
    """By trying all."""
    fits = (choice for choice in itertools.product(*offered) if spent(choice, costs) <= budget)
    return max(sum(value(i, d) for i, d in enumerate(choice)) for choice in fits)


def test_equation_four_is_solved_exactly(cliff_map):
    dims, costs, scores = [107, 60, 93], [Q, K, Q], [1.0, 3.0, 0.5]
    offered = [[96, 104, 112, 120], [48, 56, 64, 72], [80, 88, 96, 104]]
    budget = spent(dims, costs)

    def value(i, d):
        return scores[i] * sum(costs[i]) * (d - dims[i])

    found = gacprof.align(dims, scores, costs, cliff_map)
    assert sum(value(i, d) for i, d in enumerate(found)) == pytest.approx(
        best(dims, costs, budget, value, offered)
    )


def test_curves_of_quality_are_kept_to_the_most(cliff_map):
    dims, costs = [50, 50], [K, K]
    flat = [1 - 0.999**r for r in range(513)]
    steep = [1 - 0.8**r for r in range(513)]
    a, b = gacprof.align(dims, [flat, steep], costs, cliff_map, window=0.5)
    assert a > 50 > b and a + b <= 100 and a % 8 == b % 8 == 0


def test_widths_are_aligned_by_their_uses(cliff_map):
    uses = [Use("linear", {"M": 1, "K": 4096}, "N", "float16")]
    found = gacprof.align([101], [1.0], [4096], cliff_map, 4096 * 110, uses=[uses])
    assert found == [104]


def test_a_bound_is_kept(cliff_map):
    assert gacprof.align([107], [1.0], [Q], cliff_map, 10**9, most=[104]) == [104]


def test_a_bound_below_every_safe_dim_is_named_with_the_least_of_these(cliff_map):
    with pytest.raises(CompressionError, match=r"most\[0\] is 5, and the least safe dim .* is \d+"):
        gacprof.align([107], [1.0], [Q], cliff_map, most=[5])


def test_arrays_of_whole_floats_and_of_token_counts_are_read(cliff_map):
    np = pytest.importorskip("numpy")
    plain = gacprof.align([107], [CURVE], [Q], cliff_map, tokens=[1])
    arrays = (np.array([107.0]), np.array([CURVE]), np.array([Q]))
    assert gacprof.align(*arrays, cliff_map, tokens=np.array([1])) == plain


def test_no_dim_beyond_the_end_of_its_curve_is_chosen(cliff_map):
    (found,) = gacprof.align([107], [CURVE[:110]], [Q], cliff_map, 10**9)
    assert found == 104


def test_a_budget_that_nothing_fits_names_the_nearest(cliff_map):
    with pytest.raises(InfeasibleBudget, match="the nearest budget is 786,432"):
        gacprof.align([107], [1.0], [Q], cliff_map, 5)


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        (([], [], []), "no dims"),
        (([5], [1.0, 2.0], [Q]), "1 dims and 2 scores"),
        (([0], [1.0], [Q]), "positive whole"),
        (([5], [-1.0], [Q]), "the score of dim 0"),
        (([5], [float("nan")], [Q]), "the score of dim 0"),
        (([5], [1.0], [8192]), "give uses"),
        (([5], [1.0], [(1, 2, 3)]), "no shape"),
        (([3000], [CURVE], [Q]), "knows no safe dim near it"),
        (([5000], [1.0], [Q]), r"beyond the full rank 4096 of a weight of shape \(4096, 4096\)"),
        (([59, 59], [CURVE, 1.0], [Q, Q]), "dim 1 is a number and that of dim 0 a curve"),
        (([59], [CURVE[:10]], [Q]), "ends at 9, before the 59"),
        (([5], [[0.0, 5.0, *[5.0] * 9]], [Q]), "the curve of dim 0 is 5.0 at 1: it is the share"),
        (([5], [[0.0, float("nan"), *[1.0] * 9]], [Q]), "the curve of dim 0 is nan at 1"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(cliff_map, arrays, match):
    with pytest.raises(CompressionError, match=match):
        gacprof.align(*arrays, cliff_map)


def test_a_shape_that_the_map_does_not_hold_names_the_sweep(cliff_map):
    with pytest.raises(GacprofError) as caught:
        gacprof.align([50], [1.0], [(333, 444)], cliff_map)
    assert "gacprof sweep --ranks 333x444" in getattr(caught.value, "command", str(caught.value))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"budget": float("nan")}, "the budget is nan"),
        ({"budget": float("inf")}, "the budget is inf"),
        ({"window": -0.1}, "the window is -0.1"),
        ({"window": float("nan")}, "the window is nan"),
        ({"tokens": []}, "no token counts"),
        ({"scores": [[]]}, "no number and no curve"),
        ({"scores": [[0.0, 1.0, 0.5]]}, "falls"),
        ({"scores": [[0.0, "x"]]}, "the curve of dim 0 is 'x' at 1"),
        ({"scores": ["abc"]}, "no number and no curve"),
        ({"dims": None}, "the dims are None"),
        ({"dims": 40}, "the dims are 40"),
        ({"costs": None}, "the costs are None"),
        ({"costs": ["ab"]}, "the cost of dim 0 is 'ab', no shape"),
        ({"costs": [(float("nan"), 64)]}, "no shape"),
        ({"costs": [None]}, "no shape"),
        ({"most": [float("nan")]}, r"most\[0\] is nan"),
        ({"most": ["a"]}, r"most\[0\] is 'a'"),
    ],
)
def test_what_is_no_number_is_refused_in_one_line(asked, message):
    from gacprof.core.errors import CompressionError

    given = {"dims": [40], "scores": [1.0], "costs": [(64, 64)], "cliff_map": "a100-published"}
    with pytest.raises(CompressionError, match=message) as refusal:
        gacprof.align(**(given | asked))
    assert "\n" not in str(refusal.value)
