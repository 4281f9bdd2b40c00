"""Real checkpoints, and maps of the planted device at their shapes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "chain"))
sys.path.insert(0, str(Path(__file__).parent.parent / "checkpoint"))

from checkpoint_making import restored
from planted import TOKENS, planted_device

from gacprof.checkpoint import scan
from gacprof.checkpoint.inventory import Inventory
from gacprof.cliffmap import CliffMap
from gacprof.sweeping import build_map_of, run_sweep
from gacprof.sweeping.for_checkpoint import suite_for

Planted = Callable[[str], tuple[Inventory, CliffMap]]


@pytest.fixture(scope="session")
def asvd(fixtures: Path) -> Path:
    """A real checkpoint with its factors: hidden 256, 4 layers, ranks as ASVD chose them."""
    return fixtures / "checkpoints" / "asvd_mha_r1"


@pytest.fixture(scope="session")
def planted(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """A fixture's inventory and its planted map, by the fixture's name. All but ASVD's hold
    zeros for data: enough for every objective that reads no spectra.
    """
    made: dict[str, tuple[Inventory, CliffMap]] = {}

    def find(name: str) -> tuple[Inventory, CliffMap]:
        if name not in made:
            out, folder = tmp_path_factory.mktemp("planted"), fixtures / "checkpoints" / name
            if not folder.is_dir():
                folder = restored(folder.with_name(f"{name}.headers"), out)
            inventory = scan(folder)
            run_sweep(
                suite_for(inventory, sorted(TOKENS), dtype="float32"), planted_device(), out / "run"
            )
            made[name] = inventory, build_map_of(out / "run", "planted")
        return made[name]

    return find


@pytest.fixture(scope="session")
def planted_map(planted: Planted) -> CliffMap:
    return planted("asvd_mha_r1")[1]
