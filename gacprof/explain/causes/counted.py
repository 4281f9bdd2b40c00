"""Causes that hardware counters tell of: load widths, sectors, waves, the old MMA, the host."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from gacprof.explain.causes.case import Case
from gacprof.explain.causes.value import Cause
from gacprof.kernels.ncu import KernelCounters

_EVIDENCE = ("Nsight Compute counters",)
CLEAR_WAVE = 0.1
"""Share of the last wave's slots left empty below which it is not worth naming."""
HOST_SHARE = 0.5
"""Share of the latency outside the device's own time above which the host sets it."""
MORE_SECTORS = 1.1
"""Ratio of L2 sectors to the least possible above which accesses are called broken up."""


def causes(case: Case) -> list[Cause]:
    """What the counters at ``d`` tell, set against those at the reference where there are any."""
    here = case.counters.get(case.d, ())
    there = case.counters.get(case.reference, ())
    if not here:
        return []
    main = max(here, key=lambda launch: launch.values.get("duration_ns") or 0.0)
    other = max(there, key=lambda launch: launch.values.get("duration_ns") or 0.0, default=None)
    return [
        *_load_width(main, other),
        *_sectors(main),
        *_legacy(main),
        *_wave(main),
        *_host(case, here),
    ]


def _load_width(main: KernelCounters, other: KernelCounters | None) -> Iterator[Cause]:
    narrow, wide = _narrowest(main), _narrowest(other) if other else None
    if narrow is None or wide is None or narrow[1] >= wide[1]:
        return
    text = f"loads of {narrow[1]} bytes ({narrow[0]}) instead of {wide[1]} ({wide[0]})"
    yield Cause("load_width", None, text, _EVIDENCE)


def _narrowest(launch: KernelCounters) -> tuple[str, int] | None:
    """The kind of global load that was executed most, and its bytes (TMA counts as 16)."""
    loads = launch.loads
    if not loads:
        return None
    kind = max(loads, key=lambda name: loads[name])
    return kind, 16 if kind == "TMA" else int(kind.split(".")[1])


def _sectors(main: KernelCounters) -> Iterator[Cause]:
    found = main.values.get("l2_theoretical_sectors")
    ideal = main.values.get("l2_ideal_sectors")
    if found and ideal and found / ideal > MORE_SECTORS:
        text = f"{found / ideal:.2f}× the L2 sectors that whole accesses would need"
        yield Cause("l2_sectors", None, text, _EVIDENCE)


def _legacy(main: KernelCounters) -> Iterator[Cause]:
    if main.legacy_mma:
        text = "mma.sync instead of warpgroup MMA, whatever the kernel's name"
        yield Cause("alignment", None, text, _EVIDENCE)


def _wave(main: KernelCounters) -> Iterator[Cause]:
    waves = main.values.get("waves_per_sm")
    if not waves or waves <= 1:
        return
    empty = (math.ceil(waves) - waves) / math.ceil(waves)
    if empty > CLEAR_WAVE:
        text = f"{waves:.2f} waves of blocks: {empty:.0%} of the slots stay empty"
        yield Cause("wave_quantisation", empty, text, _EVIDENCE)


def _host(case: Case, launches: Sequence[KernelCounters]) -> Iterator[Cause]:
    durations = [launch.values.get("duration_ns") for launch in launches]
    if any(duration is None for duration in durations):
        return
    device_us = sum(duration or 0.0 for duration in durations) / 1000
    outside = 1 - device_us / case.latency[case.d]
    if outside > HOST_SHARE:
        text = f"the device works {device_us:.1f} µs; the rest is the host launching"
        yield Cause("launch_bound", outside, text, _EVIDENCE)
