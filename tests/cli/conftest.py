"""The command line as a user meets it: arguments in, exit code and both streams out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gacprof.cli.app import main


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
def planted_map(asvd: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A map file of the planted device at the fixture's shapes."""
    from planted import planted_map_of

    folder = tmp_path_factory.mktemp("planted")
    planted_map_of(asvd, folder, dtype="float32").save(folder / "cliffmap.json")
    return folder / "cliffmap.json"
