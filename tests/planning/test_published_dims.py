"""The published dims of Llama-3-8B, planned from end to end: aligned in full, within the budget."""

import pytest
from llama import LLAMA_3_8B, inventory_of
from published_dims import ranks_map, rows_of

from gacprof.planning import Constraints, plan

PAIRS = [("activation", "0.5"), ("fisher", "0.7"), ("magnitude", "0.9")]


@pytest.fixture(scope="module")
def published():
    """(score, ratio) → dims by name; a dim counts as the rank of its projection."""
    named = "model.layers.{layer}.self_attn.{proj}_proj:rank".format_map
    pairs = rows_of(lambda row: (named(row), int(row["dim"])))
    return {key: dict(rows) for key, rows in pairs.items()}


@pytest.fixture(scope="module")
def cliff_map(tmp_path_factory):
    return ranks_map(tmp_path_factory.mktemp("llama") / "run", 176)


@pytest.mark.parametrize(("score", "ratio"), PAIRS)
def test_every_score_and_ratio_is_planned_to_full_alignment_within_its_budget(
    published, cliff_map, score, ratio
):
    dims = published[score, ratio]
    inventory = inventory_of(LLAMA_3_8B, dims)
    made = plan(
        inventory,
        cliff_map,
        objective="gac",
        tokens={1: 1.0},
        budget_parameters=inventory.parameters,
        constraints=Constraints(pinned={"*:width": "keep"}),
    )
    ranks = {c.dim: c for c in made.choices if c.kind == "rank"}
    assert ranks.keys() == dims.keys() and len(dims) == 128
    assert any(size % 8 for size in dims.values())
    assert all(choice.after % 8 == 0 and choice.safe for choice in ranks.values())
    assert made.budget.checkpoint_after <= inventory.parameters
    assert made.certificate.proved
