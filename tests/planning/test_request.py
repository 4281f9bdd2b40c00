"""What the user holds fixed is held, or refused with the reason."""

import pytest
from planted import TOKENS

from gacprof.core.errors import GacprofError
from gacprof.planning import Constraints, plan
from gacprof.resizing import realign

ONE = "model.layers.0.self_attn.v_proj:rank"  # 76 of 256


@pytest.fixture
def made(asvd, planted_map):
    def make(settings=None, **constraints):
        asked = {"tokens": TOKENS, "constraints": Constraints(**constraints)} | (settings or {})
        return plan(asvd, planted_map, **asked)

    return make


def test_a_pin_is_obeyed_and_its_safety_told(made):
    assert made(pinned={ONE: 88}).changes[ONE] == 88
    odd = made(pinned={ONE: 77})
    assert odd.changes[ONE] == 77
    assert any("pinned" in warning and ONE in warning for warning in odd.warnings)
    choice = next(c for c in odd.choices if c.dim == ONE)
    assert choice.safe is False and choice.candidates == [77]


def test_a_pin_beyond_the_window_or_below_a_rank_is_obeyed(made):
    assert made(pinned={ONE: 200}).changes[ONE] == 200
    cut = made(pinned={ONE: 16})
    assert cut.changes[ONE] == 16 and cut.energy_kept < 1
    assert any("cut" in warning for warning in cut.warnings)


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


@pytest.mark.parametrize("name", ["slicegpt_mha_s0.22_r1", "palu_mha_gs4_block1"])
def test_no_plan_asks_for_a_cut_that_realigning_refuses(planted, tmp_path, name):
    inventory, cliff_map = planted(name)
    made = plan(inventory, cliff_map, tokens=TOKENS, dtype="float32", objective="gac")
    unordered = [c for c in made.choices if not inventory.dim(c.dim).ordered]
    assert all(c.after >= c.before for c in unordered if c.kind != "width")
    realign(inventory, made, tmp_path / "out")


def test_importance_decides_who_gets_the_parameters(planted):
    inventory, cliff_map = planted("asvd_mha_r1")
    dims = [d.name for d in inventory.dims]
    budget = inventory.parameters
    for favourite in (ONE, "model.layers.0.mlp.gate_proj:rank"):
        scores = dict.fromkeys(dims, 1.0) | {favourite: 1000.0}
        asked = {"tokens": TOKENS, "budget_parameters": budget, "scores": scores}
        made = plan(inventory, cliff_map, objective="gac", **asked)
        choice = next(c for c in made.choices if c.dim == favourite)
        assert choice.after == choice.window[1]


REFUSED = [
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
    ({"pinned": {ONE: "88"}}, "size '88'"),
    ({"least": {ONE: 8.5}}, "size 8.5"),
    ({"most": {ONE: "keep"}}, "size 'keep'"),
    ({"tokens": 64}, "tokens are 64"),
    ({"tokens": [7]}, "measured at 1, 64 tokens, not at 7"),
    ({"window": "a"}, "window is 'a'"),
    ({"window": (1, 2)}, "window is"),
    ({"budget": "0.85"}, "budget is '0.85'"),
    ({"memory": "6XB"}, "--memory 6XB"),
    ({"memory": 0}, "memory is 0"),
    ({"quality_floor": "1"}, "quality_floor .--quality-floor. is '1'"),
    ({"scores": {}}, "17 of 17 dims have no score"),
    ({"scores": {ONE: 1.0}}, "16 of 17 dims have no score"),
    ({"scores": {"nonesuch": 1.0}}, "no dim here"),
    ({"scores": {ONE: float("nan")}}, "nan"),
    ({"scores": {ONE: -1.0}}, "-1"),
    ({"scores": {ONE: 10**400}}, "huge integer"),
]


@pytest.mark.parametrize(("asked", "message"), REFUSED)
def test_what_cannot_be_met_or_is_no_number_is_refused_by_name(made, asked, message):
    held = {k: v for k, v in asked.items() if k in ("pinned", "least", "most", "uniform")}
    settings = {k: v for k, v in asked.items() if k not in held}
    if "scores" in asked:
        settings["objective"] = "gac"
    with pytest.raises(GacprofError, match=message) as refused:
        made(settings, **held)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("budget", "meant"), [(85, "was 0.85 meant"), (1.5, "above 1"), (0.9, "")])
def test_a_budget_above_the_dense_size_is_noted(asvd, planted_map, budget, meant):
    made = plan(asvd, planted_map, tokens=TOKENS, budget=budget)
    noted = [w for w in made.warnings if "budget" in w and "dense" in w]
    assert [meant in note for note in noted] == ([True] if meant else [])
