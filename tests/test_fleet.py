"""A fleet on Ray: one map of all shares, equal to a sweep's in its axes. Needs the extra fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

SUITE = """
name = "tiny"
[[sweep]]
operator = "linear"
axis = "N"
values = [64, 72, 80]
dims = { M = [1, 4], K = 64 }
dtype = "float32"
"""


@pytest.mark.slow
def test_a_local_fleet_makes_one_map_a_kind(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="needs the extra 'fleet'")
    from gacprof.cliffmap.cliffmap import load_map
    from gacprof.sweeping.fleet import sweep_fleet

    suite = tmp_path / "tiny.toml"
    suite.write_text(SUITE)
    folders = sweep_fleet(suite, out=tmp_path / "fleet", budget_s=10)
    ray.shutdown()
    assert folders
    for folder in folders.values():
        assert len(load_map(folder).curves) == 2


def test_devices_of_another_stack_share_no_map() -> None:
    pytest.importorskip("ray", reason="needs the extra 'fleet'")
    from gacprof.core.points import Environment
    from gacprof.sweeping.fleet import kind_of

    stack = {"gacprof": "0.3.0", "torch": "2.13.0", "driver": "580.95.05"}
    environment = Environment("cuda", "NVIDIA H100 80GB HBM3", "sm90", stack=stack)
    kind = kind_of(environment)
    assert kind.startswith("nvidia-h100-80gb-hbm3-sm90-torch-2.13.0-")
    assert kind_of(Environment("cuda", "NVIDIA H100 80GB HBM3", "sm90", stack=dict(stack))) == kind
    for name in stack:
        other = Environment("cuda", environment.name, "sm90", stack={**stack, name: "9.9"})
        assert kind_of(other) != kind
