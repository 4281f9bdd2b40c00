"""A device whose points misbehave by their K: it is opened in worker processes by the tests."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from gacprof.core.errors import MeasurementError

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from recorded_device import RecordedDevice, RecordedSession

RAISES, HANGS, KILLED, OUT_OF_MEMORY, SPOILS, EXITS = 101, 102, 103, 104, 105, 106


def answer(point):
    match point.dim["K"]:
        case 101:
            raise TypeError("this operator is broken")
        case 102:
            time.sleep(600)
        case 103:
            os.kill(os.getpid(), signal.SIGKILL)
        case 104:
            raise MeasurementError("out of memory")
        case 106:
            os._exit(3)
    return float(os.getpid())


class Faulty(RecordedDevice):
    """Its context is lost for good by one of its points, as CUDA's is by a stray pointer."""

    def __init__(self, answer=answer) -> None:
        super().__init__(answer)
        self._context_lost = False

    def usable(self) -> bool:
        return not self._context_lost

    def session(self, slots, reuse_bytes=0):
        return RecordedSession(slots, self._or_spoil)

    def _or_spoil(self, point):
        if point.dim["K"] == SPOILS or self._context_lost:
            self._context_lost = True
            raise MeasurementError("CUDA error: an illegal memory access was encountered")
        return self._answer(point)


def open_faulty() -> RecordedDevice:
    return Faulty()


def open_healthy() -> RecordedDevice:
    return RecordedDevice(lambda point: float(os.getpid()))


def open_noting(file: str) -> RecordedDevice:
    """Notes in a file that it was opened, and by which process."""
    with Path(file).open("a") as opened:
        opened.write(f"{os.getpid()}\n")
    return open_healthy()


class Learning(RecordedDevice):
    """Names each kernel after how many points were named before."""

    def learn(self, kernels):
        self._kernels = lambda point: (f"after {len(kernels)}",)


def open_learning() -> RecordedDevice:
    return Learning(lambda point: 1.0)


def open_dying() -> RecordedDevice:
    """Dies of no point in particular: after fifty calls, whatever they are."""
    calls = iter(range(50))

    def answer(point):
        if next(calls, None) is None:
            os._exit(3)
        return float(os.getpid())

    return RecordedDevice(answer)


def open_nothing() -> RecordedDevice:
    raise RuntimeError("no such device")


def refusing(point):
    if point.dim["K"] % 8:
        raise MeasurementError(
            "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul`"
        )
    return float(os.getpid())


def open_fussy() -> RecordedDevice:
    return RecordedDevice(refusing)


class Cold(RecordedDevice):
    def burn_in(self) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 32.00 MiB.\nSee …")


def open_cold() -> RecordedDevice:
    return Cold(answer)
