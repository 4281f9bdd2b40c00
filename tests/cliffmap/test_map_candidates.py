"""Candidates: on both sides, by window, by count; for one dim of several operators; for maps."""

from __future__ import annotations

import json
import random
from math import exp, inf, log

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from planted_blocks import linear, numbered, planted

import gacprof
from gacprof.cliffmap import CliffMap, MapLookupError, Use
from gacprof.cliffmap.build import build_map
from gacprof.cliffmap.curves import Axis, Measured, make_curve
from gacprof.cliffmap.intersect import intersect
from gacprof.cliffmap.schema import MapFile
from gacprof.cliffmap.source import Asked, Product, Side
from gacprof.core.errors import MapError
from gacprof.core.points import Environment

DEVICE = Environment("recorded", "planted", "none")


def dims(candidates):
    return [c.d for c in candidates]


def pair(latency_k, latency_n, name="planted"):
    """A rank: K of the second product and N of the first, at a layer of 1024 × 2048."""

    dims = range(96, 161)
    second = planted(linear("K", dims, M=8, N=2048), "K", latency_k)
    first = planted(linear("N", dims, M=8, K=1024), "N", latency_n)
    return build_map(numbered(second, first), DEVICE, name=name)


USES = [
    Use("linear", {"M": 8, "N": 2048}, "K", "float16"),
    Use("linear", {"M": 8, "K": 1024, "N": 107}, "N", "float16"),
]


def test_a_rank_is_judged_on_both_products_together():
    """K wants multiples of 8 and N, where far more time goes, wants multiples of 12."""
    m = pair(
        lambda d: 10.0 if d % 8 == 0 else 20.0,
        lambda d: 100.0 if d % 12 == 0 else 150.0,
    )
    assert dims(m.candidates("linear", axis="K", near=107, below=1, above=1)) == [104, 112]
    assert dims(m.joint_candidates(USES, 107, below=1, above=1)) == [96, 120]
    (best,) = m.joint_candidates(USES, 120, count=1)
    assert (best.d, best.latency_us, best.on_frontier) == (120, 110.0, False)


def test_weights_say_how_often_each_use_runs():
    m = pair(lambda d: 10.0 if d % 8 == 0 else 12.0, lambda d: 5.0 if d % 12 == 0 else 7.5)
    heavy = [USES[0], Use("linear", USES[1].dims, "N", "float16", weight=0.001)]
    assert {104, 112} <= set(dims(m.joint_candidates(heavy, 107)))


def test_joint_candidates_only_where_every_use_can_be_told():
    m = pair(lambda d: 10.0, lambda d: 10.0)
    elsewhere = Use("linear", {"M": 8, "N": 999}, "K", "float16")
    with pytest.raises(MapLookupError, match="no size at which all 2 uses"):
        m.joint_candidates([USES[0], elsewhere], 107)
    with pytest.raises(MapLookupError, match="no curve of linear over M"):
        m.joint_candidates([Use("linear", {"N": 1, "K": 1}, "M", "float16")], 107)
    with pytest.raises(MapError, match="no uses"):
        m.joint_candidates([], 107)
    for weight in (0, float("nan")):
        with pytest.raises(MapError, match="above 0"):
            Use("linear", {"M": 512, "K": 4096}, "N", "float16", weight=weight)


def test_an_intersection_is_safe_on_every_map():
    a = pair(lambda d: 10.0 if d % 8 == 0 else 12.0, lambda d: 1.0, "a")
    b = pair(lambda d: 10.0 if d % 12 == 0 else 13.0, lambda d: 1.0, "b")
    both = intersect([a, b], "linear", "K")
    assert both.safe == [96, 120, 144, 160]
    assert [d.d for d in both.choose(107, below=2, above=2)] == [96, 120, 144]
    worst = {d.d: d for d in both.dims}[104]
    assert worst.penalties == {"a": 0.0, "b": pytest.approx(0.3)}
    assert worst.verdict == "misaligned" and not worst.safe
    assert json.dumps(both.as_dict())


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda m: m.penalty("atention", "head_dim", 107), "unknown operator 'atention': the map"),
        (lambda m: m.penalty("attention", "head_dims", 107), "'head_dims' is no dim of attention"),
        (lambda m: m.penalty("attention", "head_dim", "107"), "head_dim must be a whole number"),
        (lambda m: m.penalty("attention", "head_dim", -5), "1 or more, not -5"),
        (lambda m: m.latency("attention", {"head_dim": "x"}, "float16"), "not 'x'"),
        (lambda m: near_107(m, below=-1), "below must be a whole number, 0 or more, not -1"),
        (lambda m: near_107(m, count=2.0), "count must be"),
        (lambda m: near_107(m, window=-3), "window must be a whole number"),
        (lambda m: near_107(m, window=(160, 96)), "its first dim 160 is above its last 96"),
        (lambda m: near_107(m, window=(1, 2, 3)), "a half-width or"),
    ],
)
def test_a_question_that_makes_no_sense_is_no_miss(a100, ask, message):
    with pytest.raises(MapError) as error:
        ask(a100)
    assert message in str(error.value) and not isinstance(error.value, MapLookupError)


def near_107(cliff_map, **limits):
    return cliff_map.candidates("attention", axis="head_dim", near=107, **limits)


def test_what_is_undecided_on_one_map_is_not_safe_on_both():
    sure = pair(lambda d: 10.0, lambda d: 1.0, "sure")
    dims = range(96, 161)
    few = planted(linear("K", dims, M=8, N=2048), "K", lambda d: 10.0, count=4, spread=0.05)
    both = intersect([sure, build_map(few, DEVICE, name="unsure")], "linear", "K")
    assert both.dims[0].verdict == "undecided" and 96 not in both.safe


def test_intersections_that_make_no_sense_are_refused(a100):
    for maps in ([a100], [a100, a100]):
        with pytest.raises(MapError, match="two maps of different names"):
            intersect(maps, "linear", "K")
    other = pair(lambda d: 1.0, lambda d: 1.0)
    with pytest.raises(MapLookupError, match="no curve"):
        intersect([a100, other], "attention", "head_dim")
    far = planted(linear("K", [8, 16], M=8, N=2048), "K", lambda d: 1.0)
    with pytest.raises(MapError, match="no K of linear in common"):
        intersect([other, build_map(far, DEVICE, name="far")], "linear", "K")
    both = intersect([a100, CliffMap.load("h100-published")], "attention", "head_dim")
    with pytest.raises(MapError, match="in common from 64 to 256, not near 9999"):
        both.choose(9999)


def test_a_sum_of_uses_is_as_unsure_as_its_parts():
    """The error of a sum: of the part where the time goes, and none where both are sure."""
    dims = range(96, 161)

    def made(spread):
        second = planted(linear("K", dims, M=8, N=2048), "K", lambda d: 10.0)
        first = planted(
            linear("N", dims, M=8, K=1024), "N", lambda d: 100.0, count=8, spread=spread
        )
        return build_map(numbered(second, first), DEVICE, name="sums")

    sure, unsure = (made(s).joint_candidates(USES, 96, safe_only=False)[0] for s in (0.0, 0.05))
    assert (sure.verdict, unsure.verdict) == ("safe", "undecided")
    assert unsure.penalty_high > 0.02 > sure.penalty_high


def test_nothing_is_safe_by_extrapolation(a100):
    """The curves at M = 512 begin at 4000: what lies below was not measured there."""
    uses = [
        Use("linear", {"M": m, other: 4096}, axis, "float16")
        for m in (1, 512)
        for axis, other in (("N", "K"), ("K", "N"))
    ]
    assert min(c.d for c in a100.judge_jointly(uses)) >= 4000
    shape, wanted = (4096, 4096), {"tokens": [1, 512], "dtype": "float16"}
    found = gacprof.safe_ranks(shape, "a100-published", within=(4008, 4096), **wanted)
    assert found and min(c.d for c in found) >= 4000
    # A rank from 2049 on saves nothing: it is offered only where it is asked for.
    assert gacprof.safe_ranks(shape, "a100-published", **wanted) == []


def test_where_several_curves_answer_it_is_asked_which(a100):
    """Near 4050 the map has N at one token and at 512: they do not say the same."""
    with pytest.raises(MapError, match=r"several M: 1, 512; say which \(--fixed M=1\)"):
        a100.candidates("linear", axis="N", near=4050)
    assert a100.candidates("linear", axis="N", near=4050, M=512, below=1)


def test_an_edge_of_a_curve_is_never_the_least_worst(a100):
    maps = (a100, CliffMap.load("h100-published"))
    both = intersect(maps, "linear", "N", M=512, near=4050)
    last = both.dims[-1].d
    assert last > 4096 and all(dim.penalty_high is not None for dim in both.least_worst(4))
    assert {dim.d % 8 for dim in both.least_worst(4)} == {0}


def test_maps_are_named_and_dtypes_are_torch_s_where_a_compressor_has_these(a100):
    import torch

    near = {"axis": "head_dim", "near": 107, "below": 1, "above": 1}
    assert a100.candidates("attention", dtype=torch.float16, **near) == a100.candidates(
        "attention", dtype="fp16", **near
    )
    both = intersect(["a100-published", "h100-published"], "attention", "head_dim")
    assert set(both.curves) == {"a100-published", "h100-published"}
    weight = torch.nn.Parameter(torch.empty(64, 48, dtype=torch.bfloat16), requires_grad=False)
    table = gacprof.rule_table("h100")
    assert [c.d for c in gacprof.safe_ranks(weight, table, safe_only=False)][7::8] == [8, 16, 24]


def test_where_nothing_is_safe_on_all_the_least_worst_case_is_offered():
    a = pair(lambda d: 10.0 if d in (96, 160) else 12.0, lambda d: 1.0, "a")
    b = pair(lambda d: 10.0 if d == 160 else 15.0 if d > 100 else 14.0, lambda d: 1.0, "b")
    both = intersect([a, b], "linear", "K")
    assert both.safe == [160]
    offered = both.choose(107, below=2, above=2)
    assert [(d.d, d.safe) for d in offered] == [(100, False), (160, True)]


AXIS = Axis("linear", "N", {"M": 256, "K": 1024}, "float32", {"bias": False}, "recorded")


def of_few_blocks(seed, step):
    """Dims whose errors come from few blocks, some unknown; multiples of ``step`` are faster."""
    draw = random.Random(seed)
    return [
        Measured(
            d,
            100 * (1.2 if d % step else 1.0) * exp(draw.gauss(0, 0.01)),
            inf if draw.random() < 0.05 else draw.uniform(0.0005, 0.01),
            degrees=draw.choice([inf, draw.uniform(2, 40)]),
        )
        for d in range(96, 145)
        if draw.random() < 0.95
    ]


@given(st.integers(0, 10**6), st.sampled_from([1, 8]))
def test_one_product_is_judged_as_its_curve_is(seed, step):
    """What the map's file holds of few blocks makes the verdicts that their judge made."""
    curve = make_curve(AXIS, of_few_blocks(seed, step))
    low, high = curve.points.penalty_low, curve.points.penalty_high
    assume(all(abs(p - curve.tolerance) > 1e-4 for p in [*low, *high] if p is not None))
    use = Use("linear", AXIS.fixed, "N", AXIS.dtype, AXIS.flags)
    found = map_of(curve).judge_jointly([use])
    assert [one.verdict for one in found] == curve.verdicts
    assert [one.penalty_low for one in found] == pytest.approx(low, abs=1e-4)
    for one, bound in zip(found, high, strict=True):
        assert one.penalty_high == (bound if bound is None else pytest.approx(bound, abs=1e-3))
    assert [one.d for one in found if one.on_frontier] == curve.frontier


def test_where_curves_cross_each_product_is_judged_on_its_own():
    """A rank's curve over N meets those over K: one point, measured beside other dims on each."""
    m, judged = CliffMap.load("cpu-example"), 0
    for curve in m.select("linear", flags={"bias": False}):
        use = Use("linear", curve.fixed, curve.axis, curve.dtype, curve.flags)
        assert [one.verdict for one in m.judge_jointly([use])] == curve.verdicts
        other = "K" if curve.axis == "N" else "N"
        sides = {curve.axis: Side(times=1), other: Side(curve.fixed[other])}
        tokens = {curve.fixed["M"]: 1.0}
        view = m.view(Asked("one product", frozenset(), curve.dtype, tokens))
        found = view.judge([Product(**sides)], curve.points.d, None)
        assert [one.verdict for one in found] == curve.verdicts
        judged += len(found)
    assert judged > 600


def map_of(curve):
    made = pair(lambda d: 10.0, lambda d: 10.0).file
    return CliffMap(made.model_copy(update={"curves": [curve]}))


def test_a_map_that_does_not_tell_degrees_is_read_as_if_they_were_infinite():
    data = CliffMap.load("cpu-example").as_dict()
    (first, *_) = data["curves"]
    kept = [d for d in first["points"].pop("degrees") if d]
    data["curves"] = [first]
    old = CliffMap(MapFile.model_validate(data))
    p, dims = old.curves[0].points, {**first["fixed"], first["axis"]: first["points"]["d"][0]}
    found = old.latency(first["operator"], dims, first["dtype"], first["flags"])
    assert kept and found.degrees == inf
    assert found.error == pytest.approx(log(p.high_us[0] / p.low_us[0]) / 2 / 1.96, rel=1e-4)
