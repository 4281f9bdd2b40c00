"""Run a command on a virtual GPU, for its process tree alone, like ``xvfb-run``; within one that
runs there, the kernel launches that it noted, as values."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

from gacprof.core.errors import GacprofError
from gacprof.virtual.build import find_torch, libraries
from gacprof.virtual.profiles import profile

DRIVER_SIGNS = ("dev/nvidia*", "proc/driver/nvidia", "dev/dxg")
"""What a machine with an NVIDIA driver has, from the root on; the last one is WSL's."""


def real_driver(root: Path = Path("/")) -> list[Path]:
    """Return the signs of a real NVIDIA driver on this machine."""
    return [*chain.from_iterable(sorted(root.glob(sign)) for sign in DRIVER_SIGNS)]


def environment(gpu: str, python: Path) -> dict[str, str]:
    """Return the environment of a process tree on a virtual GPU."""
    files = libraries(find_torch(python))
    folder = str(files[0].parent)
    device = profile(gpu)
    variables = os.environ | {
        "GACPROF_VIRTUAL": device.gpu,  # whatever is made there is to say that it is virtual
        "GACPROF_VIRTUAL_DEVICE": device.device_text,
        "TRITON_LIBCUDA_PATH": folder,
        "CUDA_VISIBLE_DEVICES": "0",
    }
    preloads = ":".join(map(str, files))
    lists = {"LD_PRELOAD": preloads, "LD_LIBRARY_PATH": folder, "LIBRARY_PATH": folder}
    for name, paths in lists.items():
        variables[name] = ":".join(filter(None, (paths, os.environ.get(name))))
    return variables


def python_of(command: Sequence[str]) -> Path:
    """Return the python whose PyTorch a command uses: itself, one beside it, or the running one."""
    program = Path(shutil.which(command[0]) or command[0])
    if program.name.startswith("python"):
        return program
    beside = program.with_name("python")
    return beside if beside.exists() else Path(sys.executable)


def virtual(gpu: str, command: Sequence[str], *, force: bool = False) -> int:
    """Run a program on a GPU that is not there: kernels are recorded, not run.

    Results are zeros, and times mean nothing.

    Parameters
    ----------
    gpu
        A GPU that ``gacprof dispatch`` knows: a100, h100, b200, rtx4090 …
    command
        A program and its arguments; it uses the PyTorch that is installed beside it.
    force
        Run it on a machine with a real NVIDIA driver too. The program does not see that GPU.

    Returns
    -------
    The command's exit status.

    Raises
    ------
    GacprofError
        There is a real driver and no ``force``; the GPU is unknown; gcc, CUDA's headers or a
        PyTorch built for CUDA are missing.
    """
    signs = real_driver()
    if signs and not force:
        raise GacprofError(f"{signs[0]} is here, a real NVIDIA driver: a virtual GPU would hide it")
    variables = environment(gpu, python_of(command))
    if signs:
        shadowed = ", ".join(map(str, signs))
        print(f"gacprof: a virtual {gpu} hides {shadowed} from this command", file=sys.stderr)
        variables["GACPROF_VIRTUAL_FORCE"] = "1"
    return subprocess.run(list(command), env=variables).returncode


@dataclass(frozen=True)
class Launch:
    """A kernel launch; ``kernel`` is a symbol or, of a product that cuBLAS was asked for, a line
    that begins with "cublas"; ``shared_bytes`` is dynamic, of a block."""

    kernel: str
    grid: tuple[int, int, int]
    shared_bytes: int
    replayed: bool


class _Launch(ctypes.Structure):
    """``struct gacprof_launch`` of virtual.h."""

    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("cluster", ctypes.c_uint * 3),
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
        # copied: after the next clear the driver writes other launches there
        kernel, grid = launch.kernel.decode(), tuple(launch.grid)
        noted.append(Launch(kernel, grid, launch.shared_bytes, bool(launch.replay)))
    return noted
