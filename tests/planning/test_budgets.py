"""Memory and parameters, latency and quality: what is asked for holds, or the nearest is named."""

import re

import pytest
from llama import LLAMA_3_8B, inventory_of
from planted import TOKENS
from published_dims import ranks_map, rows_of

from gacprof.cliffmap import CliffMap
from gacprof.core.errors import PlanError, SolverError
from gacprof.planning import Constraints, PlanRequest, plan
from gacprof.planning.classes import build_classes
from gacprof.planning.costs import footprint, human_bytes
from gacprof.planning.limits import PlanLimits
from gacprof.planning.problem import problem_of


def test_where_dtypes_differ_bytes_are_a_resource_of_their_own(planted):
    """SVD-LLM stores factors in fp32, what stays dense in fp16."""
    inventory, cliff_map = planted("svdllm_mha_0.6")
    now = footprint(inventory, {})
    assert now.nbytes not in (2 * now.parameters, 4 * now.parameters)
    made = plan(
        inventory, cliff_map, objective="gac", tokens=TOKENS, dtype="float32", memory=now.nbytes,
        budget_parameters=now.parameters - 10_000,
    )  # fmt: skip
    assert made.memory.after <= now.nbytes
    assert made.budget.checkpoint_after <= now.parameters - 10_000


@pytest.mark.parametrize(
    ("asked", "number", "again"),
    [
        ({"memory": 4_000_000}, r"nearest .* is ([\d.]+) MB", lambda n: {"memory": int(n * 1e6)}),
        ({"budget_parameters": 2_000_000},
         r"in all, where there are 2,.* now; the nearest .* is ([\d,]+) parameters in all",
         lambda n: {"budget_parameters": int(n)}),
        ({"budget": 0.1}, r"nearest .* is ([\d.]+) of the dense size", lambda n: {"budget": n}),
        ({"latency_limit_us": 10.0}, r"the nearest is ([\d.]+) µs",
         lambda n: {"latency_limit_us": n}),
        ({"quality_floor": 1.0, "budget": 0.75}, r"the nearest is ([\d.]+)$",
         lambda n: {"quality_floor": n, "budget": 0.75}),
    ],
)  # fmt: skip
def test_the_nearest_that_a_refusal_names_can_be_met_and_nothing_nearer(
    asvd, planted_map, asked, number, again
):
    with pytest.raises(SolverError, match="nearest") as message:
        plan(asvd, planted_map, tokens=TOKENS, **asked)
    found = re.search(number, str(message.value))
    assert found, str(message.value)
    nearest = float(found[1].replace(",", ""))
    plan(asvd, planted_map, tokens=TOKENS, **again(nearest))
    better = nearest * 1.001 if "quality_floor" in asked else nearest * 0.999
    with pytest.raises(SolverError):
        plan(asvd, planted_map, tokens=TOKENS, **again(better))


def test_a_limit_on_dims_that_meet_is_kept_to_the_last_microsecond(planted):
    """PaLU's groups add up in one product: their joint sizes are what is counted."""
    inventory, cliff_map = planted("palu_mha_gs4_block1")
    settings = {"objective": "gac", "tokens": TOKENS, "dtype": "float32"}
    free = plan(inventory, cliff_map, **settings)
    for share in (0.999, 0.99):
        limit = share * free.predicted_after_us
        made = plan(inventory, cliff_map, latency_limit_us=limit, **settings)
        assert made.predicted_after_us <= limit * (1 + 1e-9)
        assert made.certificate.value <= free.certificate.value


def test_a_limit_that_the_map_does_not_know_is_refused(planted):
    """SliceGPT's hidden sizes meet in products, which are measured beside aligned neighbours and
    not beside every size that these may take."""
    inventory, cliff_map = planted("slicegpt_mha_s0.22_r1")
    measured = [c.model_copy(update={"tiers": []}) for c in cliff_map.file.curves]
    alone = CliffMap(cliff_map.file.model_copy(update={"curves": measured}))
    with pytest.raises(PlanError, match=r"together.*--pin"):
        plan(
            inventory, alone, objective="pad", tokens=TOKENS, dtype="float32",
            latency_limit_us=1e6, constraints=Constraints(least={"*:hidden": 208}),
        )  # fmt: skip


def test_the_fastest_cuts_nothing_unless_it_is_allowed_to(asvd, planted_map):
    careful = plan(asvd, planted_map, tokens=TOKENS, objective="latency")
    assert careful.energy_kept == 1.0
    assert any("no quality floor" in warning for warning in careful.warnings)


@pytest.mark.parametrize(
    ("count", "message"),
    [(999, "999 B"), (1000, "1 kB"), (5_225_001, "5.226 MB"), (6_000_000_000, "6 GB")],
)
def test_bytes_are_told_so_that_they_suffice(count, message):
    assert human_bytes(count) == message


def test_the_options_of_all_classes_add_up_to_the_checkpoint(planted):
    """Joint sizes count every weight once, at its true shape, whatever meets in it."""
    for name in ("asvd_mha_r1", "palu_mha_gs4_block1", "slicegpt_mha_s0.22_r1", "svdllm_mha_0.6"):
        inventory, cliff_map = planted(name)
        request = PlanRequest(inventory, cliff_map, objective="pad", tokens=TOKENS, dtype="float32")
        problem = problem_of(inventory, cliff_map, request)
        classes = build_classes(problem, PlanLimits())
        now = footprint(inventory, {})
        for pick in (0, -1):
            chosen = [(group, group.options[pick]) for group in classes]
            sizes = {n: s for group, option in chosen for n, s in group.sizes(option).items()}
            then = footprint(inventory, sizes)
            grown = sum(option.parameters - group.now.parameters for group, option in chosen)
            stored = sum(option.nbytes - group.now.nbytes for group, option in chosen)
            assert grown == then.parameters - now.parameters
            assert stored == then.nbytes - now.nbytes
            times = [option.latency_us for _, option in chosen]
            together = problem.predictor.weights(sizes).latency_us
            assert None in times or together is None or sum(times) == pytest.approx(together)


def test_published_ranks_are_planned_to_full_alignment_within_their_budget():
    """A dim counts as the rank of its projection."""
    named = "model.layers.{layer}.self_attn.{proj}_proj:rank".format_map
    dims = dict(rows_of(lambda row: (named(row), int(row["dim"])))["fisher", "0.7"])
    inventory = inventory_of(LLAMA_3_8B, dims)
    made = plan(
        inventory, ranks_map(176), objective="gac", tokens={1: 1.0},
        budget_parameters=inventory.parameters,
        constraints=Constraints(pinned={"*:width": "keep"}),
    )  # fmt: skip
    ranks = {c.dim: c for c in made.choices if c.kind == "rank"}
    assert ranks.keys() == dims.keys() and len(dims) == 128
    assert any(size % 8 for size in dims.values())
    assert all(choice.after % 8 == 0 and choice.safe for choice in ranks.values())
    assert made.budget.checkpoint_after <= inventory.parameters
    assert made.certificate.proved
