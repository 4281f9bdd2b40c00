"""Times of aligned products that others measured on GPUs that are not at hand.

They are parquet files of ``aiconfigurator-core`` (extra ``third-party``), which is not imported:
``systems/data/GPU/gemm/FRAMEWORK/VERSION/gemm_perf.parquet``, in ms, by CUDA graph, single samples.
"""

from functools import cache
from importlib.util import find_spec
from math import exp, isnan, log
from pathlib import Path
from statistics import median
from typing import Any

PACKAGE = "aiconfigurator-core"
GRID = 32  # N and K of all measured products are multiples of it
ERROR = 1.25
"""A factor by which a time may err: left-out sizes of N are predicted within 9 to 25 % in nine of
ten cases (``reports/elsewhere.md``)."""


def aligned_us(gpu: str, rows: int, n: int, k: int) -> float | None:
    """Return the time of a 16-bit product whose sides are padded to multiples of :data:`GRID`.

    It is the median of the frameworks that were measured. None where the package is not installed,
    for a GPU that it lacks, and beyond the sizes that were measured.
    """
    place = log(rows), log(-(-n // GRID) * GRID), log(-(-k // GRID) * GRID)
    logs = [float(grid(place)) for grid in grids(gpu)]
    times = [exp(log_us) for log_us in logs if not isnan(log_us)]
    return median(times) if times else None


@cache
def grids(gpu: str) -> list[Any]:
    """Return each framework's log µs over log (rows, N, K) on a GPU, of its newest version."""
    spec = find_spec(PACKAGE.replace("-", "_"))  # finds a package without importing it
    if spec is None or not spec.submodule_search_locations:
        return []
    from packaging.version import Version

    folder = Path(spec.submodule_search_locations[0]) / "systems" / "data" / f"{gpu}_sxm" / "gemm"
    files = sorted(folder.glob("*/*/gemm_perf.parquet"), key=lambda file: Version(file.parts[-2]))
    newest = {file.parts[-3]: file for file in files}
    return [grid_of(file) for file in newest.values()]


def grid_of(file: Path) -> Any:
    """Return a table of bfloat16 as an interpolator; nan beyond what was measured."""
    import numpy as np
    import pandas as pd
    from scipy.interpolate import RegularGridInterpolator

    table = pd.read_parquet(file, columns=["gemm_dtype", "m", "n", "k", "latency"])
    table = table[(table.gemm_dtype == "bfloat16") & (table.latency > 0)]
    times = table.groupby(["m", "n", "k"]).latency.median()
    axes = [np.unique(table[name]) for name in ("m", "n", "k")]
    log_us = np.log(1e3 * times.reindex(pd.MultiIndex.from_product(axes)).to_numpy())
    shape = [len(axis) for axis in axes]
    return RegularGridInterpolator(
        [np.log(axis) for axis in axes], log_us.reshape(shape), bounds_error=False
    )
