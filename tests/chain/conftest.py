"""The map of the planted device at the shapes of a real checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted import planted_map_of

from gacprof.cliffmap import CliffMap


@pytest.fixture(scope="session")
def planted_map(asvd: Path, tmp_path_factory: pytest.TempPathFactory) -> CliffMap:
    return planted_map_of(asvd, tmp_path_factory.mktemp("planted") / "run", dtype="float32")
