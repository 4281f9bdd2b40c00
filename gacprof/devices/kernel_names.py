"""Names of the kernels that calls launch on a GPU, by torch's profiler (CUPTI)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

LABEL = "gacprof call "
APART_S = 50e-6
"""Between a label and what it is of: the device's clock may be off by some microseconds."""
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
    for all where nothing can be traced."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    scratch = torch.zeros(1, device="cuda")
    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            for _ in range(PREFIX):
                scratch.add_(1)
            for number, call in enumerate(calls):
                torch.cuda.synchronize()
                time.sleep(APART_S)
                with record_function(f"{LABEL}{number}"):
                    time.sleep(APART_S)
                    call()
            torch.cuda.synchronize()
            time.sleep(APART_S)
    except (RuntimeError, AssertionError):  # the latter where CUPTI is missing
        return [()] * len(calls)
    results: Any = profiler.profiler
    return names_by_label(results.kineto_results.events(), len(calls))


def names_by_label(events: Sequence[Any], count: int) -> list[tuple[str, ...]]:
    """Names of what the device began to do after each of ``count`` labels and before the next."""
    names: list[list[str]] = [[] for _ in range(count)]
    number = -1
    for event in sorted(events, key=lambda event: event.start_ns()):
        on_host = event.device_type() == torch.autograd.DeviceType.CPU
        if event.name().startswith(LABEL) and on_host:
            number = int(event.name().removeprefix(LABEL))
        elif not on_host and number >= 0 and not event.name().startswith(LABEL):
            names[number].append(event.name())
    return [tuple(call_names) for call_names in names]
