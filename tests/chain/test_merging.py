"""A diagnosis names the factor pairs that would surely be faster as one dense product."""

import json
from math import exp, inf

import pytest
from planted import TOKENS, planted_map_of

from gacprof.checkpoint import scan
from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.estimate import Estimate
from gacprof.diagnosing import diagnose
from gacprof.diagnosing.merging import MERGING, merges, pairs_of
from gacprof.diagnosing.predict import Predictor
from gacprof.planning import plan
from gacprof.planning.costs import CoupledAxes, Tables
from gacprof.reporting.wording import diagnosed
from gacprof.stats.judge import quantile


def slow_calls(point):
    """A call costs more than all it computes, and odd sizes cost nothing: two products are slower
    than one whatever their sizes."""
    m, n, k = (point.dim[axis] for axis in "MNK")
    return 50.0 + m * n * k / 1e7


def fast_calls(point):
    """Work alone: a pair is faster wherever it has fewer operations."""
    m, n, k = (point.dim[axis] for axis in "MNK")
    return m * n * k / 1e5


@pytest.fixture(scope="module")
def slow(asvd):
    return planted_map_of(asvd, latency=slow_calls)


def test_pairs_slower_than_dense_are_counted_with_what_merging_saves(asvd, slow):
    found = diagnose(asvd, slow, tokens=TOKENS)
    pairs = list(pairs_of(scan(asvd)))
    assert [merge.tokens for merge in found.merges] == sorted(TOKENS)
    for merge in found.merges:
        assert merge.weights == tuple(pair.name for pair in pairs)
        assert (merge.pairs, len(merge.weights)) == (len(pairs), len(pairs))
        assert 0 < merge.low_us <= merge.saved_us <= merge.high_us
        by_hand = sum(
            sum(slow_calls(at(merge.tokens, gemm.N, gemm.K)) for gemm in pair.gemms)
            - slow_calls(at(merge.tokens, pair.out_features, pair.in_features))
            for pair in pairs
        )
        assert merge.saved_us == pytest.approx(by_hand, rel=0.01)
    assert json.loads(json.dumps(found.as_dict()))["merges"][0]["tokens"] == 1


def at(m, n, k):
    class Point:
        dim = {"M": m, "N": n, "K": k}  # noqa: RUF012

    return Point


def test_a_plan_merges_what_the_diagnosis_names(asvd, slow):
    found = diagnose(asvd, slow, tokens=TOKENS)
    made = plan(asvd, slow, tokens=TOKENS, objective="latency")
    merged = {c.dim.rpartition(":")[0] for c in made.choices if c.after is None}
    assert {name for merge in found.merges for name in merge.weights} == merged


def test_a_plan_says_what_merging_the_pairs_that_it_leaves_would_save(asvd, slow):
    made = plan(asvd, slow, tokens=TOKENS)
    inventory = scan(asvd)
    left = [c for c in made.choices if c.kind == "rank" and c.after is not None]
    (said,) = [warning for warning in made.warnings if warning.startswith(MERGING)]
    assert left and said.count(f"({len(left)} of {len(left)} pairs)") == len(TOKENS)
    assert "--objective latency" in said
    for merge in merges(Predictor(slow, inventory, TOKENS), made.changes):
        by_hand = 0.0
        for choice in left:
            (pair,) = inventory.modules_of(choice.dim)
            first, last = pair.gemms
            by_hand += slow_calls(at(merge.tokens, choice.after, first.K))
            by_hand += slow_calls(at(merge.tokens, last.N, choice.after))
            by_hand -= slow_calls(at(merge.tokens, pair.out_features, pair.in_features))
        assert merge.saved_us == pytest.approx(by_hand, rel=0.01)
    fastest = plan(asvd, slow, tokens=TOKENS, objective="latency")
    assert not any(w.startswith(MERGING) for w in fastest.warnings)


def test_a_plan_that_leaves_pairs_apart_says_what_merging_saves(asvd, slow):
    (said,) = [w for w in plan(asvd, slow, tokens=TOKENS, objective="pad").warnings if MERGING in w]
    assert f"of all products at 1 token ({len(list(pairs_of(scan(asvd))))} of " in said
    assert said in diagnosed(diagnose(asvd, slow, tokens=TOKENS).summary())[0].lower()
    merged = plan(asvd, slow, tokens=TOKENS, objective="latency")
    assert not any(MERGING in warning for warning in merged.warnings)


def test_nothing_is_claimed_where_pairs_are_faster_or_times_are_not_known(asvd):
    fast = planted_map_of(asvd, latency=fast_calls)
    pairs = [p for p in pairs_of(scan(asvd)) if sum(g.N * g.K for g in p.gemms) < dense_of(p)]
    named = {name for merge in diagnose(asvd, fast, tokens=TOKENS).merges for name in merge.weights}
    assert pairs and not named.intersection(pair.name for pair in pairs)
    assert diagnose(asvd, fast, tokens={77: 1.0}).merges == ()


def with_errors(cliff_map, error, degrees):
    """The map as if its errors came from so few blocks (None: as if they were known)."""
    half = quantile(0.025, degrees or inf) * error

    def bounded(curve):
        p = curve.points
        low, high = ([us * exp(side * half) for us in p.latency_us] for side in (-1, 1))
        columns = {"low_us": low, "high_us": high, "degrees": [degrees] * len(p.d)}
        return curve.model_copy(update={"points": p.model_copy(update=columns)})

    curves = [bounded(curve) for curve in cliff_map.file.curves]
    return CliffMap(cliff_map.file.model_copy(update={"curves": curves}))


def test_what_few_blocks_do_not_show_is_not_sure(asvd, slow):
    """A pair takes twice as long, 3.5 standard errors more: of few degrees of freedom that may
    be chance."""
    found = [
        list(merges(Predictor(with_errors(slow, 0.165, degrees), scan(asvd), TOKENS)))
        for degrees in (None, 3.0)
    ]
    assert found[0] and not found[1]


def test_a_plans_tables_add_up_times_errors_and_degrees_of_freedom_as_estimates_do(asvd, slow):
    inventory = scan(asvd)
    predictor = Predictor(with_errors(slow, 0.01, 3.0), inventory, TOKENS)
    pair = next(pairs_of(inventory))
    tables = Tables(predictor, CoupledAxes((), (pair,), ()), {}, lambda *_: None)
    us, variance, share = tables.times_by(predictor)
    whole = predictor.gemms(pair.gemms)
    assert (us, variance) == pytest.approx((whole.latency_us, whole.variance))
    assert variance**2 / share == pytest.approx(whole.degrees) and whole.degrees > 3


def test_a_sum_has_welch_s_degrees_of_freedom():
    one = Estimate(10.0, variance=1.0, degrees=4.0)
    assert (one + one.times(-1)).degrees == pytest.approx(8.0)
    assert one.times(3).degrees == (one + Estimate(90.0, variance=0.0)).degrees == 4.0
    assert one.half_width(0.025) == pytest.approx(2.776, abs=1e-3)
    assert one.interval.high == pytest.approx(10 + 2.132, abs=1e-3)


def dense_of(pair):
    return pair.out_features * pair.in_features
