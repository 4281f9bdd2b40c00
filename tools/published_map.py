"""The maps of an A100 and an H100 from the published figures of the GAC paper.

``python tools/published_map.py a100 DATA_DIR OUT`` regenerates the shipped ``a100-published`` from
the digitised figure data (CC BY 4.0), ``h100`` the shipped ``h100-published``. Every number is the
authors'; what is done here is to drop points that were not recoverable exactly (``src = interp``),
to turn rates into latencies where the figure's settings state all dims, and to detect.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gacprof.cliffmap.curves import Axis, Measured, make_curve
from gacprof.cliffmap.map import CliffMap
from gacprof.cliffmap.schema import SCHEMA, Curve, Device, MapFile, Provenance
from gacprof.core.errors import MapError
from gacprof.core.points import Flag
from gacprof.stats.findings import Noise

CITATION = (
    "J. Xin, T. Lyu, Q. Pan, K. Wang, M. Canini: Why Smaller Is Slower? Dimensional "
    "Misalignment in Compressed LLMs. EuroMLSys '26, arXiv 2604.09595, "
    "doi 10.1145/3805621.3807608"
)
LICENCE = "CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/)"
SOURCE = (
    "points read back from the vector figures of github sands-lab/GAC at 13b3aba, "
    "the files of 2026-04-29"
)
NO_REPEATS = (
    "Latencies are means of CUDA-event timings without an L2 flush; no repeats were published, "
    "hence no noise floor: nothing under 5 % is called a cliff."
)
NN = (
    "linear with layout nn is torch.mm with row-major A(M, K) and B(K, N); at M = 1 (layout tn) "
    "it is the matrix-vector product A(N, K) x, taken for that of nn.Linear."
)
A100_NOTES = (
    "Figures 5–8 of the paper and the coarse GEMV sweep of its repository. " + NO_REPEATS,
    "The curves of linear at M = N = 2048 or K = 128 (Fig. 7) were median-filtered by the "
    "authors, apart for d % 8 = 0 and the rest: plateaus and cliffs hold, single dims and "
    "finer periods do not.",
    NN,
    "Fig. 8 gives rates. Latency = 2·M·N·K / rate with M = 512 and the other dim 4096; for the "
    "row sum latency = 2 bytes · 1024 · K / rate.",
    "The curves at M = 1 may be bound by the host: none falls below 23 µs, where others have 4 to "
    "10 µs by CUDA graph (aiconfigurator-core 0.12.0). What misaligned sizes cost may be more.",
    "The curves of attention with a forced backend are a table of the repository's report.md, to "
    "be compared with one another rather than with the figure.",
    "Points that the figures do not determine exactly are left out. So is Fig. 10: it times a "
    "whole model, not an operator.",
)
H100_NOTES = (
    "Figures 12 and 13 of the paper. " + NO_REPEATS,
    "linear with layout nn is torch.mm with row-major A(M, K) and B(K, N).",
    "Fig. 13 gives rates. Latency = 2·M·N·K / rate with M = 512 and the other dim 4096; for the "
    "row sum latency = 2 bytes · 1024 · K / rate.",
    "The curves of linear may be bound by the host: the best size takes 48 to 49 µs, where others "
    "have 24.1 to 25.2 µs by CUDA graph (aiconfigurator-core 0.12.0). What misaligned sizes cost "
    "may be more.",
    "The GEMM and GEMV sweeps of the repository that are not in the paper are left out: their "
    "latency does not depend on M, N or K, so they seem bound by the host.",
    "Fig. 14 times a whole model, not an operator, so it is no curve: prefill of Llama-3-8B at "
    "128, 256, 512 and 1024 tokens takes {dense} ms dense, {pruned} ms pruned by LLM-Pruner and "
    "{rounded} ms pruned with round_to=8.",
)
FORCED = "forced_backend_sdpa_A100_ms_from_report_md"
BACKENDS = {"FLASH": "flash", "MEM_EFFICIENT": "efficient", "MATH": "math"}
ATTENTION = {"batch": 4, "heads": 32, "kv_heads": 32, "q_len": 2048, "kv_len": 2048}
WARMING = "taken while the clock was still rising (all residue classes are slower below 4008)"

Rate = Callable[[int, float], float]


@dataclass(frozen=True)
class Gpu:
    """One device of the paper: its folder of the data set, its map and where its figures are."""

    folder: str
    name: str
    arch: str
    suffix: str
    files: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def map_name(self) -> str:
        return f"{self.folder}-published"


@dataclass(frozen=True)
class Figure:
    """One file of the data set and what its rows are curves of.

    ``to_us`` turns (d, value) into microseconds. ``axes`` gives the fixed dims by swept
    axis. ``series`` limits the rows; ``not_before`` drops an axis's first dims, for a reason.
    """

    file: str
    operator: str
    axes: Mapping[str, Mapping[str, int]]
    flags: Mapping[str, Flag]
    timer: str
    count: int
    to_us: Rate = lambda d, value: value
    not_before: Mapping[str, int] = field(default_factory=dict)


def _linear(layout: str) -> dict[str, Flag]:
    return {"bias": False, "cache": "warm", "layout": layout}


def _from_tflops(d: int, value: float) -> float:
    return 2 * 512 * 4096 * d / (value * 1e6)


FIGURES = [
    Figure(
        "fig2_sdpa_latency.csv", "attention",
        {"head_dim": ATTENTION},
        {"backend": "auto", "cache": "warm", "causal": False, "mask": "none"},
        "cuda events, mean", 600, lambda d, value: value * 1000,
    ),
    Figure(
        "fig_gemm_alignment.csv", "linear",
        {"M": {"N": 2048, "K": 128}, "N": {"M": 2048, "K": 128}, "K": {"M": 2048, "N": 2048}},
        _linear("nn"), "cuda events, mean of 200, median-filtered over dims", 200,
    ),
    Figure(
        "fig_gemv_alignment.csv", "linear",
        {"K": {"M": 1, "N": 4096}, "N": {"M": 1, "K": 4096}},
        _linear("tn"), "cuda events, mean", 50,
    ),
    Figure(
        "extra_gemv_coarse_sweep.csv", "linear",
        {"K": {"M": 1, "N": 4096}, "N": {"M": 1, "K": 4096}},
        {**_linear("tn"), "sweep": "coarse"}, "cuda events, mean", 100,
    ),
    Figure(
        "fig_tc_k_alignment.csv", "linear", {"K": {"M": 512, "N": 4096}},
        _linear("nn"), "cuda events, mean", 100, _from_tflops, {"K": 4008},
    ),
    Figure(
        "fig_tc_n_alignment.csv", "linear", {"N": {"M": 512, "K": 4096}},
        _linear("nn"), "cuda events, mean", 100, _from_tflops,
    ),
    Figure(
        "fig_l2_alignment.csv", "row_sum", {"K": {"rows": 1024}},
        {}, "cuda events, mean", 50, lambda d, value: 2 * 1024 * d / (value * 1000),
    ),
]  # fmt: skip


A100 = Gpu(
    "a100", "NVIDIA A100 80GB", "sm80", "", tuple(figure.file for figure in FIGURES), A100_NOTES
)
H100 = Gpu(
    "h100", "NVIDIA H100 80GB", "sm90", "_h100",
    ("fig2_sdpa_latency.csv", "fig_tc_k_alignment.csv", "fig_tc_n_alignment.csv",
     "fig_l2_alignment.csv"),
    H100_NOTES,
)  # fmt: skip
GPUS = {gpu.folder: gpu for gpu in (A100, H100)}
PREFILL = {"dense": "baseline", "pruned": "llm_pruner", "rounded": "llm_pruner_gac"}
"""What a note calls the series of the prefill figure."""


def published_map(folder: Path, gpu: Gpu = A100) -> CliffMap:
    """The map of the data set's files of one GPU in ``folder`` (or its subfolder of that name).

    Files that are absent are left out. Raises :class:`MapError` where none is there, or one
    cannot be read as the data set's README describes.
    """
    folder = folder / gpu.folder if (folder / gpu.folder).is_dir() else folder
    figures = [
        replace(figure, file=_file(figure.file, gpu), not_before={}) if gpu is not A100 else figure
        for figure in FIGURES
        if figure.file in gpu.files
    ]
    present = [figure for figure in figures if (folder / figure.file).is_file()]
    if not present:
        raise MapError(
            f"{folder} holds none of the {gpu.folder.upper()} files, {figures[0].file} to begin "
            "with"
        )
    return CliffMap(
        MapFile(
            schema_=SCHEMA,
            name=gpu.map_name,
            device=Device(kind="cuda", name=gpu.name, arch=gpu.arch),
            provenance=Provenance(
                kind="published",
                created="2026-04-29",
                source=SOURCE,
                citation=CITATION,
                licence=LICENCE,
                stack={"torch": "2.9.1", "cuda": "12.8"},
                notes=_notes(folder, gpu),
            ),
            noise=Noise(floor=None, reason="published without repeats"),
            curves=[
                *(curve for figure in present for curve in _curves(folder, figure)),
                *(_forced_backends(folder) if gpu is A100 else ()),
            ],
        )
    )


def _file(name: str, gpu: Gpu) -> str:
    return name.removesuffix(".csv") + gpu.suffix + ".csv"


def _notes(folder: Path, gpu: Gpu) -> list[str]:
    """The GPU's notes; one that quotes the prefill figure only where that is at hand."""
    path = folder / _file("fig_prefill_scaling.csv", gpu)
    if not path.is_file():
        return [note for note in gpu.notes if "{" not in note]
    with path.open(newline="") as text:
        rows = list(csv.DictReader(text))
    values = {
        name: ", ".join(f"{float(row['value']):.1f}" for row in rows if row["series"] == series)
        for name, series in PREFILL.items()
    }
    return [note.format(**values) for note in gpu.notes]


def _curves(folder: Path, figure: Figure) -> list[Curve]:
    rows: dict[str, list[Measured]] = {axis: [] for axis in figure.axes}
    failed: dict[str, dict[int, str]] = {axis: {} for axis in figure.axes}
    with (folder / figure.file).open(newline="") as text:
        for line, row in enumerate(csv.DictReader(text), start=2):
            try:
                axis, d, value = row["axis"], int(row["d"]), float(row["value"])
                exact = row["src"] != "interp"
                latency = figure.to_us(d, value)
                members = rows[axis]
            except (KeyError, ValueError, ZeroDivisionError) as error:
                raise MapError(
                    f"{figure.file}, line {line}: not a row of the published data ({error!r})"
                ) from None
            if d < figure.not_before.get(axis, 0):
                failed[axis][d] = WARMING
            elif exact:
                members.append(Measured(d, latency, count=figure.count))
    return [
        make_curve(
            Axis(figure.operator, axis, fixed, "float16", figure.flags, figure.timer),
            rows[axis],
            failed[axis],
        )
        for axis, fixed in figure.axes.items()
    ]


def _forced_backends(folder: Path) -> list[Curve]:
    """Attention under each backend, from ``settings.json`` in the folder or the one above."""
    path = next((p for p in (folder, folder.parent) if (p / "settings.json").is_file()), None)
    if path is None:
        return []
    try:
        table = json.loads((path / "settings.json").read_text(encoding="utf-8"))[FORCED]
        columns, rows = table["columns"], table["rows"]
        cells = [dict(zip(columns, row, strict=True)) for row in rows]
        dims = [int(row["d"]) for row in cells]
        times = {tool: [row[tool] for row in cells] for tool in BACKENDS}
    except (ValueError, KeyError, TypeError) as error:
        raise MapError(f"{path / 'settings.json'} lacks the table {FORCED}: {error!r}") from None
    curves = []
    for tool, backend in BACKENDS.items():
        known = [(d, ms) for d, ms in zip(dims, times[tool], strict=True) if ms is not None]
        failed = {d: "the backend refuses it" for d in dims if d not in dict(known)}
        flags: dict[str, Flag] = {**FIGURES[0].flags, "backend": backend}
        what = Axis("attention", "head_dim", ATTENTION, "float16", flags, "report.md")
        measured = [Measured(d, ms * 1000, count=600) for d, ms in known]
        curves.append(make_curve(what, measured, failed))
    return curves


def main(arguments: list[str]) -> int:
    if len(arguments) != 3 or arguments[0] not in GPUS:
        print("usage: python tools/published_map.py a100|h100 DATA_DIR OUT.json", file=sys.stderr)
        return 2
    gpu, folder, out = arguments
    try:
        published_map(Path(folder), GPUS[gpu]).save(out)
    except MapError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
