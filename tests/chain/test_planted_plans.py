"""Plans on planted steps that do not divide 64 as well as on those that do, by enumeration.

No plan is slower than the model, no size is called safe that a larger one beats, nothing is proved
that is not the best, and planning the output again changes nothing. More cases:
``python tests/support/planted_plans.py 210``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from planted_plans import FAMILIES, Case, Planted, defects

STEPS = {"teeth of 24": (24, True), "teeth of 48": (48, True), "stairs of 16": (16, False)}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_plan_is_what_enumeration_finds(family: str, steps: str, tmp_path: Path) -> None:
    seed = sum(map(ord, family + steps)) % 3
    assert defects(Case(family, Planted(*STEPS[steps]), seed), tmp_path) == []
