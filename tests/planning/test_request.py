"""What the user holds fixed is held, or refused with the reason."""

import pytest
from planted import TOKENS

from gacprof.core.errors import GacprofError, PlanError
from gacprof.planning import Constraints, plan
from gacprof.planning.axes import grouped

ONE = "model.layers.0.self_attn.v_proj:rank"  # 76 of 256


@pytest.fixture
def made(asvd, planted_map):
    def make(settings=None, **constraints):
        return plan(
            asvd, planted_map, tokens=TOKENS, constraints=Constraints(**constraints),
            **(settings or {}),
        )  # fmt: skip

    return make


def test_a_pin_is_obeyed_and_its_safety_told(made):
    assert made(pinned={ONE: 88}).changes[ONE] == 88
    odd = made(pinned={ONE: 77})
    assert odd.changes[ONE] == 77
    assert any("pinned" in warning and ONE in warning for warning in odd.warnings)
    choice = next(c for c in odd.choices if c.dim == ONE)
    assert choice.safe is False and choice.candidates == [77]


def test_keep_pins_every_dim_to_the_size_it_has(made):
    kept = made(pinned={"*": "keep"})
    assert kept.changes == {} and kept.predicted_after_us == kept.predicted_before_us


def test_a_pin_beyond_the_window_or_below_a_rank_is_obeyed(made):
    assert made(pinned={ONE: 200}).changes[ONE] == 200
    cut = made(pinned={ONE: 16})
    assert cut.changes[ONE] == 16 and cut.energy_kept < 1
    assert any("cut" in warning for warning in cut.warnings)


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ({"pinned": {ONE: 64}, "least": {ONE: 80}}, "pinned to 64 and must be at least 80"),
        ({"pinned": {ONE: 64}, "most": {"*:rank": 56}}, "pinned to 64 and must be at most 56"),
        ({"pinned": {ONE: 64, "*:rank": 72}}, "pinned to 64 and to 72"),
        ({"pinned": {ONE: 257}}, "the dense weight's rank is 256"),
        ({"least": {ONE: 257}}, "the dense weight's rank is 256"),
        ({"least": {ONE: 80}, "most": {ONE: 72}}, "at least 80 and at most 72"),
        ({"least": {ONE: 81}, "most": {ONE: 87}}, "at least 81 and at most 87"),
        ({"pinned": {"nonesuch*": 8}}, "'pinned' names 'nonesuch.'.*named like 'model"),
        ({"least": {"nonesuch*": 8}}, "'least' names 'nonesuch.'"),
        ({"uniform": "nonesuch*"}, "'uniform' names 'nonesuch.'"),
        ({"uniform": "layers"}, "one of none, module, role, kind"),
        ({"uniform": "*layers.0*"}, "share one size between"),
    ],
)
def test_constraints_that_cannot_be_met_are_refused_by_name(made, constraints, message):
    with pytest.raises(PlanError, match=message) as refused:
        made(**constraints)
    assert "\n" not in str(refused.value)


def test_bounds_reach_beyond_the_window_and_all_of_them_hold(made):
    wide = made(least={ONE: 128, "*v_proj:rank": 100}, fuse=False)
    assert wide.changes[ONE] >= 128
    narrow = made({"budget": 0.9}, most={ONE: 56})
    assert narrow.changes[ONE] <= 56
    for choice in made({"budget": 0.75}, least={"*:rank": 48}).choices:
        assert choice.after is None or choice.after >= 48


def test_dense_is_on_offer_unless_it_is_declined_or_bounded_away(made):
    fastest = {"objective": "latency", "budget_parameters": 4_000_000, "quality_floor": 1.0}
    found = made(fastest)
    assert any(c.action == "fuse" for c in found.choices)
    assert any("rounding them may move a logit by" in warning for warning in found.warnings)
    assert not any(c.fusable for c in made(fastest, fuse=False).choices)
    bounded = made(fastest, most={"*:rank": 200})
    assert not any(c.fusable for c in bounded.choices)


def test_staying_untouched_is_on_offer_where_it_is_allowed(made):
    assert all(c.after % 8 == 0 for c in made().choices)
    lazy = made(untouched=True)
    assert lazy.changes == {}  # padding gains no energy and costs memory
    assert any(c.after % 8 for c in lazy.choices)
    hurried = made({"latency_limit_us": made().predicted_after_us * 1.1}, untouched=True)
    assert 0 < len(hurried.changes) < len(made().changes)


def test_one_width_for_a_plain_config(planted):
    """LLM-Pruner's layers keep 600, 448, 439 and 439 channels."""
    inventory, cliff_map = planted("llmpruner_mha_global_mlp_0.3")
    for way in ("kind", "role", "*:width"):
        made = plan(
            inventory, cliff_map, tokens=TOKENS, dtype="float32", objective="pad",
            constraints=Constraints(uniform=way),
        )  # fmt: skip
        (width,) = {c.after for c in made.choices}
        assert width >= 600 and width % 8 == 0


def test_palus_groups_of_one_weight_share_a_rank(planted):
    inventory, cliff_map = planted("palu_mha_gs4_block1")
    made = plan(
        inventory, cliff_map, tokens=TOKENS, dtype="float32", objective="gac",
        constraints=Constraints(uniform="module"),
    )  # fmt: skip
    groups = {}
    for choice in made.choices:
        groups.setdefault(choice.dim.partition(":")[0], set()).add(choice.after)
    assert all(len(sizes) == 1 for sizes in groups.values())
    assert len({c.after for c in made.choices if c.kind == "rank"}) > 1


def test_what_is_shared_by_a_pattern_comes_before_what_is_shared_by_role(planted):
    inventory, _ = planted("asvd_mha_r1")
    groups = [g for g, _ in grouped(inventory.dims, Constraints(uniform=("*:width", "role")))]
    sizes = sorted(len(group) for group in groups if group[0].kind == "width")
    assert sizes == [4]
    assert any(len(group) > 1 for group in groups if group[0].kind == "rank")


@pytest.mark.parametrize("name", ["slicegpt_mha_s0.22_r1", "palu_mha_gs4_block1"])
@pytest.mark.parametrize("aim", ["gac", "pad"])
def test_no_plan_asks_for_a_cut_that_realigning_refuses(planted, tmp_path, name, aim):
    from gacprof.resizing import realign

    inventory, cliff_map = planted(name)
    made = plan(inventory, cliff_map, tokens=TOKENS, dtype="float32", objective=aim)
    unordered = [c for c in made.choices if not inventory.dim(c.dim).ordered]
    assert all(c.after >= c.before for c in unordered if c.kind != "width")
    realign(inventory, made, tmp_path / "out")


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({}, "17 of 17 dims have no score"),
        ({ONE: 1.0}, "16 of 17 dims have no score"),
        ({"nonesuch": 1.0}, "no dim here"),
        ({ONE: float("nan")}, "nan"),
        ({ONE: -1.0}, "-1"),
        ({ONE: 10**400}, "huge integer"),
    ],
)
def test_importance_scores_are_for_every_dim_and_are_numbers(asvd, planted_map, scores, message):
    with pytest.raises(GacprofError, match=message):
        plan(asvd, planted_map, tokens=TOKENS, objective="gac", scores=scores)


def test_importance_decides_who_gets_the_parameters(planted):
    inventory, cliff_map = planted("asvd_mha_r1")
    dims = [d.name for d in inventory.dims]
    budget = inventory.parameters
    for favourite in (ONE, "model.layers.0.mlp.gate_proj:rank"):
        scores = dict.fromkeys(dims, 1.0) | {favourite: 1000.0}
        made = plan(
            inventory,
            cliff_map,
            objective="gac",
            tokens=TOKENS,
            budget_parameters=budget,
            scores=scores,
        )
        choice = next(c for c in made.choices if c.dim == favourite)
        assert choice.after == choice.window[1]


def test_other_tokens_than_the_maps_are_refused_with_the_maps_own(asvd, planted_map):
    with pytest.raises(PlanError, match="measured at 1, 64 tokens, not at 7"):
        plan(asvd, planted_map, tokens=[7])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokens": 64}, "tokens are 64"),
        ({"window": "a"}, "window is 'a'"),
        ({"window": (1, 2)}, "window is"),
        ({"budget": "0.85"}, "budget is '0.85'"),
        ({"memory": "6XB"}, "--memory 6XB"),
        ({"memory": 0}, "memory is 0"),
        ({"quality_floor": "1"}, "quality_floor .--quality-floor. is '1'"),
        ({"constraints": Constraints(pinned={ONE: "88"})}, "size '88'"),
        ({"constraints": Constraints(least={ONE: 8.5})}, "size 8.5"),
        ({"constraints": Constraints(most={ONE: "keep"})}, "size 'keep'"),
    ],
)
def test_what_is_no_number_is_refused_by_name(asvd, planted_map, settings, message):
    with pytest.raises(PlanError, match=message):
        plan(asvd, planted_map, **({"tokens": [1, 64]} | settings))


@pytest.mark.parametrize(("budget", "meant"), [(85, "was 0.85 meant"), (1.5, "above 1"), (0.9, "")])
def test_a_budget_above_the_dense_size_is_noted(asvd, planted_map, budget, meant):
    made = plan(asvd, planted_map, tokens=TOKENS, budget=budget)
    noted = [w for w in made.warnings if "budget" in w and "dense" in w]
    assert [meant in note for note in noted] == ([True] if meant else [])
