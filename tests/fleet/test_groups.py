"""Which devices are equal, which curves all of them measure, and how the rest is split."""

import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import suite
from suites import over, suite_of

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Environment
from gacprof.core.tasks import Tasks
from gacprof.extras.fleet.members import LINKED, kind_of, link_curves, split
from gacprof.extras.fleet.on_ray import connected, tasks_on

GPU = Environment(
    "cuda", "NVIDIA H100 80GB HBM3", "sm90",
    {"sm_count": 132, "memory_bytes": 85 << 30}, {"driver": "550.54", "torch": "2.8.0"},
)  # fmt: skip


def test_equal_devices_have_the_same_kind_and_its_name_tells_the_model():
    assert kind_of(GPU, "cuda-graph") == kind_of(replace(GPU), "cuda-graph")
    assert kind_of(GPU, "cuda-graph").startswith("nvidia-h100-80gb-hbm3-")


@pytest.mark.parametrize(
    "other",
    [
        replace(GPU, name="NVIDIA H100 PCIe"),
        replace(GPU, arch="sm90a"),
        replace(GPU, facts={**GPU.facts, "sm_count": 66}),
        replace(GPU, stack={**GPU.stack, "driver": "560.1"}),
        replace(GPU, facts={**GPU.facts, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}),
    ],
)
def test_another_model_driver_library_or_setting_is_another_kind(other):
    assert kind_of(other, "cuda-graph") != kind_of(GPU, "cuda-graph")


def cost(plan):
    return float(next(iter(plan.points.values())).dim["M"])


@given(st.integers(1, 40), st.integers(1, 50))
def test_a_split_holds_every_curve_once_and_no_share_is_far_above_the_mean(curves, devices):
    plans = suite(curves, 64, 66).curves("recorded")
    shares = split(plans, devices, cost)
    assert sorted(p.key for s in shares for p in s.plans) == sorted(p.key for p in plans)
    assert len(shares) == min(devices, curves) and all(s.plans for s in shares)
    loads = [sum(map(cost, s.plans)) for s in shares]
    least = max(max(map(cost, plans)), sum(map(cost, plans)) / len(shares))
    assert max(loads) <= (4 / 3) * least + 1e-9


def test_the_cheapest_curve_of_each_operator_and_dtype_links_devices_within_a_share_of_the_time():
    dims = {"M": list(range(1, 40)), "N": 64}
    dtypes = ("float32", "bfloat16", "float16")
    tables = [over("K", range(64, 97), dims, dtype=dtype) for dtype in dtypes]
    plans = suite_of(*tables).curves("recorded")
    links = link_curves(plans, 4, cost)
    dtypes = [next(iter(plan.points.values())).dtype for plan in links]
    assert sorted(dtypes) == ["bfloat16", "float16", "float32"]
    assert {cost(plan) for plan in links} == {1.0}
    assert sum(map(cost, links)) <= LINKED * sum(map(cost, plans)) / 4
    few = link_curves(plans, 10_000, cost)
    assert len(few) == 1, "one there always is"
    assert link_curves(plans, 1, cost) == [], "a single device needs none"


def test_short_and_refined_axes_link_only_where_there_is_no_other():
    tables = [
        over("K", range(64, 67), {"M": 1, "N": 64}),
        over("K", range(64, 97), {"M": 2, "N": 64}, strategy="adaptive"),
        over("K", range(64, 97), {"M": 9, "N": 64}),
    ]
    (link,) = link_curves(suite_of(*tables).curves("recorded"), 2, cost)
    assert cost(link) == 9


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(MeasurementError, match=r"pip install 'gacprof\[fleet\]'"),
        connected("auto"),
    ):
        pass


def test_tasks_run_here_unless_an_address_is_given():
    with tasks_on(None, "cpu") as tasks:
        assert type(tasks) is Tasks and tasks.submit(max, 1, 2)() == 2
