"""Ray for the tests that need it: small, on this machine, gone afterwards."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDERS = [HERE.parents[1], HERE, HERE.parent / "compressing", HERE.parent / "support"]
SMALL = {"object_store_memory": 80 << 20, "include_dashboard": False}
sys.path += [str(folder) for folder in FOLDERS]


@pytest.fixture(scope="session")
def ray():
    """The package; its processes find the simulated devices."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = ":".join(map(str, FOLDERS))
    return pytest.importorskip("ray", reason="Ray is not installed (gacprof[fleet])")


@pytest.fixture
def cluster(ray):
    """A head without devices, and two nodes of device A and one of B, of a core each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **SMALL})
    made.own = [
        made.add_node(num_cpus=1, resources={f"sim_{name}": 1}, **SMALL) for name in ("A", "A", "B")
    ]
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def local(ray):
    """This machine alone."""
    ray.init(num_cpus=2, log_to_driver=False, logging_level="ERROR", **SMALL)
    yield ray
    ray.shutdown()
