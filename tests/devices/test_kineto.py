"""Traces: what of their events counts, and what of a call's they tell."""

import pytest
import torch
from simulated_gpu import SPIN, kineto_event

from gacprof.core.errors import MeasurementError
from gacprof.devices.kineto import Traced, calls, device_events, recorded, span_us, trace, typical


def events(*names_and_times):
    return [Traced(name, start, end) for name, start, end in names_and_times]


TWO_CALLS = events(
    ("vectorized_elementwise_kernel", 0, 40_000),
    (SPIN, 41_000, 61_000), ("splitk", 61_500, 71_500), ("reduce", 72_000, 74_000),
    (SPIN, 74_100, 75_000), ("Memset (Device)", 75_100, 115_000),
    (SPIN, 116_000, 136_000), ("splitk", 136_500, 147_500), ("reduce", 148_000, 150_000),
    (SPIN, 150_100, 151_000),
)  # fmt: skip


def test_a_call_is_what_lies_between_its_marks():
    found = calls(reversed(TWO_CALLS), expected=2)
    assert [[e.name for e in call] for call in found] == [["splitk", "reduce"]] * 2
    assert [span_us(call) for call in found] == [12.5, 13.5]


@pytest.mark.parametrize(
    ("left", "message"),
    [
        (TWO_CALLS[:1] + TWO_CALLS[2:], "lost events: 3 marks for 2 calls"),
        (TWO_CALLS[:6] + TWO_CALLS[7:], "lost events: 3 marks for 2 calls"),
        ([event for event in TWO_CALLS if event.name == SPIN], "2 calls without any work"),
        ([], "may lack permission, or another profiler"),  # and not taken for a loss
    ],
)
def test_a_trace_that_lost_marks_or_work_is_refused(left, message):
    with pytest.raises(MeasurementError, match=message):
        calls(left, expected=2)


def test_of_unlike_calls_what_most_of_them_did_counts_and_of_those_the_fastest():
    first, second = calls(TWO_CALLS, 2)
    lost_one = first[1:]
    assert typical([second, lost_one, first]) == first
    assert typical([lost_one, second]) == second  # as many one as the other: the later
    assert typical([(), first]) == first
    assert typical([(), ()]) == ()


def test_of_a_trace_only_what_the_device_did_counts():
    host = torch.autograd.DeviceType.CPU
    found = device_events(
        [
            kineto_event("cudaLaunchKernel", 5, 10, host),
            kineto_event("nvjet_hsh_128x256", 20, 30),
            kineto_event("Activity Buffer Request", 25, 900, host),
            kineto_event("Stream Sync", 20, 90, activity_type=lambda: "cuda_sync"),
        ]
    )
    assert found == [Traced("nvjet_hsh_128x256", 20, 50)]


def test_kinetos_own_events_can_be_read():
    """On a CPU nothing runs on a device, but the events are Kineto's."""
    with torch.autograd.profiler.profile(use_kineto=True) as traced:
        torch.ones(8) + 1
    events = traced.kineto_results.events()
    assert "aten::add" in {event.name() for event in events}
    assert device_events(events) == []
    cpu = [e for e in events if e.name() == "aten::add"]
    assert all(e.start_ns() > 0 and e.duration_ns() > 0 for e in cpu)


def test_a_machine_that_cannot_trace_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.warns(UserWarning, match="CUDA"), pytest.raises(MeasurementError, match="profiler"):
        recorded(lambda: None)
    with pytest.raises(MeasurementError, match="there is no CUDA device"):
        trace(lambda: None)
