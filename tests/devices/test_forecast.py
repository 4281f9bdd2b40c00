"""What a sweep asks of a GPU by name, held against what the simulated one is asked for."""

from dataclasses import replace

import pytest
from simulated_gpu import installed
from simulated_gpu.device import SimulatedH100
from simulated_gpu.torch_side import opened

from gacprof import operators
from gacprof.api import sweeps
from gacprof.devices.datasheet import sheet
from gacprof.devices.device import Slot
from gacprof.devices.forecast import CONTEXT_BYTES, Load, forecast
from gacprof.sweeping import load_suite

H100 = sheet("h100")


def curve(operator, axis, values, dtype="float16", flags=None, **dims):
    points = [operators.point(operator, dims | {axis: v}, dtype, flags or {}) for v in values]
    return Load(tuple(points), 0, 12, len(points) // 2)


CURVES = [
    curve("linear", "K", range(96, 112), M=512, N=1024),
    curve("linear", "K", range(4064, 4080), flags={"cache": "cold"}, M=4, N=4096),
    curve("attention", "head_dim", range(64, 80), heads=8, q_len=256),
    curve("row_copy", "K", range(4064, 4080), dtype="float32", rows=32768),
]


def test_graphs_plans_and_memory_are_those_that_sessions_come_to():
    made = forecast(CURVES, H100, 64 << 20, 1)
    with installed(SimulatedH100()) as gpu:
        gpu.cost, gpu.plan_ns = (lambda name, operands: 20_000), 0
        device = opened()
        slots = [[Slot(point) for point in load.points] for load in CURVES]
        sessions = [device.session(each, 64 << 20) for each in slots]
        assert [dict(session.failed) for session in sessions] == [{}] * len(CURVES)
        assert made.slots == sum(map(len, slots)) and made.graphs == pytest.approx(
            gpu.captures, abs=2 * len(CURVES)
        )
        least = (made.peak_gib * 2**30 - CONTEXT_BYTES) / gpu.memory.peak
        assert 0.7 < least < 1.5
    assert made.plans == sum(load.points[0].operator == "attention" for load in CURVES) * 16 / 8


def test_later_processes_prepare_a_sample_and_blocks_and_names_are_shared():
    """Half of each curve's slots, in two more processes."""
    one, three = (forecast(CURVES, H100, 0, processes).seconds for processes in (1, 3))
    assert (three["blocks"], three["traces"]) == (one["blocks"], one["traces"])
    assert three["start"] == 3 * one["start"]
    for part in ("warm up", "plans", "captures"):
        assert three[part] == pytest.approx(2 * one[part], abs=0.2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_masks_and_float32_need_no_plan(dtype):
    flags = {"mask": "float"} if dtype == "bfloat16" else {}
    load = curve("attention", "head_dim", [64, 72], dtype, flags, heads=8, q_len=256)
    assert forecast([load], H100, 0, 1).plans == 0


def test_points_that_cannot_fit_are_listed():
    load = curve("row_copy", "K", [64, 4096], rows=10_000_000)
    assert [name.split()[1] for name in forecast([load], H100, 0, 1).too_large] == ["K=4096"]
    assert not forecast([load], sheet("b200"), 0, 1).too_large  # its memory is not on the sheet
    found = forecast([load], H100, 0, 1)
    assert replace(found, peak_gib=71.9).fits and not replace(found, peak_gib=72.1).fits


def test_the_verb_tells_it_and_refuses_what_cannot_fit(run):
    shown = run("sweep", "quick", "--dry-run", "--gpu", "h200")
    assert shown.code == 0 and "NVIDIA H200" in shown.out
    large = ("--op", "row_copy", "--axis", "K", "--range", "4000:4010", "--fixed", "rows=8000000")
    run("sweep", *large, "--dry-run", "--gpu", "h100").refused("11 points")
    run("sweep", "quick", "--gpu", "h100").refused()


def test_n3_the_suite_of_every_mechanism_fits_80_gb():
    made = sweeps.forecast_sweep(load_suite("full"), "h100")
    assert made.fits and made.peak_gib < 10
    assert made.points < len(load_suite("full").points("cuda"))  # of refined axes a share
