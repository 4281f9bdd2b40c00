"""Kernels belong to the call that launched them, whatever the device's clock says."""

from __future__ import annotations

from dataclasses import dataclass

from torch.autograd import DeviceType

from gacprof.devices.tracing import LABEL, kernels_by_label


@dataclass(frozen=True)
class Event:
    """A record of a trace, as Kineto gives it."""

    event: str
    start: int
    duration: int = 10
    correlation: int = 0
    device: DeviceType = DeviceType.CPU
    linked: int = 0

    def name(self) -> str:
        return self.event

    def start_ns(self) -> int:
        return self.start

    def duration_ns(self) -> int:
        return self.duration

    def correlation_id(self) -> int:
        return self.correlation

    def linked_correlation_id(self) -> int:
        return self.linked

    def device_type(self) -> DeviceType:
        return self.device


def label(number: int, start: int) -> Event:
    return Event(f"{LABEL}{number}", start, 100, correlation=100 + number)


def launch(correlation: int, start: int, function: str = "cudaLaunchKernelExC_v11060") -> Event:
    return Event(function, start, 10, correlation)


def kernel(name: str, correlation: int, start: int, us: float = 2.0) -> Event:
    return Event(name, start, int(us * 1e3), correlation, DeviceType.CUDA)


def names(events: list[Event], count: int) -> list[tuple[str, ...]]:
    return [tuple(run.name for run in runs) for runs in kernels_by_label(events, count)]


def test_a_shifted_device_clock_moves_no_kernel_to_its_neighbour() -> None:
    for shift in (0, -150, -(10**14), 150):
        events = [label(0, 1000), launch(7, 1010), label(1, 1200), launch(8, 1210)]
        events += [kernel("first", 7, 1020 + shift), kernel("second", 8, 1220 + shift)]
        assert names(events, 2) == [("first",), ("second",)]


def test_kernels_stand_in_the_order_of_their_launches() -> None:
    events = [kernel("b", 2, 5), kernel("a", 1, 9), launch(2, 1020), launch(1, 1010)]
    assert names([*events, label(0, 1000)], 1) == [("a", "b")]


def test_a_call_that_lacks_a_kernel_was_not_seen() -> None:
    events = [label(0, 1000), launch(1, 1010), launch(2, 1020, "cuLaunchKernel")]
    assert names([*events, kernel("pad", 1, 1030)], 1) == [()]
    assert names([*events, kernel("pad", 1, 1030), kernel("gemm", 2, 1040)], 1) == [("pad", "gemm")]


def test_what_is_outside_of_labels_counts_for_none() -> None:
    events = [launch(1, 990), label(0, 1000), launch(2, 1050), launch(3, 1150), label(1, 1200)]
    events += [kernel("before", 1, 1), kernel("mine", 2, 2), kernel("after", 3, 3)]
    assert names(events, 2) == [("mine",), ()]


def test_an_operator_of_the_same_number_is_no_launch() -> None:
    events = [label(0, 1000), Event("aten::mm", 1005, 50, 8), launch(9, 1010)]
    assert names([*events, kernel("mm", 9, 1), kernel("other", 8, 1)], 1) == [("mm",)]


def test_a_kernel_whose_launch_is_not_traced_belongs_to_its_operator() -> None:
    events = [label(0, 1000), Event("aten::linear", 1005, 50, 8), Event("aten::mm", 1010, 40, 9)]
    events += [label(1, 1200), launch(1, 1210)]
    events += [Event("nvjet", 5, 10, 4, DeviceType.CUDA, linked=9), kernel("other", 1, 6)]
    events += [Event("stray", 5, 10, 5, DeviceType.CUDA, linked=77)]
    assert names(events, 2) == [("nvjet",), ("other",)]


def test_copies_and_memsets_are_kept_and_may_be_missing() -> None:
    events = [label(0, 1000), launch(1, 1010, "cudaMemsetAsync"), launch(2, 1020)]
    events += [launch(3, 1030, "cudaMemcpyAsync"), kernel("Memset (Device)", 1, 1)]
    [runs] = kernels_by_label([*events, kernel("gemm", 2, 2, us=3.5)], 1)
    assert [(run.name, run.us) for run in runs] == [("Memset (Device)", 2.0), ("gemm", 3.5)]
