"""A real checkpoint, and the map of the planted device at its shapes."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted import TOKENS, planted_device

from gacprof.checkpoint import scan
from gacprof.cliffmap import CliffMap
from gacprof.sweeping import build_map_of, run_sweep
from gacprof.sweeping.for_checkpoint import suite_for


@pytest.fixture(scope="session")
def asvd(fixtures: Path) -> Path:
    """A real checkpoint: hidden 256, 4 layers, ranks as ASVD chose them."""
    return fixtures / "checkpoints" / "asvd_mha_r1"


@pytest.fixture(scope="session")
def planted_map(asvd: Path, tmp_path_factory: pytest.TempPathFactory) -> CliffMap:
    folder = tmp_path_factory.mktemp("planted")
    suite = suite_for(scan(asvd), sorted(TOKENS), dtype="float32")
    run_sweep(suite, planted_device(), folder / "run")
    return build_map_of(folder / "run", "planted")
