"""What equal devices differ by: in the A/A floor, in the errors, and which of them is slow."""

from random import Random

import pytest
from simulated import suite

from gacprof.cliffmap.build import build_map
from gacprof.core.points import Block, Call, Environment

HERE = Environment("recorded", "A", "none")


def blocks_of(devices, interaction=0.0, noise=0.005, slower=None, curves=4):
    """Curve 0 is measured by all, the others by one each; 3 processes of 8 blocks."""
    draw = Random(7)
    own = {}
    found = []
    for number, plan in enumerate(suite(curves, 64, 96).curves("recorded")):
        for device in range(devices) if number == 0 else [number % devices]:
            level = (slower or {}).get(device, 1.0)
            for place in range(24):
                calls = []
                for point in plan.points.values():
                    off = own.setdefault((device, point), draw.gauss(0, interaction))
                    for replicate in (False, True):
                        us = 100 * level * 2.718281828 ** (off + draw.gauss(0, noise))
                        calls.append(Call(point, replicate, us))
                process = 3 * device + place // 8
                block = Block(len(found), process, "K", "recorded", tuple(calls),
                              device=f"gpu{device}")  # fmt: skip
                found.append(block)
    return found


def map_of(*args, **kwargs):
    return build_map(blocks_of(*args, **kwargs), HERE, name="m")


def test_dims_that_differ_from_device_to_device_raise_the_floor_to_what_they_differ_by():
    """Two devices differ by 1.96·√2·σ with 95 % confidence."""
    assert map_of(4).floor < 0.01
    assert map_of(4, interaction=0.01).floor == pytest.approx(1.96 * 2**0.5 * 0.01, rel=0.35)


def test_what_is_only_one_devices_way_is_not_called_misaligned():
    """With one device nobody can know; of four the link curve tells how far to trust a curve."""
    assert sum(len(c.misaligned) for c in map_of(1, interaction=0.015).curves) > 20
    assert sum(len(c.misaligned) for c in map_of(4, interaction=0.015).curves) == 0


def test_a_card_that_is_slower_than_the_others_is_named():
    check, equal, single = (
        {check.name: check for check in made.file.checks}.get("devices")
        for made in (map_of(5, slower={3: 1.04}), map_of(5), map_of(1))
    )
    assert equal.passed and single is None
    assert not check.passed and check.effect == pytest.approx(0.04, abs=0.004)
    assert "gpu3 takes +4." in check.message and "gpu1" not in check.message
