"""Kernel launches that a virtual GPU noted, as values. Use it inside a process that runs on one."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

Triple = ctypes.c_uint * 3


@dataclass(frozen=True)
class Launch:
    """A kernel launch. Shapes are (x, y, z); ``shared_bytes`` is dynamic, of a block.

    ``kernel`` is a symbol, as :func:`gacprof.kernels.demangle.readable` reads it; of a product that
    cuBLAS was asked for, a line that begins with "cublas".
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int
    replayed: bool


class _Launch(ctypes.Structure):
    """``struct gacprof_launch`` of virtual.h."""

    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("grid", Triple),
        ("block", Triple),
        ("cluster", Triple),
        ("shared_bytes", ctypes.c_uint),
        ("replay", ctypes.c_uint),
        ("correlation", ctypes.c_uint),
        ("time_ns", ctypes.c_uint64),
    )


@cache
def _driver() -> ctypes.CDLL:
    driver = ctypes.CDLL("libcuda.so.1")
    driver.gacprof_launch_count.restype = ctypes.c_size_t
    driver.gacprof_launch_at.argtypes = (ctypes.c_size_t,)
    driver.gacprof_launch_at.restype = ctypes.POINTER(_Launch)
    return driver


def clear() -> None:
    """Forget the launches noted so far."""
    _driver().gacprof_launch_clear()


def launches() -> list[Launch]:
    """Return the launches since the last :func:`clear`, in order."""
    noted = []
    for index in range(_driver().gacprof_launch_count()):
        launch = _driver().gacprof_launch_at(index).contents
        noted.append(
            Launch(
                kernel=launch.kernel.decode(),
                grid=tuple(launch.grid),
                block=tuple(launch.block),
                cluster=tuple(launch.cluster),
                shared_bytes=launch.shared_bytes,
                replayed=bool(launch.replay),
            )
        )
    return noted
