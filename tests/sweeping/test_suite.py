"""Suites: what a TOML file measures."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Axis, Environment
from gacprof.devices.cuda import MAX_CALLS
from gacprof.sweeping.suite import complete_axis, load_suite, shipped_suites
from gacprof.sweeping.sweep import preparation

SUITE = """
name = "mine"
budget_s = 5.5
[[sweep]]
operator = "linear"
axis = "K"
values = [107, { from = 96, to = 104, step = 4 }]
dims = { M = [1, 16], N = 64 }
dtype = ["fp16", "bfloat16"]
flags = { bias = [false, true] }
[[sweep]]
operator = "linear"
axis = "K"
values = [96, 200]
dims = { M = 1, N = 64 }
dtype = "float16"
[[sweep]]
operator = "linear"
axis = "N"
values = [8]
dims = { M = 1, K = 64 }
device = "cpu"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "suite.toml"
    path.write_text(text)
    return path


def test_lists_multiply_out_and_equal_axes_are_merged(tmp_path: Path) -> None:
    suite = load_suite(written(tmp_path, SUITE), "cuda")
    assert (suite.name, suite.budget_s, len(suite.axes)) == ("mine", 5.5, 8)
    merged = [axis for axis in suite.axes if 200 in axis.sizes]
    assert [axis.sizes for axis in merged] == [(96, 100, 104, 107, 200)]
    assert merged[0].flags["layout"] == "tn", "flags left out are spelt out"
    assert len({axis.key for axis in suite.axes}) == 8
    assert suite.points == 8 * 4 + 1


def test_a_suite_is_for_a_kind_of_device(tmp_path: Path) -> None:
    path = written(tmp_path, SUITE)
    assert len(load_suite(path, "cpu").axes) == 9
    assert len(load_suite(path, "virtual").axes) == 8
    assert [a.dtype for a in load_suite(path, "cpu").axes if a.dim == "N"] == ["float32"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('axis = "K"', 'axis = "Q"'),
        ("from = 96", "from = 0"),
        ("from = 96", "start = 96"),
        ('operator = "linear"', 'operator = "cubic"'),
        ('"fp16"', '"fp12"'),
        ("bias =", "colour ="),
        ('name = "mine"', 'name = "a/b"'),
        ("budget_s = 5.5", "budget_s = 5.5\nretries = 3"),
        ("[[sweep]]", "[[sweep]"),
        ("to = 104", "to = 2000000000"),
        ("to = 104", "to = 95"),
        ("N = 64", "Z = 64"),
        ("N = 64", "N = 99999999999999999999999"),
    ],
)
def test_a_wrong_suite_is_refused_with_its_file(tmp_path: Path, before: str, after: str) -> None:
    path = written(tmp_path, SUITE.replace(before, after, 1))
    with pytest.raises(MeasurementError, match=r"suite\.toml"):
        load_suite(path)


def test_a_suite_of_millions_is_refused_before_any_axis_is_made(tmp_path: Path) -> None:
    many = list(range(1, 3000))
    text = SUITE.replace("M = [1, 16], N = 64", f"M = {many}, N = {many}")
    begin = time.monotonic()
    with pytest.raises(MeasurementError):
        load_suite(written(tmp_path, text))
    assert time.monotonic() - begin < 5, "making the axes takes minutes"


def test_both_ends_of_a_range_are_measured(tmp_path: Path) -> None:
    suite = load_suite(written(tmp_path, SUITE.replace("to = 104", "to = 96")))
    assert {axis.sizes[0] for axis in suite.axes if 200 in axis.sizes} == {96}


def test_an_unknown_suite_is_refused() -> None:
    with pytest.raises(MeasurementError):
        load_suite("no-such-suite")


@pytest.mark.parametrize("name", shipped_suites())
def test_shipped_suites_can_be_measured(name: str) -> None:
    kinds = ["cpu"] if name == "cpu" else ["cpu", "cuda"]
    for kind in kinds:
        suite = load_suite(name, kind)
        assert suite.name == name
        assert 0 < suite.points < 10_000


H100 = Environment(
    "cuda",
    "NVIDIA H100 80GB HBM3",
    "sm90",
    {"memory_bytes": 80 << 30, "l2_bytes": 50 << 20},
    {"torch": "2.11.0+cu130"},
)
ATTENTION = """
name = "attention"
[[sweep]]
operator = "attention"
axis = "head_dim"
values = [64, 107, 128]
dims = { heads = 8, q_len = 256 }
dtype = "float16"
flags = { backend = ["auto", "cudnn", "math"] }
"""


def test_a_gpu_prepares_a_graph_for_each_size_and_replicate(tmp_path: Path) -> None:
    axes = load_suite(written(tmp_path, SUITE), "cuda").axes
    needs = preparation(axes, H100)
    assert needs.cudnn_plans == 0
    assert needs.captures == sum(len(axis.sizes) + min(4, len(axis.sizes)) for axis in axes)
    assert needs.memory_bytes < 1 << 20


def test_cudnn_plans_what_it_is_chosen_for(tmp_path: Path) -> None:
    axes = load_suite(written(tmp_path, ATTENTION), "cuda").axes
    assert preparation(axes, H100).cudnn_plans == 5  # of "auto", 107 is flash's
    unknown = replace(H100, name="Voodoo 2")
    assert preparation(axes, unknown).cudnn_plans == 6  # the most


def test_cold_weights_need_what_is_read_between_two_uses() -> None:
    axis = Axis("linear", "K", (4096,), {"M": 1, "N": 4096}, "float16", {"cache": "cold"})
    cold = preparation([complete_axis(axis)], H100).memory_bytes
    warm = preparation([complete_axis(replace(axis, flags={}))], H100).memory_bytes
    assert warm < 40 << 20 < MAX_CALLS * (32 << 20) < cold < 3 << 30
