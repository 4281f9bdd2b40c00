"""A plan moves dims onto safe sizes, within its budget, and says what it did."""

import json

import pytest
from planted import TOKENS

from gacprof.checkpoint import scan
from gacprof.core.errors import GacprofError, PlanError, SolverError
from gacprof.diagnosing import diagnose
from gacprof.evaluation import verify
from gacprof.planning import Constraints, Plan, plan
from gacprof.planning.costs import dense_parameters
from gacprof.planning.pareto import pareto
from gacprof.resizing import realign


def test_without_a_budget_everything_lands_on_a_safe_size_and_nothing_is_lost(asvd, planted_map):
    made = plan(asvd, planted_map, tokens=TOKENS)
    ranks = [c for c in made.choices if c.kind == "rank"]
    assert all(c.after >= c.before for c in made.choices)
    assert {c.after % 8 for c in ranks} == {0}
    assert all(c.after - c.before < 8 for c in ranks)  # the least padding that is safe
    assert made.predicted_after_us < made.predicted_before_us
    assert made.certificate.proved


def test_a_budget_is_kept_and_costs_energy(asvd, planted_map):
    free = plan(asvd, planted_map, tokens=TOKENS)
    limit = scan(asvd).parameters  # no larger than it is
    tight = plan(asvd, planted_map, tokens=TOKENS, budget_parameters=limit)
    assert tight.budget.used <= tight.budget.limit < free.budget.used
    assert any(c.action == "truncate" for c in tight.choices)
    assert tight.certificate.value < free.certificate.value
    assert any("cut" in warning for warning in tight.warnings)


def test_the_budget_as_a_share_is_of_the_dense_weights(asvd, planted_map):
    inventory = scan(asvd)
    made = plan(asvd, planted_map, tokens=TOKENS, budget=0.95)
    assert made.budget.limit == int(0.95 * dense_parameters(inventory))
    by_hand = sum(m.in_features * m.out_features for m in inventory.modules if m.dims)
    assert dense_parameters(inventory) == by_hand


def test_a_budget_that_nothing_meets_names_the_nearest_that_can_be_met(asvd, planted_map):
    with pytest.raises(SolverError, match="nearest") as message:
        plan(asvd, planted_map, tokens=TOKENS, budget=0.01)
    assert any(character.isdigit() for character in str(message.value))


@pytest.mark.parametrize("aim", ["pad", "energy", "gac", "latency"])
def test_every_objective_gives_a_valid_plan(asvd, planted_map, aim):
    limit = scan(asvd).parameters * 2
    made = plan(asvd, planted_map, tokens=TOKENS, objective=aim, budget_parameters=limit)
    assert made.budget.used <= made.budget.limit
    assert made.certificate.value <= made.certificate.bound + 1e-9
    for choice in made.choices:
        offered = [*choice.candidates, *([None] if choice.fusable else [])]
        assert not offered or choice.after in offered


def test_a_pair_is_multiplied_out_where_dense_is_faster_and_fits(asvd, planted_map, tmp_path):
    inventory = scan(asvd)
    made = plan(
        asvd, planted_map, tokens=TOKENS, objective="latency",
        budget_parameters=inventory.parameters * 2,
    )  # fmt: skip
    fused = [c for c in made.choices if c.action == "fuse"]
    assert fused and all(
        c.after is None and c.latency_after_us < c.latency_before_us for c in fused
    )
    realign(asvd, made, tmp_path / "out")
    after = scan(tmp_path / "out")
    assert after.parameters - inventory.parameters == made.budget.used - made.budget.before
    assert verify(asvd, tmp_path / "out").argmax_agreement > 0.95
    judged = diagnose(tmp_path / "out", planted_map, tokens=TOKENS)
    planned = {m.name for m in inventory.modules if m.dims}
    predicted = sum(w.latency_us for w in judged.weights if w.name in planned)
    assert predicted == pytest.approx(made.predicted_after_us)


def test_a_latency_limit_is_kept_at_the_least_loss(asvd, planted_map):
    free = plan(asvd, planted_map, tokens=TOKENS)
    limit = free.predicted_after_us * 0.97
    made = plan(asvd, planted_map, tokens=TOKENS, latency_limit_us=limit)
    assert made.predicted_after_us <= limit
    assert made.predicted_after_us < free.predicted_after_us
    with pytest.raises(SolverError, match="nearest"):
        plan(asvd, planted_map, tokens=TOKENS, latency_limit_us=1.0)


def test_a_quality_floor_holds_back_the_fastest(asvd, planted_map):
    fast = plan(asvd, planted_map, tokens=TOKENS, objective="latency", quality_floor=0.9)
    careful = plan(asvd, planted_map, tokens=TOKENS, objective="latency", quality_floor=1.0)
    assert not any(c.action == "truncate" for c in careful.choices)
    assert fast.certificate.value >= careful.certificate.value


def test_every_variant_is_judged_alike(asvd, planted_map):
    inventory = scan(asvd)
    found = pareto(inventory, planted_map, tokens=TOKENS, budgets=4)
    by_method = {v.method: v for v in found.variants}
    assert by_method["as it is"].parameters == inventory.parameters
    assert by_method["as it is"].energy_kept == 1.0
    up, down = by_method["up to 8"], by_method["down to 8"]
    assert up.parameters > inventory.parameters > down.parameters
    assert up.energy_kept == 1.0 > down.energy_kept
    assert up.latency_us < by_method["as it is"].latency_us
    assert any(v.method.startswith("paper's DP") for v in found.variants)
    ours = [v for v in found.variants if v.method.startswith("gacprof")]
    assert [v.parameters for v in ours] == sorted(v.parameters for v in ours)
    assert [v.energy_kept for v in ours] == sorted(v.energy_kept for v in ours)
    assert all(v.aligned >= by_method["as it is"].aligned for v in ours)


def test_the_papers_objective_warns_of_its_degeneracy(asvd, planted_map):
    made = plan(
        asvd, planted_map, tokens=TOKENS, objective="gac",
        budget_parameters=scan(asvd).parameters * 2,
    )  # fmt: skip
    assert any("Eq. 4" in warning for warning in made.warnings)


def test_dims_can_be_pinned_bounded_and_made_uniform(asvd, planted_map):
    inventory = scan(asvd)
    rank = next(d for d in inventory.dims if d.kind == "rank" and d.size > 40)
    target = -(-rank.size // 8) * 8 + 8
    made = plan(
        asvd, planted_map, tokens=TOKENS, constraints=Constraints(pinned={rank.name: target})
    )
    assert made.changes[rank.name] == target
    with pytest.raises(PlanError, match="no dim here"):
        plan(asvd, planted_map, tokens=TOKENS, constraints=Constraints(least={"nonesuch*": 8}))


def test_a_saved_plan_reads_back_and_a_changed_one_is_refused(asvd, planted_map, tmp_path):
    made = plan(asvd, planted_map, tokens=TOKENS)
    made.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == made
    data = json.loads((tmp_path / "plan.json").read_text())
    for change, message in (
        ({"schema": "gacprof.plan/9"}, "schema"),
        ({"surprise": 1}, "surprise"),
        ({"choices": [{"dim": "x"}]}, "choices"),
    ):
        (tmp_path / "bad.json").write_text(json.dumps(data | change))
        with pytest.raises(PlanError, match=message):
            Plan.load(tmp_path / "bad.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(PlanError, match="not a plan"):
        Plan.load(tmp_path / "bad.json")
    with pytest.raises(PlanError, match="cannot read"):
        Plan.load(tmp_path / "missing.json")


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "nonesuch"},
        {"budget": 0.0},
        {"budget": float("nan")},
        {"budget": 0.9, "budget_parameters": 10**9},
        {"budget_parameters": 1},
        {"tokens": {0: 1.0}},
        {"tokens": {1: float("inf")}},
        {"scores": {"x": 1.0}},
    ],
)
def test_impossible_requests_are_refused_in_one_line(asvd, planted_map, settings):
    with pytest.raises(GacprofError) as message:
        plan(asvd, planted_map, **({"tokens": TOKENS} | settings))
    assert "\n" not in str(message.value)
