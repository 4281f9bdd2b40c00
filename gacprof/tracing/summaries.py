"""Kernels of Nsight Systems and Nsight Compute: names and times, no shapes."""

from __future__ import annotations

import csv
from pathlib import Path

from gacprof.core.errors import MeasurementError
from gacprof.tracing.recording import Launch, Recording

NAME, TOTAL, COUNT = "Name", "Total Time (ns)", "Instances"  # columns of a summary
NSYS_STATS = "nsys stats --report cuda_gpu_kern_sum --format csv"


def read_nsys(path: Path) -> Recording:
    """Read a kernel summary of Nsight Systems. Raises :class:`MeasurementError` for another file,
    and one whose numbers are none."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        lines = iter(file)
        header = next((line for line in lines if NAME in line and TOTAL in line), "")
        columns = next(csv.reader([header]), [])
        rows = list(csv.DictReader(lines, columns))
    if COUNT not in columns or not rows:
        raise MeasurementError(f"{path} is no kernel summary: write one by {NSYS_STATS}")
    try:
        launches = [Launch(row[NAME], float(row[TOTAL]) / 1e3, int(row[COUNT])) for row in rows]
    except (TypeError, ValueError) as error:
        raise MeasurementError(f"{path} cannot be read as a kernel summary: {error}") from None
    return Recording(launches)


def read_ncu_report(path: Path) -> Recording:
    """Read the launches of an Nsight Compute report. Raises :class:`MeasurementError` for another
    file, and where durations were not collected."""
    from gacprof.kernels.ncu import METRICS, read_ncu

    table = read_ncu(path)
    if table["duration_ns"].isna().any():
        metric = METRICS["duration_ns"]
        raise MeasurementError(f"{path} lacks times: collect them by ncu --metrics {metric}")
    columns = (table["kernel"], table["duration_ns"], table["ranges"])
    launches = [
        Launch(name, float(ns) / 1e3, layer=ranges)
        for name, ns, ranges in zip(*columns, strict=True)
    ]
    return Recording(launches)
