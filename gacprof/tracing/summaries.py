"""Kernels of Nsight Systems and Nsight Compute: names and times, no shapes."""

import csv
import math
from pathlib import Path

from gacprof.core.errors import MeasurementError
from gacprof.tracing.recording import Launch, Recording

NAME, TOTAL, COUNT = "Name", "Total Time (ns)", "Instances"  # columns of a summary
NSYS_STATS = "nsys stats --report cuda_gpu_kern_sum --format csv"


def read_nsys(path: Path) -> Recording:
    """Read a kernel summary of Nsight Systems, whatever stands around its first table.
    Raises :class:`MeasurementError` for another file, and for a row without a time."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        try:
            lines = list(csv.reader(file))
        except csv.Error:  # no text
            lines = []
    starts = [i for i, columns in enumerate(lines) if {NAME, TOTAL, COUNT} <= set(columns)]
    if not starts:
        raise MeasurementError(
            f"{path} is no kernel summary with times in ns: write one by {NSYS_STATS}"
        )
    columns = lines[starts[0]]
    launches = []
    for number, line in enumerate(lines[starts[0] + 1 :], starts[0] + 2):
        if len(line) < len(columns):
            break  # another report, or text, stands behind the table
        row = dict(zip(columns, line, strict=False))
        try:
            us, count = float(row[TOTAL]) / 1e3, int(float(row[COUNT]))
        except (ValueError, OverflowError):
            us, count = math.nan, 0
        if not (0 <= us < math.inf and count > 0):
            raise MeasurementError(f"{path}, line {number}: {TOTAL} or {COUNT} is no number")
        launches.append(Launch(row[NAME], us, count))
    if not launches:
        raise MeasurementError(f"{path} holds no kernel: name a summary of a run on a GPU")
    return Recording(launches)


def read_ncu_report(path: Path) -> Recording:
    """Read the launches of an Nsight Compute report. Raises :class:`MeasurementError` for another
    file, and where durations were not collected."""
    from gacprof.kernels.ncu import METRICS, read_ncu

    table = read_ncu(path)
    if table["duration_ns"].isna().any():
        metric = METRICS["duration_ns"]
        raise MeasurementError(f"{path} lacks times: collect them by ncu --metrics {metric}")
    rows = table[["kernel", "duration_ns", "ranges"]].itertuples(index=False)
    return Recording([Launch(name, float(ns) / 1e3, layer=ranges) for name, ns, ranges in rows])
