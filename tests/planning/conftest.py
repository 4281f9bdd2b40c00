"""Real checkpoints, and maps of the planted device at their shapes."""

import pytest
from checkpoint_making import restored
from planted import planted_map_of

from gacprof.checkpoint import scan


@pytest.fixture(scope="session")
def planted(fixtures, asvd, planted_map, tmp_path_factory):
    """A fixture's inventory and its planted map, by the fixture's name. All but ASVD's hold
    zeros for data: enough for every objective that reads no spectra.
    """
    made = {asvd.name: (scan(asvd), planted_map)}

    def find(name):
        if name not in made:
            out, folder = tmp_path_factory.mktemp("planted"), fixtures / "checkpoints" / name
            inventory = scan(restored(folder.with_name(f"{name}.headers"), out))
            made[name] = inventory, planted_map_of(inventory, dtype="float32")
        return made[name]

    return find
