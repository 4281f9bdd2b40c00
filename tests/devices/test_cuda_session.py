"""A curve on a simulated GPU: what a session makes ready, what its blocks tell, what may fail."""

from itertools import pairwise

import pytest
import torch
from simulated_gpu import EVENT_NS, GAP_NS, MISS_NS, PAGE, opened

from gacprof import operators
from gacprof.core.errors import MeasurementError
from gacprof.devices.cuda_graph import GraphRun, LaunchedRun
from gacprof.devices.device import Slot

OUT_OF_MEMORY = torch.cuda.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB …"
)
GRAPH_US = 10.0 + GAP_NS / 1e3
"""Of a call in a graph: the kernel, and the gap before it."""


def linear(k, m=64, n=64, dtype="float32", **flags):
    return operators.point("linear", {"M": m, "N": n, "K": k}, dtype, flags)


def slots(*sizes, **flags):
    return [Slot(linear(k, **flags)) for k in sizes]


def when(k, error):
    """Raises for products over that K."""
    return lambda name, operands: error if name == "linear" and operands[0].shape[1] == k else None


def by_slot(block):
    return {timed.slot: timed.us for timed in block.calls}


# --- blocks --------------------------------------------------------------------------------------


def test_a_block_calls_every_slot_once_in_its_order_and_waits_once(gpu):
    gpu.cost = lambda name, operands: 100 * operands[0].shape[-1]
    session = opened().session(slots(64, 80, 96))
    waited = gpu.synchronisations
    block = session.block([2, 0, 1])
    assert [timed.slot for timed in block.calls] == [2, 0, 1]
    assert gpu.synchronisations == waited + 1
    times = by_slot(block)
    assert [times[0], times[1], times[2]] == pytest.approx([6.9, 8.5, 10.1], rel=0.01)
    assert not block.failed and not session.failed and not session.remarks()
    assert [timed.slot for timed in session.block([1]).calls] == [1]


def test_no_gap_of_the_host_is_timed_in_a_graph_nor_around_launches(gpu):
    """A launch costs the host 5 µs, a kernel the device 1."""
    gpu.cost = lambda name, operands: 1_000
    for timer in ("cuda-graph", "cuda-events"):
        (us,) = by_slot(opened(timer).session(slots(64)).block([0])).values()
        assert us == pytest.approx(1.5, abs=0.05)


def test_warm_operands_are_in_cache_whatever_ran_before(gpu):
    """Also where a run is of a single call, and the slot before has read everything else."""
    gpu.cost = lambda name, operands: 200_000
    session = opened().session([Slot(linear(64)), Slot(linear(64, cache="cold"))])
    warm, cold = by_slot(session.block([1, 0])), by_slot(session.block([0, 1]))
    assert warm[0] == cold[0] == pytest.approx(200.8)


@pytest.mark.parametrize(("costs_us", "calls"), [
    ([0.5, 0.5, 0.5], 64), ([10, 10, 10], 14), ([900, 900, 900], 1), ([10, 10, 300], 3),
])  # fmt: skip
def test_runs_are_long_enough_for_events_and_bounded(gpu, costs_us, calls):
    sizes = dict(zip((64, 80, 96), costs_us, strict=True))
    gpu.cost = lambda name, operands: 1e3 * sizes.get(operands[0].shape[-1], 1)
    session = opened().session(slots(*sizes))
    assert {session._captured[i].run.calls for i in range(3)} == {calls}


def calls_of(session):
    return {one.run.calls for one in session._captured.values()}


def test_sessions_share_what_nodes_a_device_can_hold(gpu, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("gacprof.devices.cuda.NODE_BUDGET", 60)
        assert calls_of(opened().session(slots(64, 65, 66))) == {14}
        assert calls_of(opened().session(slots(64, 65, 66, 67, 68, 69))) == {4}
    monkeypatch.setattr("gacprof.devices.cuda.DEVICE_NODES", 80)
    device = opened()
    made = [device.session(slots(k, m=k)) for k in (64, 80, 96)]  # of a curve each
    assert all(calls_of(session) == {14} for session in made) and device.graphs.nodes == 60
    made.append(device.session(slots(112, m=112)))
    assert calls_of(made[-1]) == {4}
    for session in made:
        session.close()
    device.session(slots(128, m=128))
    assert device.graphs.nodes == 20


def test_heavy_points_rest_as_long_as_they_work(gpu):
    """Arithmetic beyond the cache: else the power cap makes a call as fast as its predecessor
    lets it be."""
    heavy, light = linear(1024, m=1024, n=1024), linear(1024, m=1, n=1024)
    session = opened().session([Slot(heavy), Slot(light)])
    longest = max(event.end_ns - event.start_ns for event in gpu.log if "spin" in event.name)
    worked_us = session._captured[0].run.total_us()
    assert longest == pytest.approx(1e3 * worked_us, rel=0.05)


# --- operands ------------------------------------------------------------------------------------


def addresses(gpu, name="linear"):
    return [ranges for launched, ranges in gpu.launched if launched == name]


def test_cold_weights_are_not_in_cache_in_any_block(gpu):
    pages = 64 * 64 * 4 // PAGE
    session = opened().session([Slot(linear(64, cache="cold")), *slots(64)])
    for order in ([0, 1], [1, 0], [0, 1]):
        times = by_slot(session.block(order))
        assert times[1] == pytest.approx(GRAPH_US + EVENT_NS / 1e3 / 14)
        assert times[0] >= GRAPH_US + pages * MISS_NS / 1e3


@pytest.mark.parametrize(
    ("point", "weights"),
    [
        (linear(64, cache="cold"), 1),
        # keys and values of attention, which share an arena, are both what a model reads once
        (operators.point(
            "attention", {"heads": 4, "q_len": 1, "kv_len": 512, "head_dim": 64}, "float32",
            {"cache": "cold"},
        ), 2),
    ],
    ids=["linear", "attention"],
)  # fmt: skip
def test_every_call_of_a_cold_graph_reads_other_weights(gpu, point, weights):
    gpu.cost = lambda name, operands: 2_000
    session = opened().session([Slot(point)])
    name = "linear" if weights == 1 else "scaled_dot_product_attention"
    captured = addresses(gpu, name)[-session._captured[0].run.calls :]
    read = sorted(operand for ranges in captured for operand in ranges[1:])
    assert len(read) == weights * len(captured) >= 10
    assert all(a + size <= b for (a, size), (b, _) in pairwise(read))
    assert len({ranges[0] for ranges in captured}) == 1  # inputs stay in cache


def test_warm_operands_of_all_sizes_begin_at_one_address_a_replicates_at_another(gpu):
    session = opened().session([*slots(64, 80), Slot(linear(64), replicate=True)])
    begins = {}
    for place, one in session._captured.items():
        before = len(gpu.launched)
        one.run._work.calls[0]()
        (_, ranges) = gpu.launched[before]
        begins[place] = [first for first, _ in ranges]
    assert begins[0] == begins[1]
    for own, replicate in zip(begins[0], begins[2], strict=True):  # other pages, other cache sets
        assert abs(own - replicate) > PAGE and (own - replicate) % PAGE
        assert (own - replicate) % 512 == 0


@pytest.mark.parametrize("timer", ["cuda-graph", "cuda-events"])
def test_a_points_precision_is_set_for_its_calls_and_undone_afterwards(gpu, timer):
    before = torch.backends.cuda.matmul.allow_tf32
    mixed = [Slot(linear(64, dtype=dtype)) for dtype in ("float16", "float32", "tf32")]
    session = opened(timer).session(mixed)
    kernels = [names for _, names in sorted(session.kernels().items())]
    assert kernels == [("linear",), ("linear",), ("linear_tf32",)]
    gpu.log.clear()
    session.block([1, 2])
    named = [event.name for event in gpu.log if event.name.startswith("linear")]
    switch = named.index("linear_tf32")
    assert set(named[:switch]) == {"linear"} and set(named[switch:]) == {"linear_tf32"}
    assert torch.backends.cuda.matmul.allow_tf32 is before


# --- names of kernels -----------------------------------------------------------------------------


@pytest.mark.parametrize(("lost", "traces"), [(50, 1), (100, 2)])
def test_a_trace_that_lost_marks_is_taken_again_with_a_longer_head(gpu, lost, traces):
    """What it loses at its head is of no meaning."""
    gpu.loses = lambda events, traces: events[lost:]
    session = opened().session(slots(64, 80))
    assert session.kernels() == dict.fromkeys(range(2), ("linear",)) and gpu.traces == traces


def test_points_are_traced_once_in_a_process_before_any_capture(gpu):
    captures_then = []
    gpu.loses = lambda events, traces: captures_then.append(gpu.captures) or events
    device = opened()
    first = device.session([*slots(64, 80), Slot(linear(64), replicate=True)])
    again = device.session(slots(80, 64))
    assert gpu.traces == 1 and len(first.kernels()) == 3 and len(again.kernels()) == 2
    assert captures_then == [0]
    assert len(device.session(slots(64, 96)).kernels()) == 2 and gpu.traces == 2


def test_a_process_that_cannot_trace_measures_on_without_names(gpu, monkeypatch):
    gpu.loses = lambda events, traces: []
    device = opened()
    session = device.session(slots(64))
    assert session.kernels() == {} and gpu.traces == 2
    assert len(session.block([0]).calls) == 1
    assert "the tracer (CUPTI) gave no device events" in session.remarks()[0]
    device.session(slots(80))
    assert gpu.traces == 2

    def missing(**_):
        raise AssertionError("CUPTI is not available")

    monkeypatch.setattr(torch.autograd.profiler, "profile", missing)
    session = opened().session(slots(64))
    assert session.block([0]).calls and "CUPTI is not available" in session.remarks()[0]


# --- what may fail --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [RuntimeError, MeasurementError])
def test_a_slot_that_is_refused_fails_alone(gpu, kind):
    gpu.fails = when(80, kind("mat2 must be aligned\nmore"))
    session = opened().session(slots(64, 80, 96))
    assert session.failed == {1: "mat2 must be aligned"}
    block = session.block([2, 1, 0])
    assert set(by_slot(block)) == {0, 2} and block.failed == {1: "mat2 must be aligned"}


def test_a_lack_of_memory_is_told_in_one_line_and_memory_given_back(gpu):
    gpu.fails = when(80, OUT_OF_MEMORY)
    session = opened().session(slots(64, 80))
    assert session.failed == {1: "out of GPU memory (tried to allocate 2.00 GiB)"}
    assert gpu.emptied
    gpu.fails = lambda name, operands: None
    session = opened("cuda-events").session(slots(64, 80))
    gpu.fails = when(80, OUT_OF_MEMORY)  # in a block it fails that slot alone
    block = session.block([1, 0])
    assert list(by_slot(block)) == [0] and "out of GPU memory" in block.failed[1]


def test_memory_that_torch_holds_in_reserve_counts_as_free(gpu):
    device = opened()
    held = [torch.empty(1 << 30, dtype=torch.int8) for _ in range(6)]
    with pytest.raises(MeasurementError, match=r"need 5.0 GiB, the GPU has 2.0 GiB free"):
        device.check_memory(5 << 30)
    del held
    device.check_memory(5 << 30)


def test_what_loses_the_context_is_the_last_to_fail_and_no_slots_fault_in_a_block(gpu):
    def spoil(name, operands):
        if name == "linear" and operands[0].shape[1] == 80:
            gpu.context_lost = True
        return None

    device = opened()
    earlier = device.session(slots(64))
    gpu.fails = spoil
    session = device.session(slots(64, 80, 96))
    assert session.failed == {1: "CUDA error: device-side assert triggered"}
    assert not device.usable()
    with pytest.raises(MeasurementError, match="lost: open the device anew"):
        session.block([0])
    with pytest.raises(MeasurementError, match="failed during a block"):
        earlier.block([0])


@pytest.mark.parametrize("external", [True, False])
def test_a_call_that_no_graph_can_capture_is_timed_by_events_and_says_so(gpu, external):
    gpu.external_events = external
    gpu.refuses_capture = when(80, RuntimeError("operation not permitted when capturing\nmore"))
    session = opened().session(slots(64, 80))
    assert not session.failed
    assert [type(session._captured[i].run) for i in (0, 1)] == [GraphRun, LaunchedRun]
    assert session.remarks() == {
        1: "timed by events, no CUDA graph can capture it: operation not permitted when capturing"
    }
    times = by_slot(session.block([0, 1]))
    assert times[0] == pytest.approx(times[1], rel=0.02)
    assert gpu.ended_allocations == [(0, (0, 1))]  # pytorch/pytorch#180395
    asked = opened("cuda-graph").session(slots(64, 80))  # where a graph was asked for it fails
    assert asked.failed[1].startswith("no CUDA graph can capture it: operation not permitted")


def test_a_call_that_waits_for_the_device_is_never_captured(gpu):
    gpu.fails = lambda name, operands: gpu.waits() if name == "linear" else None
    session = opened().session(slots(80))
    assert isinstance(session._captured[0].run, LaunchedRun) and gpu.captures == 0
    assert "synchronizing CUDA operation" in session.remarks()[0]


def test_without_events_inside_graphs_they_surround_the_replay(gpu):
    gpu.external_events = False
    session = opened().session([*slots(64), Slot(linear(64, cache="cold"))])
    times = by_slot(session.block([1, 0]))
    assert times[0] == pytest.approx(GRAPH_US + EVENT_NS / 1e3 / 14)
    assert times[1] > times[0] + 0.3
