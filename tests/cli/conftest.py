"""The command line as a user meets it: arguments in, exit code and both streams out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gacprof.cli.app import main

sys.path.insert(0, str(Path(__file__).parent.parent / "chain"))


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
def asvd(fixtures: Path) -> Path:
    return fixtures / "checkpoints" / "asvd_mha_r1"


@pytest.fixture(scope="session")
def planted_map(asvd: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A map file of the planted device at the fixture's shapes."""
    from planted import TOKENS, planted_device

    from gacprof.checkpoint import scan
    from gacprof.sweeping import build_map_of, run_sweep
    from gacprof.sweeping.for_checkpoint import suite_for

    folder = tmp_path_factory.mktemp("planted")
    run_sweep(suite_for(scan(asvd), sorted(TOKENS), dtype="float32"), planted_device(), folder)
    build_map_of(folder, "planted").save(folder / "cliffmap.json")
    return folder / "cliffmap.json"
