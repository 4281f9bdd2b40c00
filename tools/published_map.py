"""The maps of an A100 and an H100 from the published figures of the GAC paper.

    python tools/published_map.py a100 tests/fixtures/published gacprof/maps/a100-published.json
    python tools/published_map.py h100 tests/fixtures/published gacprof/maps/h100-published.json

Every number is the authors'. Points that the figures do not determine exactly (``src = interp``)
are left out, rates are turned into latencies, and the sizes are judged.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, log
from pathlib import Path

import numpy as np

from gacprof.cliffmap.build import judged_axis
from gacprof.cliffmap.cliffmap import CliffMap, Curve, MapWarning
from gacprof.cliffmap.fit import Fit
from gacprof.core.points import Axis, Environment, Flag
from gacprof.core.sizes import TOLERANCE

PROVENANCE = "published (arXiv 2604.09595, CC BY 4.0), not measured here"
CITATION = (
    "J. Xin, T. Lyu, Q. Pan, K. Wang, M. Canini, Why Smaller Is Slower? Dimensional Misalignment "
    "in Compressed LLMs, EuroMLSys '26, arXiv 2604.09595, doi "
    "10.1145/3805621.3807608, CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/); points "
    "read back from the vector figures of github sands-lab/GAC at 13b3aba, files of 2026-04-29"
)
NO_REPEATS = (
    "latencies are means of CUDA-event timings without an L2 flush; no repeats were published, so "
    "that errors are not known: nothing under 5 % is called a cliff"
)
LAYOUT = (
    "linear with layout nn is torch.mm with row-major A(M, K) and B(K, N); at M = 1 (layout tn) it "
    "is the matrix-vector product A(N, K) x, taken for that of nn.Linear"
)
RATES = "figures of rates: latency = 2·M·N·K / rate; of the row sum 2 bytes · 1024 · K / rate"
WARNINGS = {
    "a100": (
        NO_REPEATS,
        LAYOUT,
        RATES,
        "the curves of linear at M = N = 2048 or K = 128 were median-filtered by the authors, "
        "apart for d % 8 = 0 and the rest: plateaus and cliffs hold, single sizes do not",
        "the curves at M = 1 may be bound by the host: none falls below 23 µs, where others have 4 "
        "to 10 µs by CUDA graph (aiconfigurator-core 0.12.0)",
        "attention under a forced backend is a table of the repository's report.md, to be compared "
        "with one another rather than with the figure",
    ),
    "h100": (
        NO_REPEATS,
        LAYOUT,
        RATES,
        "the curves of linear may be bound by the host: the best size takes 48 to 49 µs, where "
        "others have 24.1 to 25.2 µs by CUDA graph (aiconfigurator-core 0.12.0)",
        "the GEMM and GEMV sweeps of the repository that are not in the paper are left out: their "
        "latency does not depend on M, N or K",
    ),
}
ENVIRONMENTS = {
    "a100": Environment("cuda", "NVIDIA A100 80GB", "sm80", {}, {"torch": "2.9.1", "cuda": "12.8"}),
    "h100": Environment("cuda", "NVIDIA H100 80GB", "sm90", {}, {"torch": "2.9.1", "cuda": "12.8"}),
}
FORCED = "forced_backend_sdpa_A100_ms_from_report_md"
BACKENDS = {"FLASH": "flash", "MEM_EFFICIENT": "efficient", "MATH": "math"}
ATTENTION = {"batch": 4, "heads": 32, "kv_heads": 32, "q_len": 2048, "kv_len": 2048}
ATTENTION_FLAGS: dict[str, Flag] = {
    "backend": "auto",
    "cache": "warm",
    "causal": False,
    "mask": "none",
}


@dataclass(frozen=True)
class Figure:
    """A file of the data set: the fixed dims of its curves by swept dim. ``first`` is the first
    size that counts: below it the clock was still rising."""

    file: str
    operator: str
    fixed: Mapping[str, Mapping[str, int]]
    flags: Mapping[str, Flag]
    first: int = 0


def linear_flags(layout: str) -> dict[str, Flag]:
    return {"bias": False, "cache": "warm", "layout": layout}


GEMV = {"K": {"M": 1, "N": 4096}, "N": {"M": 1, "K": 4096}}
GEMM = {"M": {"N": 2048, "K": 128}, "N": {"M": 2048, "K": 128}, "K": {"M": 2048, "N": 2048}}
FIGURES = (
    Figure("fig2_sdpa_latency", "attention", {"head_dim": ATTENTION}, ATTENTION_FLAGS),
    Figure("fig_gemm_alignment", "linear", GEMM, linear_flags("nn")),
    Figure("fig_gemv_alignment", "linear", GEMV, linear_flags("tn")),
    Figure("extra_gemv_coarse_sweep", "linear", GEMV, {**linear_flags("tn"), "sweep": "coarse"}),
    Figure("fig_tc_k_alignment", "linear", {"K": {"M": 512, "N": 4096}}, linear_flags("nn"), 4008),
    Figure("fig_tc_n_alignment", "linear", {"N": {"M": 512, "K": 4096}}, linear_flags("nn")),
    Figure("fig_l2_alignment", "row_sum", {"K": {"rows": 1024}}, {}),
)


def published_map(gpu: str, folder: Path) -> CliffMap:
    """The map of ``a100`` or ``h100`` from the data set in ``folder``."""
    curves = []
    for figure in FIGURES:
        path = folder / f"{figure.file}.csv"
        if gpu == "h100":
            path = folder / "h100" / f"{figure.file}_h100.csv"
        if path.is_file():
            curves += figure_curves(figure, path, figure.first if gpu == "a100" else 0)
    if gpu == "a100":
        curves += forced_backends(folder / "settings.json")
    warnings = tuple(MapWarning("source", text) for text in (CITATION, *WARNINGS[gpu]))
    return CliffMap(
        f"{gpu}-published", PROVENANCE, ENVIRONMENTS[gpu], tuple(curves), warnings=warnings
    )


def figure_curves(figure: Figure, path: Path, first: int) -> list[Curve]:
    """The curves of a figure's file, by swept dim."""
    latencies: dict[str, dict[int, float]] = defaultdict(dict)
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            size = int(row["d"])
            if row["src"] != "interp" and size >= first:
                latencies[row["axis"]][size] = latency_us(size, float(row["value"]), row["unit"])
    return [
        published_curve(figure.operator, dim, fixed, figure.flags, latencies[dim])
        for dim, fixed in figure.fixed.items()
    ]


def latency_us(size: int, value: float, unit: str) -> float:
    """µs of a published value."""
    if unit == "us":
        return value
    if unit == "ms":
        return value * 1e3
    if unit == "TFLOPS":
        return 2 * 512 * 4096 * size / (value * 1e6)
    return 2 * 1024 * size / (value * 1e3)  # GB/s of a row sum over 1024 rows of 16-bit numbers


def published_curve(
    operator: str,
    dim: str,
    fixed: Mapping[str, int],
    flags: Mapping[str, Flag],
    latencies: Mapping[int, float],
    failures: Mapping[int, str] | None = None,
) -> Curve:
    """A curve of latencies as they stand."""
    sizes = sorted(latencies)
    log_us = np.array([log(latencies[size]) for size in sizes])
    exact, blocks = np.zeros(len(sizes)), np.zeros((0, len(sizes)))
    fit = Fit(tuple(sizes), log_us, exact, inf, log_us, np.zeros(0), blocks, np.zeros(0, int))
    all_sizes = tuple(sorted({*sizes, *(failures or {})}))
    axis = Axis(operator, dim, all_sizes, fixed, "float16", flags)
    return judged_axis(axis, fit, TOLERANCE, {}, failures or {})


def forced_backends(settings: Path) -> list[Curve]:
    """Attention under each backend."""
    table = json.loads(settings.read_text(encoding="utf-8"))[FORCED]
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    curves = []
    for column, backend in BACKENDS.items():
        latencies = {row["d"]: row[column] * 1e3 for row in rows if row[column] is not None}
        failures = {row["d"]: "the backend refuses it" for row in rows if row[column] is None}
        flags = {**ATTENTION_FLAGS, "backend": backend}
        curves.append(
            published_curve("attention", "head_dim", ATTENTION, flags, latencies, failures)
        )
    return curves


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in WARNINGS:
        raise SystemExit("usage: python tools/published_map.py a100|h100 DATA_DIR OUT.json")
    published_map(sys.argv[1], Path(sys.argv[2])).save(sys.argv[3])
