"""Points and targets."""

import sys
from pathlib import Path

import pytest

from gacprof import operators
from gacprof.rules import serve, target

sys.path.insert(0, str(Path(__file__).parent.parent / "compressing"))


@pytest.fixture
def tier():
    """The tier of an operator's point on a GPU: ``tier("h100", "linear", M=512, N=64, K=107)``."""

    def of(gpu, operator, dtype="float16", torch="2.11.0", flags=None, **dims):
        made = operators.point(operator, dims, dtype, flags)
        return serve(made, target(gpu, torch)).tier

    return of
