"""Plans on planted steps that do not divide 64 as well as on those that do, by enumeration.

No plan is slower than the model, no size is called safe that a larger one beats, nothing is proved
that is not the best, and planning the output again changes nothing. Each family is planned on one
device, on all of them by ``make test-all``.
"""

import pytest
from planted_plans import FAMILIES, Case, Planted, defects

STEPS = {"teeth of 24": (24, True), "teeth of 48": (48, True), "stairs of 16": (16, False)}


CASES = [
    pytest.param(family, steps, marks=() if (i + j) % 3 == 0 else pytest.mark.slow)
    for i, family in enumerate(FAMILIES) for j, steps in enumerate(STEPS)
]  # fmt: skip


@pytest.mark.parametrize(("family", "steps"), CASES)
def test_a_plan_is_what_enumeration_finds(family, steps, tmp_path):
    seed = sum(map(ord, family + steps)) % 3
    assert defects(Case(family, Planted(*STEPS[steps]), seed), tmp_path) == []
