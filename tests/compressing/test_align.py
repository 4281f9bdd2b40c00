"""``align``: requested sizes in, aligned dims within the budget out, for anybody's compressor."""

import itertools

import pytest
from published_dims import ranks_map, rows_of

import gacprof
from gacprof.cliffmap import Use
from gacprof.core.errors import GacprofError

Q, K = (4096, 4096), (1024, 4096)
CURVE = [r / 4096 for r in range(4097)]
SHAPES = {"q": Q, "k": K, "v": K, "o": Q}


@pytest.fixture(scope="module")
def cliff_map():
    return ranks_map(208)


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
        assert spent(found, costs) <= spent(dims, costs)


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


def test_arrays_of_whole_floats_and_of_token_counts_are_read(cliff_map):
    np = pytest.importorskip("numpy")
    plain = gacprof.align([107], [CURVE], [Q], cliff_map, tokens=[1])
    arrays = (np.array([107.0]), np.array([CURVE]), np.array([Q]))
    assert gacprof.align(*arrays, cliff_map, tokens=np.array([1])) == plain


def test_a_bound_is_kept_and_no_dim_beyond_the_end_of_its_curve_is_chosen(cliff_map):
    assert gacprof.align([107], [1.0], [Q], cliff_map, 10**9, most=[104]) == [104]
    assert gacprof.align([107], [CURVE[:110]], [Q], cliff_map, 10**9) == [104]


NAN, FIVE = float("nan"), {"dims": [5], "costs": [Q]}
REFUSED = [
    ({"dims": [], "scores": [], "costs": []}, "no dims"),
    (FIVE | {"scores": [1.0, 2.0]}, "1 dims and 2 scores"),
    ({"dims": [0]}, "positive whole"),
    ({"scores": [-1.0]}, "the score of dim 0"),
    ({"scores": [NAN]}, "the score of dim 0"),
    ({"costs": [8192]}, "give uses"),
    ({"costs": [(1, 2, 3)]}, "no shape"),
    ({"costs": ["ab"]}, "the cost of dim 0 is 'ab', no shape"),
    ({"costs": [(NAN, 64)]}, "no shape"),
    ({"costs": None}, "the costs are None"),
    ({"cliff_map": None}, r"cliff_map is None: give a map or its file, or gacprof.rule_table\('h1"),
    ({"uses": [5]}, r"uses\[0\] is 5: give the products of dim 0"),
    ({"uses": [[5]]}, r"uses\[0\] is \[5\]"),
    ({"dims": None}, "the dims are None"),
    ({"dims": [3000], "scores": [CURVE]}, "knows no safe dim near it"),
    ({"dims": [5000]}, r"beyond the full rank 4096 .* \(4096, 4096\)"),
    ({"dims": [59, 59], "scores": [CURVE, 1.0], "costs": [Q, Q]}, "dim 1 is a number and that of"),
    ({"dims": [59], "scores": [CURVE[:10]]}, "ends at 9, before the 59"),
    (FIVE | {"scores": [[0.0, 5.0, *[5.0] * 9]]}, "the curve of dim 0 is 5.0 at 1: it is the sh"),
    (FIVE | {"scores": [[0.0, NAN, *[1.0] * 9]]}, "the curve of dim 0 is nan at 1"),
    ({"scores": [[]]}, "no number and no curve"),
    ({"scores": [[0.0, 1.0, 0.5]]}, "falls"),
    ({"scores": ["abc"]}, "no number and no curve"),
    ({"budget": NAN}, "the budget is nan"),
    ({"budget": 0.9}, "the budget is 0.9: it must be a number of parameters"),
    ({"budget": 5}, "the nearest budget is 786,432"),
    ({"window": -0.1}, "the window is -0.1"),
    ({"tokens": []}, "no token counts"),
    ({"most": [NAN]}, r"most\[0\] is nan"),
    ({"most": [5]}, r"most\[0\] is 5, and the least safe dim .* is \d+"),
    ({"costs": [(333, 444)]}, "gacprof sweep --ranks 333x444"),
]


@pytest.mark.parametrize(("asked", "message"), REFUSED)
def test_what_cannot_be_aligned_is_refused_in_one_line(cliff_map, asked, message):
    given = {"dims": [107], "scores": [1.0], "costs": [Q], "cliff_map": cliff_map}
    with pytest.raises(GacprofError, match=message) as refusal:
        gacprof.align(**(given | asked))
    assert "\n" not in str(refusal.value)
