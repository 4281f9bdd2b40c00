"""What would have cost the first hour on a GPU, each shown on the simulated one.

Numbered as in the review that found them; N2 (curves that vanish from a map) is the map's, and N5
(the script of the first hour) has tests of its own.
"""

from types import SimpleNamespace

import pytest
import torch
from simulated_gpu import EVENT_NS, opened
from suites import over, suite_of

from gacprof import operators
from gacprof.core.errors import MeasurementError
from gacprof.devices.device import Slot
from gacprof.devices.memory import Arenas
from gacprof.devices.nvml import Telemetry
from gacprof.devices.worker import SLOTS_IN_TIME, IsolatedDevice
from gacprof.operators.base import Prepared
from gacprof.sweeping import run_sweep


def linear(k, m=64, n=64, dtype="float16", **flags):
    return operators.point("linear", {"M": m, "N": n, "K": k}, dtype, flags)


def slots(*sizes, **more):
    return [Slot(linear(k, **more)) for k in sizes]


def times(session, *order):
    return {timed.slot: timed.us for timed in session.block(order).calls}


@pytest.mark.parametrize("release", [(2, 11), (2, 12)])
def test_n1_what_befalls_one_session_leaves_the_others_graphs_their_workspace(gpu, release):
    gpu.release = release
    device = opened()
    first, second = device.session(slots(64, 80)), device.session(slots(96, 112))
    second.close()
    assert len(times(first, 0, 1)) == 2
    assert len(times(device.session(slots(96, 128)), 0, 1)) == 2 and len(times(first, 1)) == 1
    gpu.refuses_capture = lambda name, operands: (  # nor does a capture that fails take it
        RuntimeError("not permitted")
        if name == "linear" and operands[0].shape[1] in (81, 129)
        else None
    )
    mixed = device.session(slots(65, 81, 97))
    device.session(slots(113, 129))
    assert set(mixed.remarks()) == {1} and len(times(mixed, 0, 1, 2)) == 3


def test_n1_graphs_are_given_back_once_no_session_needs_them(gpu):
    gpu.release = (2, 12)
    device = opened()
    device.session(slots(64, 80)).close()
    device.session(slots(96)).close()
    assert set(device.captures.found) == {(Slot(linear(96)), 0, 0)}
    device.close()
    assert not device.captures.found and not device.graphs.held and device.graphs.nodes == 0


def test_n3_copies_share_their_target(gpu):
    """Forty-nine copies of half a GiB on a GPU of eight: in and out, and room to spare."""
    points = [
        operators.point("row_copy", {"rows": 32768, "K": k}, "float32") for k in range(4064, 4113)
    ]
    device = opened()
    sessions = [device.session([Slot(p) for p in points[i::7]]) for i in range(7)]
    assert not any(session.failed for session in sessions)
    assert gpu.memory.peak < 4 << 30


def test_n3_a_lack_of_memory_is_tried_again_once_torch_has_given_back_its_cache(gpu):
    """Memory that torch holds in pieces too small for a call counts as free, and is no use."""
    free = gpu.memory.empty_cache
    gpu.fails = lambda name, operands: (
        torch.cuda.OutOfMemoryError("CUDA out of memory.")
        if name == "linear" and operands[0].shape[1] == 80 and not gpu.emptied
        else None
    )
    session = opened().session(slots(64, 80))
    gpu.memory.empty_cache = free
    assert not session.failed and len(times(session, 0, 1)) == 2


def test_n4_a_refined_axis_captures_each_dim_once(gpu, tmp_path):
    """Each was captured in every round; of an axis of 1025 dims 37 times on average."""
    gpu.page, gpu.remembers = 1 << 16, False
    gpu.cost = lambda name, operands: 26_000 if operands[0].shape[-1] % 8 else 20_000
    axis = over("K", range(3584, 4225), {"M": 64, "N": 64}, dtype="float16", strategy="adaptive")
    device = opened()
    device.burn_in = lambda: None
    run = run_sweep(suite_of(axis, processes=1, most_blocks=24), device, tmp_path / "r")
    assert run.points > 64 and run.failed == 0
    dims = len(device.captures.found)
    assert run.points < dims <= gpu.captures < 1.15 * dims


def test_n4_what_lies_in_memory_that_an_arena_left_is_captured_anew(gpu):
    """Else dims captured before and after would differ by their address."""
    device = opened()
    device.session(slots(64, 80)).close()
    session = device.session(slots(64, 80, 8192))
    weights = {
        one.run._work.calls[0].__closure__[1].cell_contents[1].untyped_storage()._cdata
        for one in session._captured.values()
    }
    assert len(weights) == 1 and len(times(session, 0, 1, 2)) == 3


@pytest.mark.parametrize("later", [(64, 80, 96, 112, 128, 144), (144,)])
def test_n4_a_later_round_has_as_many_calls_a_run_as_the_first(gpu, later):
    """Whether it opens all dims of the curve anew or the new ones alone."""
    gpu.cost = lambda name, operands: 40_000 if operands[0].shape[-1] <= 80 else 110_000
    device = opened()
    first = device.session(slots(64, 80))
    calls = {one.run.calls for one in first._captured.values()}
    assert {one.run.calls for one in device.session(slots(*later))._captured.values()} == calls
    other = device.session(slots(112, 144, m=128))  # another curve, with runs of its own
    assert {one.run.calls for one in other._captured.values()} != calls


KINDS = [
    ("linear", {"M": 64, "N": 64, "K": 64}, {"bias": True}),
    ("linear", {"M": 64, "N": 64, "K": 64}, {"bias": True, "layout": "nn"}),
    ("linear", {"M": 64, "N": 64, "K": 64}, {"cache": "cold", "bias": True}),
    ("attention", {"heads": 4, "q_len": 64, "head_dim": 64}, {"mask": "float"}),
    ("attention", {"heads": 4, "q_len": 64, "head_dim": 64}, {"cache": "cold", "layout": "bshd"}),
    ("bmm", {"batch": 4, "M": 64, "N": 64, "K": 64}, {"layout": "tn"}),
    ("experts", {"experts": 4, "tokens": 64, "N": 64, "K": 64}, {"call": "loop"}),
    ("row_sum", {"rows": 64, "K": 64}, {}),
    ("row_copy", {"rows": 64, "K": 64}, {}),
]


@pytest.mark.parametrize(("operator", "dims", "flags"), KINDS)
@pytest.mark.parametrize("replicate", [False, True])
def test_n6_operands_of_a_call_share_no_memory(gpu, operator, dims, flags, replicate):
    """The simulated GPU refuses a kernel whose operands overlap, from the warm-up on."""
    point = operators.point(operator, dims, "float16", flags)
    session = opened().session([Slot(point, replicate)])
    assert not session.failed and len(times(session, 0)) == 1


def test_n6_a_call_that_is_given_one_piece_of_memory_twice_is_refused():
    x = torch.randn(64, 64)
    made = Arenas(torch.device("cpu")).place(Prepared(torch.mm, (x, x[8:16])), False, False, 0)
    with pytest.raises(MeasurementError, match="operands 0 and 1 of a call share memory"):
        made.bind()


def test_n7_dims_of_a_curve_are_timed_in_runs_of_one_length(gpu):
    """Near 100 µs a rough time that is a per cent off made runs of one call and of two, which
    differed by half of what a run's events add."""
    gpu.jitter = 0.02
    gpu.cost = lambda name, operands: 99_500
    session = opened().session(
        [*slots(*range(64, 96)), *(Slot(linear(k), True) for k in range(64, 96))]
    )
    assert len({one.run.calls for one in session._captured.values()}) == 1
    gpu.jitter = 0.0
    text = times(session, *range(64))
    assert max(text.values()) - min(text.values()) < EVENT_NS / 1e3 / 2


@pytest.mark.parametrize("driver", ["580.65.06", "580.159.04"])
def test_n8_a_slowdown_is_read_from_the_drivers_own_counter(gpu, driver):
    """The numbers of these counters are, to other drivers, settings of power smoothing."""
    gpu.driver = driver
    reader = Telemetry(0)
    assert "hardware thermal slowdown" in reader.slowed_ns()
    before = reader.slowed_ns()
    gpu.synchronisations += 1_000
    assert reader.slowed_since(before, 0.05) == ""
    gpu.slowed_ns += 10_000_000
    assert reader.slowed_since(before, 0.05) == "software power cap"
    assert reader.slowed_since(before, 10.0) == ""  # 10 ms of ten seconds
    assert reader.slowed_since(reader.slowed_ns(), 0.05) == ""  # it has not grown since


def test_n8_a_power_capped_block_says_so(gpu):
    gpu.heavy, gpu.power_cap = lambda name, operands: name == "linear", 0.2
    gpu.cost = lambda name, operands: 400_000
    session = opened().session(slots(1024, 1040, m=1024, n=1024))
    for _ in range(200):
        block = session.block([0, 1])
    assert block.throttled == "software power cap"


def test_n9_a_trace_of_ones_own_survives_a_tracer_that_drops_the_first_records(gpu):
    gpu.loses = lambda events, traces: events[40:]
    x = torch.ones(64)
    for _ in range(3):
        assert [event.name for event in opened().tracer.during(lambda: x.add_(1))] == ["add_"]


def test_n10_a_call_without_memory_in_a_trace_costs_its_own_names_only(gpu):
    gpu.fails = lambda name, operands: (
        torch.cuda.OutOfMemoryError("CUDA out of memory.")
        if gpu._tracing and name == "linear" and operands[0].shape[1] == 80
        else None
    )
    device = opened()
    session = device.session(slots(64, 80, 96))
    assert set(session.kernels()) == {0, 2} and device.tracer.why_not == "" and not session.failed
    gpu.fails = lambda name, operands: None
    assert set(device.session(slots(80)).kernels()) == {0}  # asked again: it was not known


def test_n11_making_a_curve_ready_may_take_longer_the_more_slots_it_has(monkeypatch):
    """Each new shape of attention costs cuDNN 0.4 s."""
    asked = []
    device = object.__new__(IsolatedDevice)
    device._timeout_s, device._sessions, device.generation, device._kernels = 60.0, 0, 0, {}
    opened = SimpleNamespace(kernels={})
    monkeypatch.setattr(device, "_running", lambda: None)
    monkeypatch.setattr(
        device, "_ask_for_slots", lambda message, limit_s: asked.append(limit_s) or opened
    )
    monkeypatch.setattr("gacprof.devices.worker._RemoteSession", lambda *_: None)
    for count in (1, SLOTS_IN_TIME, 4 * SLOTS_IN_TIME):
        device.session(slots(*range(64, 64 + count)))
    assert asked == [60.0, 60.0, 240.0]


def test_n11_plans_are_made_before_anything_is_timed(gpu):
    gpu.plan_ns = 440_000_000
    point = operators.point("attention", {"heads": 4, "q_len": 64, "head_dim": 64}, "float16")
    session = opened().session([Slot(point)])
    assert gpu.plans == 1 and times(session, 0)[0] < 50


def test_n12_a_process_traces_no_point_that_an_earlier_one_has_named(gpu):
    first = opened()
    text = first.session(slots(64, 80)).kernels()
    later = opened()
    later.learn({linear(k): text[place] for place, k in enumerate((64, 80))})
    assert later.session(slots(64, 80)).kernels() == text and gpu.traces == 1
    assert set(later.session(slots(64, 96)).kernels()) == {0, 1} and gpu.traces == 2
