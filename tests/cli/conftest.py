"""The planted map as a file, for command lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from gacprof.cliffmap import CliffMap


@pytest.fixture(scope="session")
def planted_map(planted_map: CliffMap, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a file."""
    file = tmp_path_factory.mktemp("planted") / "cliffmap.json"
    planted_map.save(file)
    return file
