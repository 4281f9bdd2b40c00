"""Locking a GPU's clock for a sweep: lock, verify under load, and always roll back.

Clocks are otherwise never changed by us. Locking needs root (or the driver's permission),
and outlives the process that did it: it is undone on every way out of the context, SIGTERM
and SIGHUP (a closed terminal) included. Only SIGKILL or a power cut leave it;
``nvidia-smi --reset-gpu-clocks`` undoes it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from gacprof.core.errors import MeasurementError

TOLERANCE_MHZ = 30
"""Twice the 15 MHz step of NVIDIA's clocks: what a lock that holds may still be off by."""

LOADS = 20
"""Spells of load until a lock must hold: NVML renews the clock it tells only so often, and a
GPU that idled takes a moment to climb."""

UNDO = "nvidia-smi --reset-gpu-clocks"


@contextmanager
def locked(nvml: Any, handle: Any, mhz: int, load: Callable[[], object]) -> Iterator[None]:
    """Hold the SM clock at ``mhz`` meanwhile. ``load`` keeps the GPU busy until it is checked.

    Raises :class:`MeasurementError` where NVML refuses, or where the clock does not hold; the
    lock is undone before that is raised. Raises it too where undoing is refused.
    """
    with _exit_on_signals():  # before the lock, so that no moment of it is unguarded
        try:
            nvml.nvmlDeviceSetGpuLockedClocks(handle, mhz, mhz)
        except (AttributeError, nvml.NVMLError) as error:
            raise MeasurementError(
                f"the clock cannot be locked at {mhz} MHz ({error}): it needs root and a clock "
                "that 'nvidia-smi -q -d SUPPORTED_CLOCKS' lists; leave --lock-clocks out to "
                "measure at whatever clock the GPU holds"
            ) from None
        try:
            _verify(nvml, handle, mhz, load)
            yield
        finally:
            _undo(nvml, handle)


def _verify(nvml: Any, handle: Any, mhz: int, load: Callable[[], object]) -> None:
    for _ in range(LOADS):
        load()
        try:
            held = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
        except nvml.NVMLError as error:
            raise MeasurementError(
                f"the clock was locked at {mhz} MHz but cannot be read ({error})"
            ) from None
        if abs(held - mhz) <= TOLERANCE_MHZ:
            return
    raise MeasurementError(
        f"the clock was locked at {mhz} MHz but runs at {held} MHz under load "
        "(power or thermal limit?): choose a lower one"
    )


def _undo(nvml: Any, handle: Any) -> None:
    try:
        nvml.nvmlDeviceResetGpuLockedClocks(handle)
    except nvml.NVMLError as error:
        raise MeasurementError(
            f"the clock is still locked, undoing it was refused ({error}): run '{UNDO}' as root"
        ) from None


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP as SystemExit, so that contexts are left properly. Main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    heeded = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in heeded}  # nohup ignores SIGHUP
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
