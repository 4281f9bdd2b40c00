"""Trace the kernels of calls by torch.profiler, joined to the calls by correlation ids.

A launch lies within the label of its call by the host's clock, and its kernel carries the same id.
The device's clock is not used: CUPTI 13.0 gives the first kernels of a process's n-th session,
about n of them, times of another clock (pytorch/pytorch#192021).
"""

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from gacprof.core.points import KernelRun
from gacprof.devices.device import UNTRACED

LABEL = "gacprof call "
PREFIX = 256  # kernels of no meaning at the head of a session, for CUPTI 13.0 to lose
ATTEMPTS = 3  # sessions in which a call's kernels may be seen
LAUNCH = re.compile(r"(cuda|cu|hip)(Module)?Launch")  # a function whose kernel has to be seen
HOST_CALL = re.compile(r"(cuda|cu|hip)[A-Z]")
KINETO_SETTINGS = {
    "KINETO_LOG_LEVEL": "6",  # no lines on stderr
    # CUPTI stays attached: attaching it again crashes where there are CUDA graphs.
    "TEARDOWN_CUPTI": "0",
    "DISABLE_CUPTI_LAZY_REINIT": "1",
}


def traced_kernels(calls: Sequence[Callable[[], object]]) -> list[tuple[KernelRun, ...]]:
    """Trace each call; return its kernels as launched, none where some were not seen."""
    kernels: list[tuple[KernelRun, ...]] = [()] * len(calls)
    for _ in range(ATTEMPTS):
        missing = [index for index, runs in enumerate(kernels) if not runs]
        if not missing:
            break
        seen = kernels_by_label(session_events([calls[i] for i in missing]), len(missing))
        for index, runs in zip(missing, seen, strict=True):
            kernels[index] = runs
    return kernels


def session_events(calls: Sequence[Callable[[], object]]) -> Sequence[Any]:
    """Return the events of one session in which every call is made once, under a label."""
    for name, value in KINETO_SETTINGS.items():  # read when Kineto is first used
        os.environ.setdefault(name, value)
    if os.environ.get(UNTRACED):
        return []
    try:
        scratch = torch.zeros(1, device="cuda")
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            for _ in range(PREFIX):
                scratch.add_(1)
            for number, call in enumerate(calls):
                with record_function(f"{LABEL}{number}"), suppress(RuntimeError, ValueError):
                    call()
            torch.cuda.synchronize()
    except (RuntimeError, AssertionError):  # the latter where CUPTI is missing
        return []
    results: Any = profiler.profiler
    return results.kineto_results.events()


def kernels_by_label(events: Sequence[Any], count: int) -> list[tuple[KernelRun, ...]]:
    """Return the kernels launched within each label; none where a launch lacks its kernel."""
    labels: list[tuple[int, int, int]] = []
    called_ns: dict[int, int] = {}  # by correlation id, when the host called for it
    launches: set[int] = set()
    operator_ns: dict[int, int] = {}
    kernels: dict[int, list[KernelRun]] = {}
    operator_of: dict[int, int] = {}
    for event in events:
        name, correlation = event.name(), event.correlation_id()
        if event.device_type() != torch.autograd.DeviceType.CPU:
            if not name.startswith(LABEL):  # the label's own range on the device's time line
                run = KernelRun(name, event.duration_ns() / 1e3)
                kernels.setdefault(correlation, []).append(run)
                operator_of[correlation] = event.linked_correlation_id()
        elif HOST_CALL.match(name):
            called_ns[correlation] = event.start_ns()
            if LAUNCH.match(name):
                launches.add(correlation)
        else:
            start_ns = operator_ns[correlation] = event.start_ns()
            if name.startswith(LABEL):
                labels.append((start_ns, start_ns + event.duration_ns(), int(name[len(LABEL) :])))
    # A launch that is not in the trace: its kernel belongs to the operator that it is linked to.
    for correlation in kernels.keys() - called_ns.keys():
        if operator_of[correlation] in operator_ns:
            called_ns[correlation] = operator_ns[operator_of[correlation]]
    runs: list[list[KernelRun]] = [[] for _ in range(count)]
    lost, incomplete = launches - kernels.keys(), set()
    labels.sort()
    starts = [start for start, _, _ in labels]
    for correlation, start_ns in sorted(called_ns.items(), key=lambda call: call[1]):
        place = bisect_right(starts, start_ns) - 1
        if place < 0 or start_ns > labels[place][1]:
            continue
        number = labels[place][2]
        runs[number] += kernels.get(correlation, [])
        if correlation in lost:
            incomplete.add(number)
    return [() if number in incomplete else tuple(seen) for number, seen in enumerate(runs)]
