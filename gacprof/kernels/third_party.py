"""Latencies of aligned matrix products that others measured on GPUs that are not at hand.

The tables are parquet files of the package ``aiconfigurator-core`` (extra ``third-party``), which
is never imported: ``systems/data/GPU/gemm/FRAMEWORK/VERSION/gemm_perf.parquet``, times by CUDA
graph, single samples, N and K multiples of 32. They say nothing of alignment.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata, util
from itertools import product
from math import exp, log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from packaging.version import Version

from gacprof.core.dtypes import compute_dtype
from gacprof.core.errors import INSTALL, MeasurementError
from gacprof.core.sizes import Gemm, Interval

PACKAGE = "aiconfigurator-core"
ALIGNED = 32
"""N and K of all measured products are multiples of it; others are not estimated."""
RELATIVE_ERROR = 0.25
"""Each latency's interval reaches so far beyond the frameworks' range: predicting left-out sizes
of N errs by 3 to 8 % at the median and 9 to 25 % at the 90th percentile, by framework."""
FOLDERS = {"rtx-pro-6000": "rtx_pro_6000_server", "a100-pcie-80gb": "a100_pcie"}
DTYPES = {"bfloat16": "bfloat16", "float16": "bfloat16", "float8_e4m3": "fp8"}
"""The tables' names of what a product is computed in; 16-bit types have one rate."""


@dataclass(frozen=True)
class MeasuredGrid:
    """One framework's latencies in a dtype: ``log_us`` over the ascending sizes ``m``, ``n`` and
    ``k``; nan where nothing was measured."""

    framework: str
    m: NDArray[np.int64]
    n: NDArray[np.int64]
    k: NDArray[np.int64]
    log_us: NDArray[np.float64]

    def latency_us(self, m: int, n: int, k: int) -> float | None:
        """Trilinear interpolation of log latency over log sizes; None beyond the grid."""
        corners = []
        for axis, size in ((self.m, m), (self.n, n), (self.k, k)):
            if not axis[0] <= size <= axis[-1]:
                return None
            after = int(np.searchsorted(axis, size))
            before = max(after - 1, 0)
            share = 1.0
            if axis[after] != size:
                share = log(size / axis[before]) / log(axis[after] / axis[before])
            corners.append(((before, 1 - share), (after, share)))
        total = 0.0
        for (x, a), (y, b), (z, c) in product(*corners):
            if a * b * c:
                total += a * b * c * float(self.log_us[x, y, z])
        return None if np.isnan(total) else exp(total)


class ThirdPartyTimes:
    """The latencies of one GPU's products, over all frameworks that were measured there.

    Raises :class:`MeasurementError` where the package is not installed or has none of the GPU.
    """

    def __init__(self, gpu: str) -> None:
        self.folder = _data() / FOLDERS.get(gpu, f"{gpu.replace('-', '_')}_sxm") / "gemm"
        if not self.folder.is_dir():
            self.folder = _data() / gpu.replace("-", "_") / "gemm"
        if not self.folder.is_dir():
            raise MeasurementError(f"{PACKAGE} has no products of {gpu}: measure it")
        names = sorted(path.name for path in self.folder.iterdir())
        version = metadata.version(PACKAGE)
        self.provenance = f"measured by others ({PACKAGE} {version}: {', '.join(names)})"

    def latency_us(self, gemm: Gemm, tokens: int, dtype: str) -> Interval | None:
        """The latency of one product, the median of the frameworks'; None where N or K is no
        multiple of 32, beyond what was measured, and for a dtype that was not."""
        named = DTYPES.get(compute_dtype(dtype), "")
        if gemm.N % ALIGNED or gemm.K % ALIGNED or not named:
            return None
        times = [grid.latency_us(tokens, gemm.N, gemm.K) for grid in _grids(self.folder, named)]
        measured = sorted(time for time in times if time is not None)
        if not measured:
            return None
        return Interval(
            measured[0] * (1 - RELATIVE_ERROR),
            float(np.median(measured)),
            measured[-1] * (1 + RELATIVE_ERROR),
        )


def _data() -> Path:
    spec = util.find_spec("aiconfigurator_core")  # of a top-level package: it is not imported
    if spec is None or not spec.submodule_search_locations:
        raise MeasurementError(f"{PACKAGE} is missing: {INSTALL.format('third-party')}")
    return Path(spec.submodule_search_locations[0]) / "systems" / "data"


@lru_cache(maxsize=8)
def _grids(folder: Path, dtype: str) -> list[MeasuredGrid]:
    """A dtype's grid of each framework, of its newest version that has one."""
    grids: dict[str, MeasuredGrid] = {}
    for path in sorted(
        folder.glob("*/*/gemm_perf.parquet"), key=lambda path: Version(path.parent.name)
    ):
        framework, version = path.parts[-3:-1]
        grid = _read(path, f"{framework} {version}", dtype)
        if grid is not None:
            grids[framework] = grid
    return list(grids.values())


def _read(path: Path, framework: str, dtype: str) -> MeasuredGrid | None:
    """One table as a grid; several samples of a size count by their median."""
    import pandas as pd

    columns = ["gemm_dtype", "m", "n", "k", "latency"]
    table = pd.read_parquet(path, columns=columns)
    rows = table[(table["gemm_dtype"] == dtype) & (table["latency"] > 0)]
    if rows.empty:
        return None
    medians = rows.groupby(["m", "n", "k"])["latency"].median()
    axes = [np.unique(medians.index.get_level_values(name).to_numpy(np.int64)) for name in "mnk"]
    log_us = np.full([len(axis) for axis in axes], np.nan)
    places = tuple(
        np.searchsorted(axis, medians.index.get_level_values(name))
        for axis, name in zip(axes, "mnk", strict=True)
    )
    log_us[places] = np.log(medians.to_numpy() * 1e3)  # the tables are in ms
    return MeasuredGrid(framework, axes[0], axes[1], axes[2], log_us)
