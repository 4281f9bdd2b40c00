"""Points, targets, and the command line."""

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


@pytest.fixture(scope="session")
def asvd(fixtures: Path) -> Path:
    return fixtures / "checkpoints" / "asvd_mha_r1"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """(exit code, stdout, stderr) of a command line."""
    from gacprof.cli import main

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gacprof", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        code = left.value.code
        return code if isinstance(code, int) else 0, out, err

    return call
