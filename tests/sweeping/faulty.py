"""A device whose points misbehave by their K: it is opened in worker processes by the tests."""

from __future__ import annotations

import os
import signal
import time

from gacprof.measure.recorded import RecordedDevice

RAISES, HANGS, KILLED, OUT_OF_MEMORY, SPOILS, EXITS = 101, 102, 103, 104, 105, 106


def answer(point, repeats):
    match point.dim["K"]:
        case 101:
            raise TypeError("this operator is broken")
        case 102:
            time.sleep(600)
        case 103:
            os.kill(os.getpid(), signal.SIGKILL)
        case 104:
            raise MemoryError
        case 105:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        case 106:
            os._exit(3)
    return [float(os.getpid())] * repeats


def open_faulty() -> RecordedDevice:
    return RecordedDevice(answer)


def open_nothing() -> RecordedDevice:
    raise RuntimeError("no such device")


class Fussy(RecordedDevice):
    """Refuses a product as cuBLAS does, and knows that its context is none the worse for it."""

    def usable(self) -> bool:
        return True


def refusing(point, repeats):
    if point.dim["K"] % 8:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul`")
    return [float(os.getpid())] * repeats


def open_fussy() -> RecordedDevice:
    return Fussy(refusing)


class Cold(RecordedDevice):
    def burn_in(self) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 32.00 MiB.\nSee …")


def open_cold() -> RecordedDevice:
    return Cold(answer)
