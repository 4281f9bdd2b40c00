"""Gather evidence for a sweep's points and keep it in the sweep's folder."""

from __future__ import annotations

import re
from pathlib import Path

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Point
from gacprof.explain.annotate import build_explained, edge_points
from gacprof.extras.evidence import ncu_collect
from gacprof.extras.evidence.ncu import read_report
from gacprof.kernels.evidence import (
    KernelCounters,
    read_counters,
    read_implementations,
    write_counters,
    write_implementations,
)
from gacprof.kernels.onednn import CpuImplementation, implementations
from gacprof.sweeping import environment_of, read_samples


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
        made = ncu_collect.collect(points, folder / "counters.ncu-rep", timeout_s, index)
        counters, problem = made.counters, made.problem
    else:
        counters, problem = ncu_collect.by_point(points, read_report(report)), ""
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
