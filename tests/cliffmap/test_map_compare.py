"""Two maps: what changed, with significance; and whether a map fits the machine at hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from planted_blocks import linear, planted

from gacprof.cliffmap.build import build_map
from gacprof.cliffmap.compare import check, diff
from gacprof.core.points import Environment

STACK = {"torch": "2.13.0+cu130", "cublas": "13.1.0.3", "cudnn": "91501", "driver": "580.65"}
H200 = Environment("cuda", "NVIDIA H200", "sm90", {}, STACK)


def measured(latency, name, dims=range(64, 192), spread=0.004, seed=0):
    blocks = planted(
        linear("K", dims), "K", latency, count=16, spread=spread, level=0.1, seed=seed,
        replicates=range(64, 192, 4),
    )  # fmt: skip
    return build_map(blocks, H200, name=name)


def step(at, height=1.5):
    return lambda d: 10.0 * (height if d >= at else 1.0)


def flat(d):
    return 10.0


@pytest.mark.parametrize(
    ("a", "b", "changes"),
    [
        (step(128), step(128), []),
        (step(128), flat, [("gone", 127, 128, True)]),
        (flat, step(128), [("new", 127, 128, True)]),
        (step(128), step(136), [("moved", 127, 128, True)]),
        (step(128, 1.3), step(128, 2.0), [("larger", 127, 128, True)]),
    ],
)
def test_cliffs_that_stay_go_come_move_and_grow(a, b, changes):
    (curve,) = diff(measured(a, "a"), measured(b, "b", seed=1)).curves
    assert [(c.verdict, c.before, c.after, c.significant) for c in curve.cliffs] == changes
    assert all(change.to == (135, 136) for change in curve.cliffs if change.verdict == "moved")


def test_what_the_other_map_did_not_measure_is_unknown_not_gone():
    without = measured(step(128), "b", dims=[d for d in range(64, 192) if d != 127])
    (curve,) = diff(measured(step(128), "a"), without).curves
    assert ("unknown", 127, 128) in [(c.verdict, c.before, c.after) for c in curve.cliffs]


def test_the_same_map_does_not_differ(a100):
    found = diff(a100, a100)
    assert not found.differs and found.only_a == found.only_b == []
    assert all(c.ratio == 1.0 and c.cliffs == [] for c in found.curves)
    found = diff(a100, measured(step(128), "b"))
    assert len(found.only_a) == len(a100.curves) and len(found.only_b) == 1


def test_the_overall_ratio_and_the_frontiers_are_told():
    a, b = measured(step(128), "a"), measured(lambda d: step(136)(d) / 2, "b")
    (curve,) = diff(a, b).curves
    assert curve.ratio == pytest.approx(0.5, rel=0.05)
    assert curve.frontier_lost == [127] and curve.frontier_gained == [135]
    assert json.dumps(diff(a, b).as_dict())


@pytest.mark.parametrize(
    ("component", "version", "stale"),
    [
        ("torch", STACK["torch"], False),
        ("torch", "2.13.1+cu130", False),
        ("torch", "2.14.0", True),
        ("cublas", "13.2.0.1", True),
        ("cublas", None, True),
        ("cudnn", "91599", False),
        ("cudnn", "92000", True),
        ("driver", "590.10", False),
    ],
)
def test_another_minor_version_of_what_chooses_kernels_makes_it_stale(component, version, stale):
    here = replace(H200, stack={**STACK, component: version})
    fit = check(measured(step(128), "a"), here)
    assert fit.stale is stale
    if version not in (STACK["torch"], "2.13.1+cu130", "91599"):
        assert any(component in line for line in fit.lines)


def test_another_device_makes_it_stale(a100):
    fit = check(a100, H200)
    assert fit.stale and "device: the map is of NVIDIA A100 80GB, here is NVIDIA H200" in fit.lines
    assert json.dumps(fit.as_dict())
