"""The command line as a user meets it: arguments in, exit code and both streams out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gacprof.cli.app import main
from gacprof.cliffmap import CliffMap


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``gacprof`` with these arguments, in this process."""

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["gacprof", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        streams = capsys.readouterr()
        code = stopped.value.code
        return Result(code if isinstance(code, int) else 0, streams.out, streams.err)

    return run


@pytest.fixture(scope="session")
def planted_map(planted_map: CliffMap, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a file."""
    file = tmp_path_factory.mktemp("planted") / "cliffmap.json"
    planted_map.save(file)
    return file
