"""A recorded GPU to survey."""

from __future__ import annotations

import pytest
from command_lines import ended
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
    return lambda script, *words: ended(
        monkeypatch, capsys, lambda: main(script), script.info.name, *words
    )
