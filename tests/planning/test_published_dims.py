"""The published dims of Llama-3-8B, planned from end to end: aligned in full, within the budget."""

import csv
from collections import defaultdict

import pytest
from llama import LLAMA_3_8B, inventory_of
from planted import swept_map

from gacprof.planning import Constraints, plan
from gacprof.sweeping.suite import parse_suite

SCORES = ("activation", "fisher", "gradient", "magnitude")
RATIOS = ("0.5", "0.6", "0.7", "0.8", "0.9")
PAIRS = [(s, r) for i, s in enumerate(SCORES) for j, r in enumerate(RATIOS) if (i + j) % 3 == 0]
"""Every score and every ratio, at least once each."""


@pytest.fixture(scope="module")
def published(fixtures):
    """(score, ratio) → dims by name; a dim counts as the rank of its projection."""
    dims = defaultdict(dict)
    path = fixtures / "published_dims" / "llama3_8b_head_dims.csv"
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = f"model.layers.{row['layer']}.self_attn.{row['proj']}_proj:rank"
            dims[row["method"], row["retain_ratio"]][name] = int(row["dim"])
    return dims


@pytest.fixture(scope="module")
def cliff_map(tmp_path_factory):
    """Every rank of these projections on the planted device, for one token."""
    sizes = [{"from": 1, "to": 176}]
    common = {"operator": "linear", "dtype": "float16", "flags": {"bias": False}, "values": sizes}
    sweeps = [common | {"axis": "N", "dims": {"M": 1, "K": 4096}}]
    sweeps += [common | {"axis": "K", "dims": {"M": 1, "N": wide}} for wide in (4096, 1024)]
    folder = tmp_path_factory.mktemp("llama") / "run"
    return swept_map(parse_suite({"name": "ranks", "sweep": sweeps}, "ranks"), folder)


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
