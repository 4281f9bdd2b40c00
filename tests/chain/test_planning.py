"""A plan moves dims onto safe sizes, within its budget, and says what it did."""

import json

import pytest
from planted import TOKENS

from gacprof.checkpoint import scan
from gacprof.core.errors import PlanError
from gacprof.diagnosing import diagnose
from gacprof.evaluation import verify
from gacprof.planning import Plan, plan
from gacprof.planning.costs import dense_parameters
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


def test_a_quality_floor_holds_back_the_fastest(asvd, planted_map):
    fast = plan(asvd, planted_map, tokens=TOKENS, objective="latency", quality_floor=0.9)
    careful = plan(asvd, planted_map, tokens=TOKENS, objective="latency", quality_floor=1.0)
    assert not any(c.action == "truncate" for c in careful.choices)
    assert fast.certificate.value >= careful.certificate.value


def test_the_papers_objective_warns_of_its_degeneracy(asvd, planted_map):
    made = plan(
        asvd, planted_map, tokens=TOKENS, objective="gac",
        budget_parameters=scan(asvd).parameters * 2,
    )  # fmt: skip
    assert any("Eq. 4" in warning for warning in made.warnings)


def test_a_saved_plan_reads_back_and_a_changed_one_is_refused(asvd, planted_map, tmp_path):
    made = plan(asvd, planted_map, tokens=TOKENS)
    made.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == made
    data = json.loads((tmp_path / "plan.json").read_text())
    for change, message in (
        ({"schema": "gacprof.plan/9"}, "newer than the gacprof.plan/1 of this.*upgrade gacprof$"),
        ({"schema": "gacprof.plan/0", "surprise": 1}, "earlier gacprof; make it anew: gacprof pl"),
        ({"schema": "gacprof.rules/1"}, "its schema is 'gacprof.rules/1', not gacprof.plan/1"),
        ({"schema": None}, "'schema' is missing or no text"),
        ({"surprise": 1}, "surprise.*make it anew: gacprof plan MODEL"),
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
