"""Real checkpoints, and maps of the planted device at their shapes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "chain"))

from planted import TOKENS, planted_device

from gacprof.checkpoint import scan
from gacprof.checkpoint.inventory import Inventory
from gacprof.cliffmap import CliffMap
from gacprof.sweeping import build_map_of, run_sweep
from gacprof.sweeping.for_checkpoint import suite_for

HEADERS = (
    "llmpruner_mha_global_mlp_0.3",
    "palu_mha_gs4_block1",
    "slicegpt_mha_s0.22_r1",
    "svdllm_mha_0.6",
    "torchpruning_mha_0.3",
)
"""Of these the repository holds headers only: enough for every objective but ``energy``."""

Planted = Callable[[str], tuple[Inventory, CliffMap]]


@pytest.fixture(scope="session")
def asvd(fixtures: Path) -> Path:
    """A real checkpoint with its factors: hidden 256, 4 layers, ranks as ASVD chose them."""
    return fixtures / "checkpoints" / "asvd_mha_r1"


@pytest.fixture(scope="session")
def planted(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """A fixture's inventory and its planted map, by the fixture's name."""
    made: dict[str, tuple[Inventory, CliffMap]] = {}

    def find(name: str) -> tuple[Inventory, CliffMap]:
        if name not in made:
            folder = name if name == "asvd_mha_r1" else f"{name}.headers"
            inventory = scan(fixtures / "checkpoints" / folder)
            out = tmp_path_factory.mktemp("planted")
            run_sweep(suite_for(inventory, sorted(TOKENS), dtype="float32"), planted_device(), out)
            made[name] = inventory, build_map_of(out, "planted")
        return made[name]

    return find


@pytest.fixture(scope="session")
def planted_map(planted: Planted) -> CliffMap:
    return planted("asvd_mha_r1")[1]
