"""Running Nsight Compute on chosen points, or saying how it could be run.

``ncu`` profiles a child process that runs each point once inside an NVTX range named after
the point's id, so that every launch in the report is known to belong to a point. Clocks are
left alone (``--clock-control none``): counters then belong to the state that was timed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gacprof.errors import MeasurementError
from gacprof.kernels.ncu import KernelCounters, read_report
from gacprof.kernels.ncu_metrics import requested
from gacprof.points import Point

GET_NCU = (
    "Nsight Compute (ncu) is not on this machine: install the CUDA toolkit, or "
    "'nsight-compute' from NVIDIA's package repository, and put ncu on PATH"
)
GET_PERMISSION = (
    "the driver lets only administrators read counters (ERR_NVGPUCTRPERM): run as root, or load "
    "the nvidia module with NVreg_RestrictProfilingToAdminUsers=0; in a container, "
    "add the capability SYS_ADMIN"
)
_USUAL_PLACES = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
WARM_UPS = 3


@dataclass(frozen=True)
class Evidence:
    """Counters by point id; ``problem`` says why some or all are missing, and what to do."""

    counters: dict[str, list[KernelCounters]] = field(default_factory=dict)
    report: Path | None = None
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "counters": {
                point: [launch.as_dict() for launch in launches]
                for point, launches in self.counters.items()
            },
            "report": str(self.report) if self.report else None,
            "problem": self.problem,
        }


def find_ncu() -> str | None:
    """The ``ncu`` program, or None."""
    if found := shutil.which("ncu"):
        return found
    for pattern in _USUAL_PLACES:
        anchor = Path("/")
        listed = sorted(anchor.glob(pattern.lstrip("/")))
        if listed:
            return str(listed[-1])
    return None


def command(ncu: str, report: Path, points: Path, flush: bool = False) -> list[str]:
    """The one command that collects: for the GPU machine, as a list of arguments.

    Unless told to ``flush``, caches are left as they are between passes: ncu would empty them,
    and most points were timed warm.
    """
    options = ["--cache-control", "all" if flush else "none"]
    options += ["--clock-control", "none", "--profile-from-start", "off", "--nvtx"]
    options += ["--target-processes", "application-only", "--replay-mode", "kernel"]
    options += ["--metrics", requested(), "--force-overwrite", "--export", str(report)]
    return [ncu, *options, sys.executable, "-m", "gacprof.kernels.ncu_collect", str(points)]


def collect(points: Sequence[Point], report: Path, timeout_s: float = 1800.0) -> Evidence:
    """Profile ``points`` and keep the report at ``report``.

    Never raises for what the machine lacks: without ncu, permission or GPU the evidence is
    empty and its ``problem`` tells what to do, so that a run without counters carries on.
    """
    ncu = find_ncu()
    if ncu is None:
        return Evidence(problem=GET_NCU)
    report.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gacprof-ncu-") as folder:
        listed = Path(folder) / "points.json"
        listed.write_text(json.dumps([[p.id, p.operator, p.dim, p.dtype, p.flag] for p in points]))
        flush = all(point.flag.get("cache") == "cold" for point in points)
        try:
            done = subprocess.run(
                command(ncu, report, listed, flush),
                capture_output=True,
                text=True,
                timeout=timeout_s,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Evidence(problem=f"{ncu} did not finish: {error}")
    said = done.stdout + done.stderr
    if "ERR_NVGPUCTRPERM" in said:
        return Evidence(problem=GET_PERMISSION)
    if done.returncode or not report.is_file():
        last = [line for line in said.splitlines() if line.strip()][-1:] or ["no message"]
        return Evidence(problem=f"{ncu} failed: {last[0].strip()}")
    return from_report(points, report)


def from_report(points: Sequence[Point], report: Path) -> Evidence:
    """Counters of an existing report, sorted by the points whose NVTX ranges they lie in."""
    try:
        launches = read_report(report)
    except MeasurementError as error:
        return Evidence(report=report, problem=str(error))
    counters = by_point(points, launches)
    missing = len({point.id for point in points} - counters.keys())
    problem = f"{missing} of {len(points)} points have no launch in {report.name}"
    return Evidence(counters, report, problem if missing else "")


def by_point(
    points: Sequence[Point], launches: Sequence[KernelCounters]
) -> dict[str, list[KernelCounters]]:
    """Point id → the launches in its NVTX range. Launches in none of them are left out."""
    known = {point.id for point in points}
    counters: dict[str, list[KernelCounters]] = {}
    for launch in launches:
        owner = next((name for name in reversed(launch.ranges) if name in known), None)
        if owner:
            counters.setdefault(owner, []).append(launch)
    return counters


def _child(listed: Path) -> None:
    """Run each point under the profiler. ncu calls this; see :func:`command`."""
    import torch

    from gacprof import operators

    device = torch.device("cuda")
    for point_id, operator, dims, dtype, flags in json.loads(listed.read_text()):
        point = operators.point(operator, dims, dtype, flags)
        work = operators.get(operator).prepare(point, device)
        for _ in range(WARM_UPS):
            work()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        torch.cuda.nvtx.range_push(point_id)
        work()
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_pop()
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    _child(Path(sys.argv[1]))
