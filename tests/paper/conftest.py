"""A recorded GPU to survey."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from recorded_gpu import SUITE, Gpu

from gacprof.cli.app import main


@pytest.fixture(scope="session")
def suite(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("suite") / "small.toml"
    path.write_text(SUITE)
    return str(path)


@pytest.fixture
def h200(monkeypatch, suite) -> Gpu:
    return Gpu(monkeypatch, suite)


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a script with these arguments, in this process."""

    def run(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script.info.name, *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main(script)
        code = stopped.value.code
        return SimpleNamespace(
            code=code if isinstance(code, int) else 0, **capsys.readouterr()._asdict()
        )

    return run
