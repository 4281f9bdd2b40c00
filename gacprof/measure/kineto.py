"""Device timestamps and kernel names in one traced pass (CUPTI through torch's Kineto).

Each call is put between two marks, short sleeps on the device whose kernel has a name that
nothing else has. What the device did between an opening and a closing mark is the call. Events
are read directly: the profiler's own averages take twenty times as long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from gacprof.errors import MeasurementError

MARK = "spin_kernel"
"""What ``torch.cuda._sleep`` launches (aten/src/ATen/cuda/Sleep.cu)."""


QUIET = "6"
"""Above all of Kineto's levels: at its default, torch 2.13 writes two lines to stderr a trace."""

NO_WORK = ("cuda_sync", "cuda_event", "gpu_user_annotation", "overhead")
"""Activity types (ActivityType.h) filed under the device though nothing runs there."""

EDGE_S = 100e-6
"""Kineto drops what began before its window or ended after it. The window's ends are of the
host's clock, events of the device's converted to it: these may be off by some microseconds."""

NO_EVENTS = (
    "the tracer (CUPTI) gave no device events: it may lack permission, or another profiler may "
    "be attached; KINETO_LOG_LEVEL=1 in the environment lets it say more"
)


@dataclass(frozen=True)
class Traced:
    """One thing the device did: a kernel, a copy or a memset. Nanoseconds."""

    name: str
    start_ns: int
    end_ns: int


def trace(run: Callable[[], object]) -> list[Traced]:
    """All that the device did during ``run``, which must synchronise before it returns.

    ``torch.profiler`` wraps the profiler used here in schedules and imports Inductor on its
    first start; neither is of use to a trace of a few milliseconds.

    Raises :class:`MeasurementError` where the profiler cannot be used.
    """
    from torch.autograd.profiler import profile

    os.environ.setdefault("KINETO_LOG_LEVEL", QUIET)  # read when Kineto is first used
    with ExitStack() as session:
        try:
            traced = session.enter_context(
                profile(use_cpu=False, use_device="cuda", use_kineto=True)
            )
        except (AttributeError, AssertionError) as error:  # the latter where CUPTI is missing
            raise MeasurementError(f"torch's profiler gives no device events: {error}") from None
        time.sleep(EDGE_S)
        run()
        time.sleep(EDGE_S)
    if traced.kineto_results is None:
        raise MeasurementError("torch's profiler gives no device events: it kept no results")
    return device_events(traced.kineto_results.events())


def device_events(events: Iterable[Any]) -> list[Traced]:
    """Of Kineto's events, what ran on the device. Launches and profiler overhead are the host's."""
    import torch

    cuda = torch.autograd.DeviceType.CUDA
    return [
        Traced(e.name(), e.start_ns(), e.start_ns() + e.duration_ns())
        for e in events
        if e.device_type() == cuda and e.duration_ns() > 0 and _kind(e) not in NO_WORK
    ]


def _kind(event: Any) -> str:
    """Kineto's name of its activity type; empty where PyTorch does not hand it on."""
    told: Callable[[], str] | None = getattr(event, "activity_type", None)
    return told() if told else ""


def calls(events: Iterable[Traced], expected: int) -> list[Sequence[Traced]]:
    """What each of ``expected`` calls did, in order: all between its opening and closing mark.

    Raises :class:`MeasurementError` where marks or work are missing: CUPTI drops events when
    its buffers overflow, and a call that lost one would seem fast.
    """
    marks, within = 0, []
    found: list[Sequence[Traced]] = []
    in_order = sorted(events, key=lambda e: (e.start_ns, e.end_ns))
    if not in_order:
        raise MeasurementError(NO_EVENTS)
    for event in in_order:
        if MARK not in event.name:
            if marks % 2:
                within.append(event)
            continue
        marks += 1
        if marks % 2 == 0:
            found.append(tuple(within))
        within = []
    if marks != 2 * expected or not all(found):
        raise MeasurementError(
            f"the trace lost events: {marks} marks for {expected} calls, "
            f"{sum(not call for call in found)} calls without any work"
        )
    counts = {len(call) for call in found}
    if len(counts) > 1:
        raise MeasurementError(
            f"the trace lost events: the same call launched {min(counts)} kernels once "
            f"and {max(counts)} another time"
        )
    return found


def span_us(call: Sequence[Traced]) -> float:
    """From the start of a call's first kernel to the end of its last, gaps included."""
    return (max(e.end_ns for e in call) - min(e.start_ns for e in call)) / 1e3
