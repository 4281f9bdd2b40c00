"""The Python chain as README prints it, on a real checkpoint and a planted device."""

import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from planted import planted_device

import gacprof
from gacprof.core.errors import PlanError, SuiteError

pytest.importorskip("transformers")
README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def planted(monkeypatch, tmp_path):
    monkeypatch.setattr(
        "gacprof.api.sweeps.sweeper", lambda *_, **__: nullcontext(planted_device())
    )
    monkeypatch.chdir(tmp_path)


def test_the_printed_chain_sweeps_plans_realigns_and_verifies(planted, asvd):
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    shutil.copytree(asvd, "MODEL")
    names = {}
    exec(block, names)
    found, plan = names["found"], names["plan"]
    assert found.misaligned > 0 and found.unknown == 0
    assert plan.changes and plan.certificate.proved
    assert gacprof.scan("ALIGNED").dim(next(iter(plan.changes)))
    assert gacprof.verify("MODEL", "ALIGNED").passed


def test_a_model_is_swept_at_the_tokens_that_are_asked_for(planted, asvd):
    summary = gacprof.sweep(model=asvd, tokens=[64], out="own")
    made = gacprof.build_map(summary.folder)
    assert gacprof.diagnose(asvd, made, tokens=[64]).unknown == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, SuiteError),
        ({"suite": "quick", "model": "MODEL"}, SuiteError),
        ({"suite": "quick", "tokens": [1]}, SuiteError),
        ({"model": "MODEL", "tokens": []}, PlanError),
    ],
)
def test_a_sweep_is_of_a_suite_or_of_a_model(planted, arguments, error):
    with pytest.raises(error):
        gacprof.sweep(out="own", **arguments)
    assert not Path("own").exists()
