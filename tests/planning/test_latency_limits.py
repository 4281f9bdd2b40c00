"""Limits on time by workload: what is written, what it is relative to, and that it holds."""

import re
from itertools import product
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest
from checkpoint_making import checkpoint
from hypothesis import given
from hypothesis import strategies as st
from planted import TOKENS, planted_map_of
from safetensors.numpy import save_file

from gacprof.checkpoint import scan
from gacprof.checkpoint.inventory import Gemm
from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.estimate import NOTHING, Estimate
from gacprof.core.errors import PlanError
from gacprof.core.texts import latency_limits
from gacprof.diagnosing.predict import Predictor
from gacprof.planning import Constraints, PlanRequest, plan
from gacprof.planning.costs import footprint
from gacprof.planning.limits import change, rounded
from gacprof.planning.making import refuse_unreachable
from gacprof.planning.problem import Compression
from gacprof.solver import InfeasibleBudget, solve


def at(inventory, cliff_map, tokens):
    return Predictor(cliff_map, inventory, {tokens: 1.0})


def only_multiples_of_8(whole):
    curves = []
    for curve in whole.file.curves:
        held = [i for i, d in enumerate(curve.points.d) if d % 8 == 0]
        lists = {
            name: [values[i] for i in held]
            for name, values in curve.points
            if isinstance(values, list) and values
        }
        points = curve.points.model_copy(update=lists)
        curves.append(curve.model_copy(update={"points": points, "tiers": []}))
    return CliffMap(whole.file.model_copy(update={"curves": curves}))


def time_of(made, predictor):
    return predictor.weights(made.changes).latency_us


@pytest.mark.parametrize(
    ("text", "tokens", "amount", "of"),
    [
        ("prefill:256=-5%", 256, -0.05, "given"),
        ("decode=0%", 1, 0.0, "given"),
        ("decode:8=own+2.5%", 8, 0.025, "own"),
        ("decode=dense", 1, 0.0, "dense"),
        ("decode=900", 1, 900.0, None),
        ("decode=1.2ms", 1, 1200.0, None),
        ("900us", None, 900.0, None),
        ("dense-10%", None, -0.1, "dense"),
    ],
)
def test_a_limit_names_a_workload_and_a_time_or_a_change(text, tokens, amount, of):
    (found,) = latency_limits(text)
    assert (found.tokens, found.of) == (tokens, of)
    assert found.amount == pytest.approx(amount)


@pytest.mark.parametrize(
    "text",
    ["", " ", "prefill=1", "prefill:0=5%", "decode", "decode=-100%", "decode=0", "decode=-3us",
     "chat=5%", "decode=nan", "decode=1%,decode=2%", "1,2", "decode=0%,", "=5%", "own5", 0, -1.0,
     float("nan"), float("inf"), True, [1]],
)  # fmt: skip
def test_what_is_no_limit_is_refused_in_one_line_that_shows_one(text):
    with pytest.raises(PlanError) as message:
        latency_limits(text)
    assert "\n" not in str(message.value) and "decode=" in str(message.value)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text):
    try:
        assert latency_limits(text)
    except PlanError as error:
        assert "\n" not in str(error)


def test_several_workloads_are_limited_at_once(asvd, planted_map):
    inventory = scan(asvd)
    free = plan(asvd, planted_map, tokens=TOKENS)
    decode, prefill = (at(inventory, planted_map, m) for m in (1, 64))
    text = (
        f"decode={0.999 * time_of(free, decode)}us,prefill:64={0.99 * time_of(free, prefill):.3f}us"
    )
    made = plan(asvd, planted_map, tokens=TOKENS, latency_limit_us=text)
    assert time_of(made, decode) <= 0.999 * time_of(free, decode) * (1 + 1e-9)
    assert time_of(made, prefill) <= 0.99 * time_of(free, prefill) * (1 + 1e-9)
    assert made.energy_kept < free.energy_kept


def test_a_change_is_against_the_model_as_it_is_or_the_uncompressed_one(asvd, planted_map):
    inventory = scan(asvd)
    prefill = at(inventory, planted_map, 64)
    own, dense = (
        prefill.weights({}).latency_us,
        prefill.gemms(Compression().products(prefill, "dense")).latency_us,
    )
    assert own != pytest.approx(dense, rel=0.02)
    for text, most in (("-8%", 0.92 * own), ("own-10%", 0.9 * own), ("dense-5%", 0.95 * dense)):
        made = plan(asvd, planted_map, tokens=TOKENS, latency_limit_us=f"prefill:64={text}")
        assert time_of(made, prefill) <= most * (1 + 1e-9)


def test_the_nearest_is_told_in_the_terms_of_the_limit_and_can_be_met(asvd, planted_map):
    limits = "decode=+50%,prefill:64=own-90%"
    with pytest.raises(InfeasibleBudget, match=r"within prefill:64=own-90%.* is .* %") as message:
        plan(asvd, planted_map, tokens=TOKENS, latency_limit_us=limits)
    change = str(message.value).rpartition("(")[2].partition(" %")[0]
    plan(asvd, planted_map, tokens=TOKENS, latency_limit_us=f"prefill:64=own{change}%")


def test_limits_that_nothing_is_known_of_and_baselines_that_are_none_say_so(asvd, planted_map):
    with pytest.raises(PlanError, match=r"300 tokens.*'prefill:300=-5%'") as message:
        plan(asvd, planted_map, tokens=TOKENS, latency_limit_us="prefill:300=-5%")
    assert f"sweep --for {asvd} --tokens 1,64,300'" in str(message.value)
    with pytest.raises(PlanError, match="rounded-8"):
        plan(asvd, planted_map, tokens=TOKENS, dominate="naive")


def test_limits_hold_where_the_sizes_as_they_are_were_not_measured(asvd):
    """A map of multiples of 8 alone: of the checkpoint's own products it knows nothing."""
    inventory = scan(asvd)
    some = only_multiples_of_8(planted_map_of(asvd))
    predictor = at(inventory, some, 64)
    assert predictor.weights({}).latency_us is None
    relative = PlanRequest(asvd, some, tokens=TOKENS, latency_limit_us="prefill:64=own-5%")
    with pytest.raises(PlanError, match="its own sizes, whose time is not known"):
        refuse_unreachable(relative)
    free = plan(asvd, some, tokens=TOKENS)
    made = plan(
        asvd, some, tokens=TOKENS,
        latency_limit_us=f"prefill:64={0.98 * time_of(free, predictor)}us",
    )  # fmt: skip
    assert time_of(made, predictor) <= 0.98 * time_of(free, predictor) * (1 + 1e-9)


def test_a_plan_that_dominates_rounding_is_no_slower_no_larger_and_better(asvd, planted_map):
    inventory = scan(asvd)
    baseline = rounded(inventory.dims, 16)
    made = plan(inventory, planted_map, tokens=TOKENS, dominate="rounded-16")
    for tokens in TOKENS:
        predictor = at(inventory, planted_map, tokens)
        assert time_of(made, predictor) <= predictor.weights(baseline).latency_us * (1 + 1e-9)
    assert made.budget.checkpoint_after <= footprint(inventory, baseline).parameters
    (line,) = (note for note in made.certificate.notes if note.startswith("rounded-"))
    assert f": {footprint(inventory, baseline).parameters:,} parameters" in line
    assert f"the plan: {made.budget.checkpoint_after:,} parameters" in line
    kept = {c.dim: c.energy_kept for c in made.choices}
    held = Constraints(pinned=baseline, fuse=False)
    down = plan(inventory, planted_map, tokens=TOKENS, constraints=held)
    assert sum(kept.values()) >= sum(c.energy_kept for c in down.choices) - 1e-9


def cliffs(m, n, k):
    """Decode likes multiples of 8, prefill those of 24: what serves one may cost the other."""
    if m == 1:
        return 1 + n * k / 1e4 * (1.4 if n % 8 or k % 8 else 1)
    return 3 + m * -(-n // 24) * 24 * -(-k // 24) * 24 / 2e6


@pytest.mark.parametrize("asked", [{"dominate": "rounded-8"}, {"latency_limit_us": "decode=-20%"}])
def test_within_limits_on_cliffs_no_choice_keeps_more_of_all_on_offer(tmp_path, asked):
    """By the device's own times, every combination of the sizes on offer."""
    at, hidden = "model.layers.0.self_attn.{}_proj.{}Linear.weight", 192
    shapes = {}
    for part, rank in {"q": 89, "k": 93, "v": 45}.items():
        shapes |= {at.format(part, "B"): (rank, hidden), at.format(part, "A"): (hidden, rank)}
    source = checkpoint(tmp_path / "source", shapes, {})
    draw = np.random.default_rng(0)
    held = {name: draw.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    save_file(held, source / "model.safetensors")
    inventory = scan(source)

    def device(point):
        return cliffs(*(point.dim[axis] for axis in "MNK"))

    swept = planted_map_of(inventory, latency=device)
    made = plan(inventory, swept, tokens=TOKENS, **asked)

    def time(m, rank):
        if rank is None:
            return cliffs(m, hidden, hidden)
        return cliffs(m, rank, hidden) + cliffs(m, hidden, rank)

    def takes(ranks):
        parameters = sum(2 * hidden * r if r else hidden**2 for r in ranks)
        return parameters, *(sum(time(m, rank) for rank in ranks) for m in (1, 64))

    if "dominate" in asked:
        most = takes([d.size // 8 * 8 for d in inventory.dims])
    else:
        most = (inf, 0.8 * takes([d.size for d in inventory.dims])[1], inf)
    spectra = [
        np.linalg.svd(held[at.format(p, "A")] @ held[at.format(p, "B")], compute_uv=False) ** 2
        for p in "qkv"
    ]

    def kept(ranks):
        pairs = zip(spectra, ranks, strict=True)
        return sum(s[:rank].sum() / s.sum() for s, rank in pairs)

    def fits(ranks):
        return all(a <= b * (1 + 1e-6) for a, b in zip(takes(ranks), most, strict=True))

    chosen = [choice.after for choice in made.choices]
    limited = (1, 64) if "dominate" in asked else (1,)
    offered = [  # no pair that is slower than its dense product wherever time is limited
        [r for r in c.candidates if any(time(m, r) <= time(m, None) for m in limited)] + [None]
        for c in made.choices
    ]
    assert fits(chosen) and all(len(each) > 1 for each in offered)
    assert kept(chosen) >= max(map(kept, filter(fits, product(*offered)))) - 1e-5


def test_a_pair_slower_than_its_dense_product_is_never_chosen_under_a_limit(asvd, planted_map):
    """A launch is 2 µs of the planted device: at one token a pair is slower than the dense product
    whatever its rank."""
    inventory = scan(asvd)
    decode = at(inventory, planted_map, 1)
    made = plan(asvd, planted_map, tokens=TOKENS, latency_limit_us="decode=own")
    for choice in made.choices:
        if choice.kind == "rank" and choice.after is not None and choice.fusable:
            dim = inventory.dim(choice.dim)
            (module,) = inventory.modules_of(dim.name)
            assert decode.dim(dim, choice.after).latency_us <= decode.dense(module).latency_us
    assert any(c.after is None for c in made.choices)


def test_a_padded_pair_that_is_slower_than_its_dense_product_is_not_chosen_either(tmp_path):
    """At rank 100 the pair is faster than the dense product; at 108, which is asked for, slower."""
    q = "model.layers.0.self_attn.q_proj"
    shapes = {f"{q}.BLinear.weight": (100, 256), f"{q}.ALinear.weight": (256, 100)}
    source = checkpoint(tmp_path / "source", shapes, {"truncation_ranks": {q: 100}})

    def latency(point):
        m, n, k = (point.dim[axis] for axis in "MNK")
        return 71.0 + m * n * k / 1e4 * (1.4 if n % 4 or k % 4 else 1.0)

    cliff_map = planted_map_of(source, {64: 1.0}, latency, dtype="float16")
    asked = {"tokens": [64], "constraints": Constraints(least={"*": 108}), "objective": "pad"}
    assert plan(source, cliff_map, **asked).choices[0].after == 108
    (choice,) = plan(source, cliff_map, latency_limit_us="own+20%", **asked).choices
    assert choice.after is None


class Priced:
    """A source of times that are off by 20 % each, by size, and all by one factor."""

    ranks = SimpleNamespace(key=lambda gemm: ())

    def gemms(self, gemms):
        each = (Estimate(10.0 * g.N, own=(8.0 * g.N, 12.0 * g.N), shared=0.5) for g in gemms)
        return sum(each, NOTHING)


def products(sizes):
    return [Gemm(f"weight.{i}", n, 64, False) for i, n in enumerate(sizes)]


sizes = st.lists(st.integers(1, 6), min_size=1, max_size=6)


@given(sizes, sizes, st.lists(st.floats(0.8, 1.2), min_size=7, max_size=7), st.floats(0.1, 10))
def test_whatever_is_right_within_the_bounds_of_each_size_is_within_those_of_the_change(
    before, after, errors, common
):
    right = [sum(common * 10 * n * errors[n] for n in each) for each in (before, after)]
    found = change(Priced(), products(before), products(after))
    assert found.low - 1e-9 <= right[1] / right[0] - 1 <= found.high + 1e-9


def test_the_nearest_budget_of_the_fastest_plan_is_within_its_limit_on_time(asvd, planted_map):
    """The objective is the limit's own amount: it holds for the nearest budget all the same."""
    asked = {"tokens": TOKENS, "objective": "latency", "quality_floor": 0.0}
    limit = 0.98 * plan(asvd, planted_map, **asked, budget=0.75).predicted_after_us
    with pytest.raises(InfeasibleBudget, match="nearest budget") as message:
        plan(asvd, planted_map, **asked, budget=0.01, latency_limit_us=limit)
    share = float(re.search(r"met is ([\d.]+) of the dense size", str(message.value))[1])
    plan(asvd, planted_map, **asked, budget=share, latency_limit_us=limit)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4),
        min_size=1, max_size=4,
    ),
    st.integers(0, 20),
    st.integers(0, 20),
)  # fmt: skip
def test_raising_a_limit_to_the_nearest_leads_to_a_choice(rows, first, second):
    values = [[float(i) for i, _ in enumerate(row)] for row in rows]
    takes = [[[pair[i] for pair in row] for row in rows] for i in range(2)]
    most = [first, second]
    for _ in range(3):
        try:
            found = solve(values, list(zip(takes, most, strict=True)))
        except InfeasibleBudget as error:
            assert error.nearest > most[error.resource]
            most[error.resource] = int(error.nearest)
        else:
            assert all(t <= m for t, m in zip(found.takes, most, strict=True))
            return
    raise AssertionError(f"nothing meets {most}, raised twice to the nearest")


def test_limits_that_exclude_each_other_are_named_and_no_budget_is(asvd, planted_map):
    """At the fastest sizes there are, no budget is near: they are slower than is asked for."""
    with pytest.raises(InfeasibleBudget) as refusal:
        plan(asvd, planted_map, tokens=TOKENS, budget=0.3, latency_limit_us="prefill:64=own-90%")
    assert "budget" not in str(refusal.value)
    assert "; without other limits the nearest is " in str(refusal.value)
