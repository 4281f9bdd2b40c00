"""58 published cases of models that engines refuse, pad, serve slowly or take.

The cases are data of others (``tests/fixtures/lint``). A case counts as right if the worst outcome
is the one that was reported, and a product with that outcome holds the reported size.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gacprof.linting import Lint, lint

FIXTURES = Path(__file__).parents[1] / "fixtures" / "lint"
CASES = json.loads((FIXTURES / "cases.json").read_text(encoding="utf-8"))


def judged(case: dict) -> Lint:
    return lint(
        case["config"], engine=case["engine"], version=case["engine_version"], gpu=case["gpu"],
        tp=case["tp"], ep=case["ep"], ep_size=case.get("ep_size"), quant=case["quant"],
    )  # fmt: skip


def expected(case: dict) -> str:
    """What was seen: a model that loads and answers wrongly was not refused."""
    return "wrong" if "silently wrong" in case.get("actual", "") else case["expected"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_case_is_judged_as_it_was_reported(case):
    found = judged(case)
    assert found.outcome == expected(case)
    sizes = [
        {*row.local.values(), row.size} for row in found.products if row.outcome == found.outcome
    ]
    assert any(case["local_size"] in held for held in sizes)


@pytest.mark.parametrize(
    "case", [c for c in CASES if "pads_to" in c], ids=lambda case: case["name"]
)
def test_padding_ends_at_the_reported_size(case):
    rows = [row for row in judged(case).products if row.padded_to]
    assert any(case["pads_to"] in row.padded_to.values() for row in rows)


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.get("multiple") and c["axis"] != "any"], ids=lambda c: c["name"]
)
def test_the_multiple_that_was_asked_for_is_named(case):
    rows = [
        row for row in judged(case).products
        if case["local_size"] in {*row.local.values(), row.size} and row.multiple
    ]  # fmt: skip
    assert any(row.multiple % case["multiple"] == 0 for row in rows)
