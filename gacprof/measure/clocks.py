"""Locking a GPU's clock for a sweep: lock, verify under load, and always roll back.

Clocks are otherwise never changed by us. Locking needs root (or the driver's permission),
and outlives the process that did it: it is undone on every way out of the context, SIGTERM
included. Only SIGKILL or a power cut leave it; ``nvidia-smi --reset-gpu-clocks`` undoes it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from gacprof.errors import MeasurementError

TOLERANCE_MHZ = 30
"""Twice the 15 MHz step of NVIDIA's clocks: what a lock that holds may still be off by."""


@contextmanager
def locked(nvml: Any, handle: Any, mhz: int, load: Callable[[], object]) -> Iterator[None]:
    """Hold the SM clock at ``mhz`` meanwhile. ``load`` keeps the GPU busy until it is checked.

    Raises :class:`MeasurementError` where NVML refuses, or where the clock does not hold; the
    lock is undone before that is raised.
    """
    try:
        nvml.nvmlDeviceSetGpuLockedClocks(handle, mhz, mhz)
    except nvml.NVMLError as error:
        raise MeasurementError(
            f"the clock cannot be locked at {mhz} MHz ({error}): it needs root and a clock "
            "that 'nvidia-smi -q -d SUPPORTED_CLOCKS' lists; leave --lock-clocks out to "
            "measure at whatever clock the GPU holds"
        ) from None
    try:
        with _exit_on_sigterm():
            load()
            held = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
            if abs(held - mhz) > TOLERANCE_MHZ:
                raise MeasurementError(
                    f"the clock was locked at {mhz} MHz but runs at {held} MHz under load "
                    "(power or thermal limit?): choose a lower one"
                )
            yield
    finally:
        nvml.nvmlDeviceResetGpuLockedClocks(handle)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """SIGTERM as SystemExit, so that contexts are left properly. Main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
