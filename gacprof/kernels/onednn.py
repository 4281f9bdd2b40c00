"""Which CPU implementation serves a point: what oneDNN and MKL report in verbose mode.

oneDNN names its implementation (``brg_matmul:avx512_core_bf16``), which is a tier. MKL, which
serves fp32 products on x86, names only its routine (``SGEMM``); the rest of PyTorch reports
nothing. A child process runs each point once with both switched to verbose, because they
write to standard output from C and cannot be silenced or caught within a process.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gacprof.core import programs
from gacprof.core.errors import MeasurementError
from gacprof.core.points import Point

SECONDS_PER_POINT = 30
_MARK = "gacprof-point"
_ONEDNN = re.compile(r"^(?:one)?dnnl?_verbose,")
_MKL = re.compile(r"^MKL_VERBOSE (\w+)\(([^)]*)\)")


@dataclass(frozen=True)
class LibraryCall:
    """One report: ``library`` is ``oneDNN`` or ``MKL``, ``implementation`` what it names."""

    library: str
    primitive: str
    implementation: str
    detail: str


@dataclass(frozen=True)
class CpuImplementation:
    """What served one point. ``calls`` is empty where neither library reported; ``reason``
    then says why."""

    point: Point
    calls: tuple[LibraryCall, ...]
    reason: str = ""

    @property
    def mechanism(self) -> str | None:
        """``oneDNN brg_matmul:avx512_core_bf16``; None where nothing was reported."""
        named = dict.fromkeys(f"{call.library} {call.implementation}" for call in self.calls)
        return " + ".join(named) or None

    def as_dict(self) -> dict[str, Any]:
        return {
            "point": str(self.point),
            "mechanism": self.mechanism,
            "calls": [asdict(call) for call in self.calls],
            "reason": self.reason,
        }


SILENT = (
    "neither oneDNN nor MKL reported: a kernel of PyTorch's own served, or one that keeps quiet"
)


def implementations(points: Sequence[Point]) -> list[CpuImplementation]:
    """Run each point once on the CPU, in a process of its own, and read what was reported.

    Raises :class:`MeasurementError` where that process cannot run at all. A point that fails
    comes back with its reason.
    """
    asked = [[p.operator, p.dim, p.dtype, p.flag] for p in points]
    command = [sys.executable, "-m", "gacprof.kernels.onednn"]
    done = programs.run(command, 60 + SECONDS_PER_POINT * len(points), json.dumps(asked))
    if done.failure:
        raise MeasurementError(f"the CPU's verbose run {done.failure}")
    return read(points, done.output)


def read(points: Sequence[Point], text: str) -> list[CpuImplementation]:
    """Sort the verbose output of a run over ``points`` by point."""
    parts = re.split(rf"^{_MARK} (\d+) ?(.*)$", text, flags=re.MULTILINE)[1:]
    found = {
        int(index): (reason, calls(body))
        for index, reason, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }
    result = []
    for index, point in enumerate(points):
        reason, made = found.get(index, ("the run ended before this point", []))
        result.append(CpuImplementation(point, tuple(made), reason or ("" if made else SILENT)))
    return result


def calls(text: str) -> list[LibraryCall]:
    """The executions that verbose lines of oneDNN 1 to 3 and of MKL report, in order."""
    made = []
    for line in text.splitlines():
        fields = line.split(",")
        if _ONEDNN.match(line) and "exec" in fields:
            at = fields.index("exec")
            if len(fields) > at + 3 and fields[at + 2] != "reorder":
                detail = ",".join(fields[at + 4 :])
                made.append(LibraryCall("oneDNN", fields[at + 2], fields[at + 3], detail))
        elif match := _MKL.match(line):
            made.append(LibraryCall("MKL", match.group(1).lower(), match.group(1), match.group(2)))
    return made


def _child() -> None:
    """Read points from standard input, run them verbosely. Output is for :func:`read`."""
    import contextlib
    import ctypes
    import os

    import torch

    from gacprof import operators

    libc = ctypes.CDLL(None)
    for index, (operator, dims, dtype, flags) in enumerate(json.load(sys.stdin)):
        reason = ""
        try:
            point = operators.point(operator, dims, dtype, flags)
            work = operators.get(operator).prepare(point, torch.device("cpu"))
            work()  # what is set up once must not be taken for the point's own work
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".replace("\n", " ")
        libc.fflush(None)
        os.write(1, f"{_MARK} {index} {reason}\n".encode())
        if reason:
            continue
        with contextlib.ExitStack() as verbose:
            for library in (torch.backends.mkldnn, torch.backends.mkl):
                with contextlib.suppress(RuntimeError, AssertionError):
                    verbose.enter_context(library.verbose(1))
            work()
            libc.fflush(None)


if __name__ == "__main__":
    _child()
