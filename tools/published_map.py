"""The maps of an A100 and an H100 from the published figures of the GAC paper.

    python tools/published_map.py a100 tests/fixtures/published gacprof/maps/a100-published.json
    python tools/published_map.py h100 tests/fixtures/published gacprof/maps/h100-published.json

Every number is the authors'. Points that the figures do not determine exactly (``src = interp``)
are left out, rates are turned into latencies, and the sizes are judged. No repeats were published:
a point's error is by how much the points of a curve scatter, and where others measured the best
sizes to take much less, penalties are open upwards to what they are beside those times.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import expm1, gcd, inf, log, log1p, sqrt
from pathlib import Path
from statistics import NormalDist

import numpy as np

from gacprof.cliffmap.build import judged_axis
from gacprof.cliffmap.cliffmap import CliffMap, Curve, MapWarning, with_bound
from gacprof.cliffmap.fit import Fit
from gacprof.cliffmap.judge import INTERVAL_LEVEL, quantile, significant
from gacprof.core.points import Axis, Environment, Flag
from gacprof.core.sizes import TOLERANCE, Interval

PROVENANCE = "published (arXiv 2604.09595, CC BY 4.0), not measured here"
CITATION = (
    "J. Xin, T. Lyu, Q. Pan, K. Wang, M. Canini, Why Smaller Is Slower? Dimensional Misalignment "
    "in Compressed LLMs, EuroMLSys '26, arXiv 2604.09595, doi "
    "10.1145/3805621.3807608, CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/); points "
    "read back from the vector figures of github sands-lab/GAC at 13b3aba, files of 2026-04-29"
)
NO_REPEATS = (
    "latencies are means of CUDA-event timings without an L2 flush; no repeats were published: a "
    "point's error is taken from the scatter of neighbouring sizes of one alignment on its curve, "
    "which knows nothing of what all points of a curve share"
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
        "to 10 µs by CUDA graph (aiconfigurator-core 0.12.0): penalties of the coarse sweep are "
        "lower bounds; near 4096 others have 26 µs beside 31",
        "attention under a forced backend is a table of the repository's report.md, to be compared "
        "with one another rather than with the figure",
    ),
    "h100": (
        NO_REPEATS,
        LAYOUT,
        RATES,
        "penalties of linear are lower bounds, and no size of it is called safe: the best takes "
        "48 to 49 µs, probably bound by the host, where others have 24.1 to 25.2 µs of the same "
        "shape by CUDA graph (aiconfigurator-core 0.12.0)",
        "the GEMM and GEMV sweeps of the repository that are not in the paper are left out: their "
        "latency does not depend on M, N or K",
    ),
}
Error = tuple[float, float]
"""The standard error of a log latency, and its degrees of freedom."""
ENVIRONMENTS = {
    "a100": Environment("cuda", "NVIDIA A100 80GB", "sm80", {}, {"torch": "2.9.1", "cuda": "12.8"}),
    "h100": Environment("cuda", "NVIDIA H100 80GB", "sm90", {}, {"torch": "2.9.1", "cuda": "12.8"}),
}
OTHERS_US = {
    ("h100", "fig_tc_k_alignment"): 24.1,
    ("h100", "fig_tc_n_alignment"): 24.1,
    ("a100", "extra_gemv_coarse_sweep"): 3.9,
}
"""The least time in which others ran a curve's best size, where it is less than half
(aiconfigurator-core 0.12.0: 512 × 4096 × 4096, and 1 × 4096 × 256)."""
AT_THE_FLOOR = 1.1  # sizes within this factor of a curve's best may be bound by the host as well
DEVIATION = NormalDist().inv_cdf(0.75)  # the median deviation of a normal quantity
MEDIAN_EFFICIENCY = 0.37  # so many squares tell as much of the spread as one absolute deviation
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
    size that counts: below it the clock was still rising. Of curves that the authors ``filtered``
    the scatter is that of others."""

    file: str
    operator: str
    fixed: Mapping[str, Mapping[str, int]]
    flags: Mapping[str, Flag]
    first: int = 0
    filtered: bool = False


def linear_flags(layout: str) -> dict[str, Flag]:
    return {"bias": False, "cache": "warm", "layout": layout}


GEMV = {"K": {"M": 1, "N": 4096}, "N": {"M": 1, "K": 4096}}
GEMM = {"M": {"N": 2048, "K": 128}, "N": {"M": 2048, "K": 128}, "K": {"M": 2048, "N": 2048}}
FIGURES = (
    Figure("fig2_sdpa_latency", "attention", {"head_dim": ATTENTION}, ATTENTION_FLAGS),
    Figure("fig_gemm_alignment", "linear", GEMM, linear_flags("nn"), filtered=True),
    Figure("fig_gemv_alignment", "linear", GEMV, linear_flags("tn")),
    Figure("extra_gemv_coarse_sweep", "linear", GEMV, {**linear_flags("tn"), "sweep": "coarse"}),
    Figure("fig_tc_k_alignment", "linear", {"K": {"M": 512, "N": 4096}}, linear_flags("nn"), 4008),
    Figure("fig_tc_n_alignment", "linear", {"N": {"M": 512, "K": 4096}}, linear_flags("nn")),
    Figure("fig_l2_alignment", "row_sum", {"K": {"rows": 1024}}, {}),
)


def published_map(gpu: str, folder: Path) -> CliffMap:
    """The map of ``a100`` or ``h100`` from the data set in ``folder``."""
    points = []
    for figure in FIGURES:
        path = folder / f"{figure.file}.csv"
        if gpu == "h100":
            path = folder / "h100" / f"{figure.file}_h100.csv"
        if path.is_file():
            latencies = read_figure(path, figure.first if gpu == "a100" else 0)
            points += [(figure, dim, latencies[dim]) for dim in figure.fixed]
    errors: dict[object, Error] = {}  # the largest of the unfiltered curves of such calls
    for figure, _, latencies in points:
        if not figure.filtered:
            call = figure.operator, figure.flags.get("layout")
            errors[call] = max(errors.get(call, (0.0, 1.0)), scatter(latencies))
    curves = []
    for figure, dim, latencies in points:
        error = scatter(latencies)
        if figure.filtered:
            error = errors[figure.operator, figure.flags.get("layout")]
        axis = Axis(figure.operator, dim, (), figure.fixed[dim], "float16", figure.flags)
        curve = published_curve(axis, latencies, error)
        others_us = OTHERS_US.get((gpu, figure.file))
        curves.append(host_bound(curve, others_us) if others_us else curve)
    if gpu == "a100":
        curves += forced_backends(folder / "settings.json", errors["attention", None])
    warnings = tuple(MapWarning("source", text) for text in (CITATION, *WARNINGS[gpu]))
    return CliffMap(
        f"{gpu}-published", PROVENANCE, ENVIRONMENTS[gpu], tuple(curves), warnings=warnings
    )


def read_figure(path: Path, first: int) -> dict[str, dict[int, float]]:
    """µs by size, by swept dim, of a figure's file."""
    latencies: dict[str, dict[int, float]] = defaultdict(dict)
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            size = int(row["d"])
            if row["src"] != "interp" and size >= first:
                latencies[row["axis"]][size] = latency_us(size, float(row["value"]), row["unit"])
    return latencies


def scatter(latencies: Mapping[int, float]) -> Error:
    """The error of a point of a curve: how far one lies off the middle of its two neighbours of the
    same alignment, in the alignment that has most sizes. By the median: steps are no errors."""
    alignments: dict[int, list[float]] = defaultdict(list)
    for size in sorted(latencies):
        alignments[gcd(size, 64)].append(log(latencies[size]))
    log_us = np.array(max(alignments.values(), key=len))
    off = log_us[1:-1] - (log_us[:-2] + log_us[2:]) / 2
    # The middle of two neighbours has half of a point's variance.
    error = float(np.median(np.abs(off))) / DEVIATION / sqrt(1.5)
    return error, MEDIAN_EFFICIENCY * len(off)


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
    axis: Axis,
    latencies: Mapping[int, float],
    error: Error,
    failures: Mapping[int, str] | None = None,
) -> Curve:
    """A curve of latencies that err by so much. Its multiple and cliffs are those of the figure:
    scatter that hides what is small may not make others of them."""
    spread, degrees = error
    sizes = sorted(latencies)
    axis = replace(axis, sizes=tuple(sorted({*sizes, *(failures or {})})))
    log_us = np.array([log(latencies[size]) for size in sizes])
    exact, blocks = np.zeros(len(sizes)), np.zeros((0, len(sizes)))
    fit = Fit(tuple(sizes), log_us, exact, inf, log_us, np.zeros(0), blocks, np.zeros(0, int))
    drawn = judged_axis(axis, fit, TOLERANCE, {}, failures or {})
    fit = replace(fit, error=exact + spread, degrees=degrees)
    curve = judged_axis(axis, fit, TOLERANCE, {}, failures or {})
    half = quantile(INTERVAL_LEVEL, degrees) * sqrt(2) * spread
    cliffs = []
    for cliff in drawn.cliffs:
        bounds = [expm1(log1p(cliff.jump.value) + side * half) for side in (-1, 0, 1)]
        cliffs.append(replace(cliff, jump=Interval(*map(significant, bounds))))
    return replace(curve, cliffs=tuple(cliffs), multiple=drawn.multiple)


def host_bound(curve: Curve, others_us: float) -> Curve:
    """A curve whose best sizes others ran in less time: these may take as little, and each penalty
    may be what it is beside that."""
    best = min(verdict.latency_us.value for verdict in curve.sizes if verdict.latency_us)
    verdicts = []
    for verdict in curve.sizes:
        latency = verdict.latency_us
        assert latency is not None
        if latency.value <= AT_THE_FLOOR * best:
            latency = replace(latency, low=others_us)
        bounded = with_bound(verdict, best / others_us, TOLERANCE)
        verdicts.append(replace(bounded, latency_us=latency))
    return replace(curve, sizes=tuple(verdicts))


def forced_backends(settings: Path, error: Error) -> list[Curve]:
    """Attention under each backend, with the error of attention's figure."""
    table = json.loads(settings.read_text(encoding="utf-8"))[FORCED]
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    curves = []
    for column, backend in BACKENDS.items():
        latencies = {row["d"]: row[column] * 1e3 for row in rows if row[column] is not None}
        failures = {row["d"]: "the backend refuses it" for row in rows if row[column] is None}
        flags = {**ATTENTION_FLAGS, "backend": backend}
        axis = Axis("attention", "head_dim", (), ATTENTION, "float16", flags)
        curves.append(published_curve(axis, latencies, error, failures))
    return curves


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in WARNINGS:
        raise SystemExit("usage: python tools/published_map.py a100|h100 DATA_DIR OUT.json")
    published_map(sys.argv[1], Path(sys.argv[2])).save(sys.argv[3])
