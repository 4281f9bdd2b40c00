"""Points and targets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gacprof import operators
from gacprof.core.points import Point
from gacprof.rules import serve, target

sys.path.insert(0, str(Path(__file__).parent.parent / "compressing"))

Tier = Callable[..., int]


@pytest.fixture
def tier() -> Tier:
    """The tier of an operator's point on a GPU: ``tier("h100", "linear", M=512, N=64, K=107)``."""

    def of(
        gpu: str, operator: str, dtype: str = "float16", torch: str = "2.11.0",
        flags: dict[str, Any] | None = None, **dims: int,
    ) -> int:  # fmt: skip
        made: Point = operators.point(operator, dims, dtype, flags)
        return serve(made, target(gpu, torch)).tier

    return of
