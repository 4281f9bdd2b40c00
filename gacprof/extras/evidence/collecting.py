"""Evidence for points: Nsight Compute run on them, and what CPU libraries say, kept with a sweep.

``ncu`` profiles a process that runs each point once inside an NVTX range named after the point's
id (:mod:`gacprof.devices.profiled`), so that every launch in the report belongs to a point. Clocks
are left alone (``--clock-control none``): counters then belong to the state that was timed.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gacprof.core import programs
from gacprof.core.errors import MeasurementError
from gacprof.core.points import Point
from gacprof.devices.environment import cuda_arch, find_ncu
from gacprof.devices.profiled import REFUSED
from gacprof.explaining.annotate import build_explained, edge_points
from gacprof.extras.evidence.ncu import read_report, requested
from gacprof.kernels.evidence import (
    KernelCounters,
    read_counters,
    read_implementations,
    write_counters,
    write_implementations,
)
from gacprof.kernels.onednn import CpuImplementation, implementations
from gacprof.sweeping import environment_of, read_samples

GET_NCU = (
    "Nsight Compute (ncu) is not on this machine: install the CUDA toolkit, or "
    "'nsight-compute' from NVIDIA's package repository, and put ncu on PATH"
)
GET_PERMISSION = (
    "the driver lets only administrators read counters (ERR_NVGPUCTRPERM): run as root, or load "
    "the nvidia module with NVreg_RestrictProfilingToAdminUsers=0; in a container, "
    "add the capability SYS_ADMIN"
)


@dataclass(frozen=True)
class Evidence:
    """Counters by point id; ``problem`` says why some or all are missing, and what to do."""

    counters: dict[str, list[KernelCounters]] = field(default_factory=dict)
    report: Path | None = None
    problem: str = ""


def command(
    ncu: str, report: Path, points: Path, flush: bool = False, arch: str | None = None,
    device: int = 0,
) -> list[str]:  # fmt: skip
    """The one command that collects: for the GPU machine, as a list of arguments.

    Unless told to ``flush``, caches are left as they are between passes: ncu would empty them,
    and most points were timed warm. ``arch`` (``sm90``) leaves out counters that it lacks.
    """
    options = ["--cache-control", "all" if flush else "none"]
    options += ["--clock-control", "none", "--profile-from-start", "off", "--nvtx"]
    options += ["--target-processes", "application-only", "--replay-mode", "kernel"]
    options += ["--metrics", requested(arch), "--force-overwrite", "--export", str(report)]
    child = [sys.executable, "-m", "gacprof.devices.profiled", str(points), str(device)]
    return [ncu, *options, *child]


def collect(
    points: Sequence[Point], report: Path, timeout_s: float = 1800.0, device: int = 0
) -> Evidence:
    """Profile ``points`` on that CUDA device and keep the report at ``report``.

    Never raises for what the machine lacks: without ncu, permission or GPU the evidence is
    empty and its ``problem`` says what to do, so that a run without counters carries on.
    What was counted before something failed is kept, with the problem beside it.
    """
    ncu = find_ncu()
    if ncu is None:
        return Evidence(problem=GET_NCU)
    report.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".ncu-", dir=report.parent) as folder:
        listed, made = Path(folder) / "points.json", Path(folder) / report.name
        listed.write_text(json.dumps([[p.id, p.operator, p.dim, p.dtype, p.flag] for p in points]))
        flush = all(point.flag.get("cache") == "cold" for point in points)
        arguments = command(ncu, made, listed, flush, cuda_arch(device), device)
        done = programs.run(arguments, timeout_s)
        if "ERR_NVGPUCTRPERM" in done.output + done.errors:
            return Evidence(problem=GET_PERMISSION)
        problem = _problem(ncu, done, made.is_file())
        if not made.is_file():
            return Evidence(problem=problem)
        made.replace(report)
    found = from_report(points, report)
    return replace(found, problem="; ".join(filter(None, (problem, found.problem))))


def _problem(ncu: str, done: programs.Ended, reported: bool) -> str:
    """What kept ncu from counting everything; empty if nothing did."""
    if done.code is None:
        return f"{ncu} {done.failure}"
    failed = [line.removeprefix(REFUSED) for line in done.lines if line.startswith(REFUSED)]
    if failed:
        return f"{len(failed)} points could not be run: {failed[0]}"
    if done.code == 0 and reported:
        return ""
    errors = [line for line in done.lines if "==ERROR==" in line] or done.lines[-1:]
    return f"{ncu} failed: {errors[0] if errors else 'no message'}"


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


def points_of_sweep(folder: Path, edges: bool) -> list[Point]:
    """The folder's measured points, or with ``edges`` those at its map's cliffs.

    Raises :class:`MeasurementError` where there is no cliff.
    """
    if not edges:
        return [sample.point for sample in read_samples(folder) if sample.status == "ok"]
    points = [p for curve in build_explained(folder).curves for p in edge_points(curve)]
    if not points:
        raise MeasurementError(f"the map of {folder} has no cliff: leave --edges out")
    return list(dict.fromkeys(points))


def count(
    folder: Path, edges: bool, report: Path | None, device: str, timeout_s: float
) -> tuple[dict[Point, list[KernelCounters]], str]:
    """(Nsight Compute's counters by point, why some are missing): collected on that CUDA device,
    or taken from a ``report`` that exists. Raises :class:`MeasurementError`."""
    kind = environment_of(folder).kind
    if kind != "cuda" and report is None:
        raise MeasurementError(
            f"{folder} was measured on a {kind} device: Nsight Compute counts on NVIDIA GPUs "
            "only ('gacprof evidence cpu' asks a CPU's libraries)"
        )
    points = points_of_sweep(folder, edges)
    if report is None:
        index = _gpu_index(device)
        made = collect(points, folder / "counters.ncu-rep", timeout_s, index)
        counters, problem = made.counters, made.problem
    else:
        counters, problem = by_point(points, read_report(report)), ""
        if not counters:
            problem = (
                f"no launch in {report} belongs to a point of {folder}: it is of another sweep, "
                "or of another tool; leave the folder out to see all launches"
            )
    known = {point: counters[point.id] for point in points if point.id in counters}
    if known:
        write_counters(folder, read_counters(folder) | known)
    return known, problem


def _gpu_index(device: str) -> int:
    found = re.fullmatch(r"cuda(?::([0-9]{1,3}))?", device)
    if found is None:
        raise MeasurementError(f"counters are a GPU's: --device is cuda:0, cuda:1 …, not {device}")
    return int(found[1] or 0)


def ask_libraries(folder: Path, edges: bool) -> list[CpuImplementation]:
    """What oneDNN and MKL say of a CPU sweep's points. Raises :class:`MeasurementError`."""
    environment = environment_of(folder)
    if environment.kind != "cpu":
        raise MeasurementError(
            f"{folder} was measured on {environment.name}, which is no CPU: its kernels are in "
            "the samples already"
        )
    found = implementations(points_of_sweep(folder, edges))
    known = read_implementations(folder) | {one.point: one for one in found}
    write_implementations(folder, list(known.values()))
    return list(found)
