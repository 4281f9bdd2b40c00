"""Every way to size a checkpoint, side by side."""

import pytest
from planted import TOKENS

from gacprof.checkpoint import scan
from gacprof.core.errors import GacprofError
from gacprof.planning import Constraints, plan
from gacprof.planning.pareto import pareto


@pytest.fixture(scope="module")
def found(asvd, planted_map):
    return pareto(scan(asvd), planted_map, tokens=TOKENS, budgets=6)


def ours(found):
    return [v for v in found.variants if v.method.startswith("gacprof")]


def test_every_baseline_is_there(found):
    methods = [v.method for v in found.variants]
    ways = [f"{way} to {multiple}" for multiple in (8, 64) for way in ("up", "down", "nearest")]
    assert {"as it is", "paper's DP, today's budget", *ways} <= set(methods)
    down = {v.method: v for v in found.variants}["down to 64"]
    assert down.note == "sizes below 64 grow to 64" and "every budget" not in str(found.notes)
    assert sum(m.endswith("today's budget") and m.startswith("gacprof") for m in methods) == 1


def test_no_rounding_keeps_more_in_fewer_parameters_than_ours_today(found, asvd):
    today = next(v for v in ours(found) if v.method.endswith("today's budget"))
    assert today.parameters <= scan(asvd).parameters and today.aligned == 1.0 and today.proved
    for other in found.variants:
        if other.aligned == 1.0 and other.parameters <= today.parameters and other.energy_kept:
            assert other.energy_kept <= today.energy_kept + 1e-12


def test_ours_end_where_a_budget_no_longer_binds(found, asvd, planted_map):
    free = plan(scan(asvd), planted_map, tokens=TOKENS)
    assert max(v.parameters for v in ours(found)) == free.budget.checkpoint_after
    assert len({v.parameters for v in ours(found)}) == len(ours(found)) >= 5


def test_constraints_and_limits_bind_ours(asvd, planted_map):
    inventory = scan(asvd)

    def made(budgets, **asked):
        return pareto(inventory, planted_map, tokens=TOKENS, **asked, budgets=budgets)

    pinned = made(3, constraints=Constraints(pinned={"*:rank": "keep"}))
    assert {v.parameters for v in ours(pinned)} == {inventory.parameters}
    assert "every budget that can be met gives the same plan" in pinned.notes
    floor = made(5, quality_floor=0.97)
    assert all(v.energy_kept >= 0.97 for v in ours(floor))
    limit = ours(floor)[0].latency_us
    fast = made(5, latency_limit_us=limit * 1.001)
    assert all(v.latency_us <= limit * 1.001 for v in ours(fast))


def test_pairs_are_slower_than_the_dense_weight_only_where_a_plan_of_that_budget_has_such(
    asvd, planted_map
):
    inventory, limit = scan(asvd), {"tokens": TOKENS, "latency_limit_us": "decode=dense+99%"}
    slower = {True: 0, False: 0}
    for variant in ours(pareto(inventory, planted_map, **limit, budgets=4)):
        made = plan(inventory, planted_map, **limit, budget_parameters=variant.parameters)
        noted = "dense products in their place" in variant.note
        assert noted == any("dense products in their place" in each for each in made.warnings)
        assert made.energy_kept == pytest.approx(variant.energy_kept)
        slower[noted] += 1
    assert slower[True] and slower[False]


@pytest.mark.parametrize(
    "asked",
    [{"budgets": 0}, {"objective": "nonesuch"}, {"scores": {"x": 1.0}}, {"quality_floor": 2.0},
     {"budget": 0.5}, {"latency_limit_us": 0.001}],
)  # fmt: skip
def test_impossible_requests_are_refused(asvd, planted_map, asked):
    with pytest.raises(GacprofError):
        pareto(scan(asvd), planted_map, tokens=TOKENS, **asked)
