"""Names of the kernels that calls launch on a GPU, by torch's profiler (CUPTI)."""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.profiler import profile, record_function

LABEL = "gacprof call "
PREFIX = 256
"""Kernels of no meaning at the head of a trace: CUPTI 13.0 gives a trace's first records wrong
times, and Kineto drops those (pytorch/pytorch#192021)."""
SETTINGS = {
    "KINETO_LOG_LEVEL": "6",
    "TEARDOWN_CUPTI": "0",
    "DISABLE_CUPTI_LAZY_REINIT": "1",
}
"""Read from the environment when Kineto is first used: no lines on stderr; CUPTI stays attached,
since attaching it again crashes where there are CUDA graphs."""


def kernel_names(calls: Sequence[Callable[[], object]]) -> list[tuple[str, ...]]:
    """Names of the kernels, copies and memsets of one call of each, in order of their start; empty
    for a call that raises, and for all where nothing can be traced."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    scratch = torch.zeros(1, device="cuda")
    try:
        with profile(use_device="cuda") as profiler:
            for _ in range(PREFIX):
                scratch.add_(1)
            for number, call in enumerate(calls):
                with record_function(f"{LABEL}{number}"):
                    call()
            torch.cuda.synchronize()
    except (RuntimeError, AssertionError):  # the latter where CUPTI is missing
        return [()] * len(calls)
    return names_by_label(profiler.kineto_results.events(), len(calls))


def names_by_label(events: Sequence[Any], count: int) -> list[tuple[str, ...]]:
    """Names of what the device did under each of ``count`` labels: an event of the device is linked
    to the operator that launched it, and that operator began under a label."""
    on_host = [event for event in events if event.device_type() == torch.autograd.DeviceType.CPU]
    labels = [event for event in on_host if event.name().startswith(LABEL)]
    labels.sort(key=lambda event: event.start_ns())
    starts = [event.start_ns() for event in labels]
    begun = {event.correlation_id(): event.start_ns() for event in on_host}
    names: list[list[str]] = [[] for _ in range(count)]
    for event in sorted(events, key=lambda event: event.start_ns()):
        launched_ns = begun.get(event.linked_correlation_id())
        on_device = event.device_type() == torch.autograd.DeviceType.CUDA
        if not on_device or launched_ns is None or event.name().startswith(LABEL):
            continue
        place = bisect.bisect_right(starts, launched_ns) - 1
        if place >= 0:
            number = int(labels[place].name().removeprefix(LABEL))
            names[number].append(event.name())
    return [tuple(call_names) for call_names in names]
