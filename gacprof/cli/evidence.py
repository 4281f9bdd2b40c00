"""Verbs that gather evidence of what served a dim: ``evidence ncu``, ``cpu``, ``static`` …"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gacprof.cli.options import sizes
from gacprof.cli.printing import Json, emit, print_json, print_table, say, say_notes
from gacprof.core.errors import MapError, MeasurementError

if TYPE_CHECKING:
    from gacprof.core.points import Point
    from gacprof.kernels.fa2 import FlashTemplates
    from gacprof.kernels.ncu import KernelCounters
    from gacprof.kernels.onednn import CpuImplementation
    from gacprof.kernels.sdpa import BackendChoice, Question
    from gacprof.kernels.static import CompiledProbe

app = typer.Typer(
    help="Gather evidence of what served a dim: counters, compilers, CPU libraries, names.",
    no_args_is_help=True,
)

Samples = Annotated[Path, Argument(help="A sweep's folder.")]
Edges = Annotated[bool, Option("--edges", help="Only the cliffs' edges and their neighbours.")]
Torch = Annotated[str | None, Option(help="With --arch. Default: installed.")]


@app.command()
def ncu(
    samples: Annotated[
        Path | None, Argument(help="A sweep's folder; not needed to read a --report.")
    ] = None,
    edges: Edges = False,
    report: Annotated[
        Path | None, Option(help="Read this .ncu-rep instead of collecting one.")
    ] = None,
    device: Annotated[str, Option(help="The GPU to count on: cuda:0, cuda:1 …")] = "cuda:0",
    timeout: Annotated[float, Option(min=1, help="Seconds for ncu, in all.")] = 1800,
    as_json: bool = Json,
) -> None:
    """Count with Nsight Compute at a sweep's points, or read a report that exists.

    Counters are kept in the folder, where 'map build' and 'explain' find them. Without ncu or
    permission it says how to get them, and that is no failure.
    """
    from gacprof.kernels.ncu import read_report

    launches: list[tuple[str, KernelCounters]] = []
    problem = ""
    if samples is not None:
        known, problem = _collect_counters(samples, edges, report, device, timeout)
        launches = [(str(p), launch) for p, listed in known.items() for launch in listed]
    elif report is not None:
        launches = [("", launch) for launch in read_report(report)]
    else:
        raise MeasurementError("give a sweep's folder, or --report FILE.ncu-rep, or both")
    if as_json:
        rows = [{"point": point or None} | launch.as_dict() for point, launch in launches]
        print_json({"launches": rows, "problem": problem})
    else:
        _print_launches(launches, problem)


def _collect_counters(
    folder: Path, edges: bool, report: Path | None, device: str, timeout_s: float
) -> tuple[dict[Point, list[KernelCounters]], str]:
    """(Nsight Compute's counters by point of a sweep, why there are none), kept in its folder."""
    from gacprof.kernels.evidence_files import read_counters, write_counters
    from gacprof.kernels.ncu import read_report
    from gacprof.kernels.ncu_collect import by_point, collect
    from gacprof.sweeping import environment_of

    kind = environment_of(folder).kind
    if kind != "cuda" and report is None:
        raise MeasurementError(
            f"{folder} was measured on a {kind} device: Nsight Compute counts on NVIDIA GPUs "
            "only ('gacprof evidence cpu' asks a CPU's libraries)"
        )
    points = _points(folder, edges)
    if report is None:
        made = collect(points, folder / "counters.ncu-rep", timeout_s, _gpu_index(device))
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


def _points(folder: Path, edges: bool) -> list[Point]:
    """The folder's measured points, or those at its map's edges."""
    from gacprof import build_map
    from gacprof.explain.annotate import edge_points
    from gacprof.sweeping import read_samples

    if edges:
        points = [p for curve in build_map(folder).curves for p in edge_points(curve)]
        if not points:
            raise MeasurementError(f"the map of {folder} has no cliff: leave --edges out")
    else:
        points = [s.point for s in read_samples(folder) if s.status == "ok"]
    return list(dict.fromkeys(points))


def _gpu_index(device: str) -> int:
    kind, _, index = device.partition(":")
    if kind != "cuda" or not (index or "0").isdigit():
        raise MeasurementError(f"counters are a GPU's: --device is cuda:0, cuda:1 …, not {device}")
    return int(index or 0)


def _print_launches(launches: Sequence[tuple[str, KernelCounters]], problem: str) -> None:
    rows = [
        (
            point or " / ".join(launch.ranges), str(launch.kernel)[:72],
            *(_value(launch.values, key) for key in _SHOWN),
            _counts(launch.loads), _counts(launch.mma),
        )
        for point, launch in launches
    ]  # fmt: skip
    if rows:
        print_table("", ("point", "kernel", *_SHOWN.values(), "loads", "MMA"), rows)
    say_notes([problem] if problem else ())


_SHOWN = {
    "duration_ns": "ns",
    "tensor_active_pct": "tensor %",
    "l2_read_sectors": "L2 sectors",
    "dram_read_bytes": "DRAM bytes",
    "waves_per_sm": "waves",
}
"""Counters that the table has room for; ``--json`` gives all."""


def _value(values: Mapping[str, float | None], key: str) -> str | None:
    value = values.get(key)
    return None if value is None else f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


def _counts(counts: Mapping[str, int] | None) -> str | None:
    if counts is None:
        return None
    return " ".join(f"{name}×{count:,}" for name, count in sorted(counts.items())) or "none"


@app.command()
def cpu(samples: Samples, edges: Edges = False, as_json: bool = Json) -> None:
    """Ask oneDNN and MKL which implementation serves a CPU sweep's points.

    Kept in the folder, where 'map build' finds it and names the tiers after it.
    """
    emit(_ask_libraries(samples, edges), as_json, _print_implementations, samples)


def _ask_libraries(folder: Path, edges: bool) -> list[CpuImplementation]:
    """What serves the points of a CPU's sweep, kept in its folder."""
    from gacprof.kernels.evidence_files import read_implementations, write_implementations
    from gacprof.kernels.onednn import implementations
    from gacprof.sweeping import environment_of

    environment = environment_of(folder)
    if environment.kind != "cpu":
        raise MeasurementError(
            f"{folder} was measured on {environment.name}, which is no CPU: its kernels are in "
            "the samples already"
        )
    found = implementations(_points(folder, edges))
    known = read_implementations(folder) | {one.point: one for one in found}
    write_implementations(folder, list(known.values()))
    return list(found)


def _print_implementations(found: Sequence[CpuImplementation], samples: Path) -> None:
    from gacprof.kernels.evidence_files import IMPLEMENTATIONS

    groups: dict[str, list[str]] = {}
    for one in found:
        groups.setdefault(one.mechanism or f"not told: {one.reason}", []).append(str(one.point))
    rows = [(name, len(listed), listed[0]) for name, listed in groups.items()]
    print_table("", ("implementation", "points", "such as"), rows)
    say(f"kept: {samples / IMPLEMENTATIONS}    next: gacprof map build {samples}")


@app.command()
def static(
    probe: Annotated[
        list[str] | None, Option(help="row_copy, row_sum or gemm; repeatable.")
    ] = None,
    arch: Annotated[list[str] | None, Option(help="sm80 …; repeatable.")] = None,
    as_json: bool = Json,
) -> None:
    """Compile our Triton probes, without a GPU, and print loads and MMA by divisibility."""
    from gacprof.kernels import static as compiled

    rows = compiled.table(probe or compiled.SHOWN, arch or compiled.ARCHITECTURES)
    emit(rows, as_json, _print_static)


def _print_static(rows: Sequence[CompiledProbe]) -> None:
    from gacprof.kernels.static import version

    cells = [
        (r.probe, r.arch, r.divisible_by, r.ptx_load, r.sass_load, r.load_bytes, r.ptx_mma,
         r.sass_mma)
        for r in rows
    ]  # fmt: skip
    columns = ("probe", "arch", "÷", "PTX load", "SASS load", "bytes", "PTX MMA", "SASS MMA")
    print_table(f"Triton {version()}, fp16, dims divisible by ÷", columns, cells)
    say_notes(dict.fromkeys(row.reason for row in rows if row.reason))


@app.command()
def names(
    kernels: Annotated[
        list[str],
        Argument(help="Kernel names, in order of launch; - reads them from stdin, by line."),
    ],
    as_json: bool = Json,
) -> None:
    """Say what kernel names mean; what no rule knows is 'unknown' with its name kept."""
    from gacprof.kernels import attach

    if kernels == ["-"]:
        kernels = [line.strip() for line in sys.stdin if line.strip()]
        if not kernels:
            raise MeasurementError("no kernel names on stdin: one a line is read")
    emit(attach(kernels), as_json, _print_groups)


def _print_groups(groups: Sequence[Any]) -> None:
    for group in groups:
        for kernel in group.before:
            say(f"  before: {kernel}")
        say(str(group.main))
        for kernel in group.after:
            say(f"  after: {kernel}")


@app.command()
def sdpa(
    head_dim: Annotated[int, Option("--head-dim", min=1)],
    arch: Annotated[
        str | None, Option(help="By rules, for this chip: sm80 … Default: the GPU at hand.")
    ] = None,
    torch: Torch = None,
    cudnn: Annotated[int | None, Option(help="With --arch, as 91002.")] = None,
    v_head_dim: Annotated[int | None, Option(min=1, help="Default: --head-dim.")] = None,
    dtype: Annotated[str, Option(help="float16, bfloat16 or float32.")] = "float16",
    mask: Annotated[str, Option(help="none, float or bool.")] = "none",
    causal: Annotated[bool, Option("--causal")] = False,
    batch: Annotated[int, Option(min=1)] = 1,
    heads: Annotated[int, Option(min=1)] = 32,
    kv_heads: Annotated[int | None, Option(min=1, help="Default: --heads.")] = None,
    q_len: Annotated[int, Option(min=1)] = 2048,
    kv_len: Annotated[int | None, Option(min=1, help="Default: --q-len.")] = None,
    as_json: bool = Json,
) -> None:
    """Say which backend serves an attention call, and why each of the others does not.

    With --arch by rules of that PyTorch release, for any chip; without, PyTorch itself is
    asked about the GPU at hand.
    """
    from gacprof.kernels.sdpa import Question, ask, choose

    if dtype not in ("float16", "bfloat16", "float32"):
        raise MapError(f"--dtype {dtype}: attention takes float16, bfloat16 or float32")
    keys = batch, kv_heads or heads, kv_len or q_len
    question = Question(
        arch=arch or "",
        q=(batch, heads, q_len, head_dim),
        k=(*keys, head_dim),
        v=(*keys, v_head_dim or head_dim),
        dtype=dtype,
        torch=torch or metadata.version("torch"),
        cudnn=cudnn,
        mask=mask,
        causal=causal,
    )
    emit(choose(question) if arch else ask(question), as_json, _print_choice, question)


def _print_choice(choice: BackendChoice, question: Question) -> None:
    say(choice.explain())
    later = "could serve; comes later in the order"
    rows = [
        (name, "serves" if name == choice.backend else choice.refusals.get(name, later))
        for name in choice.order
    ]
    where = (
        "asked on the GPU at hand" if choice.basis == "live" else f"on {question.arch}, by rules"
    )
    comma = "," if choice.basis == "live" else ""
    print_table(f"torch {question.torch}{comma} {where}", ("backend", "why, or why not"), rows)
    say_notes(choice.doubts)


@app.command()
def fa2(
    library: Annotated[
        Path | None, Argument(help="A libtorch_cuda.so. Default: the installed torch's.")
    ] = None,
    torch: Annotated[
        str | None, Option(help="What was recorded of this release instead, as 2.9.1.")
    ] = None,
    as_json: bool = Json,
) -> None:
    """List the FlashAttention-2 templates that a PyTorch build holds: the head_dim steps."""
    from gacprof.kernels.fa2 import read, recorded

    emit(recorded(torch) if torch else read(library), as_json, _print_templates)


def _print_templates(found: FlashTemplates) -> None:
    def shown(tiles: tuple[tuple[int, int, int], ...]) -> str:
        return " ".join(f"{q}×{k}/{warps}" for q, k, warps in tiles)

    rows = [
        (size, shown(found.forward.get(size, ())), shown(found.split.get(size, ())))
        for size in found.templates
    ]
    columns = ("head_dim up to", "prefill: q × k rows / warps", "decode (split-KV)")
    print_table(f"torch {found.torch}, {found.source}".strip(), columns, rows)


@app.command()
def tiers(
    arch: Annotated[str, Option(help="sm80, sm86, sm89, sm90, sm100 or sm120.")],
    dtype: Annotated[str, Option(help="As float16, tf32 or float8_e4m3.")] = "float16",
    row: Annotated[
        list[str] | None,
        Option("--row", metavar="DIM=SIZE", help="Predict for rows of K=107, N=4096 …"),
    ] = None,
    as_json: bool = Json,
) -> None:
    """List the alignment tiers of a chip, or predict that of a GEMM. Rules, not measurements."""
    from gacprof.kernels.tiers import architecture, predict

    chip = architecture(arch)
    known = chip.tiers.get(dtype)
    if not known:
        raise MapError(f"no rules for {dtype} on {chip.name} (there are {', '.join(chip.tiers)})")
    predicted = predict(arch, dtype, _gemm_dims(row)) if row else None
    if as_json:
        listed = [
            {"elements": t.elements(dtype), "bytes": t.bytes, "load": t.load, "kernels": t.kernels,
             "why": t.why, "basis": t.basis}
            for t in known
        ]  # fmt: skip
        data = {"arch": chip.name, "dtype": dtype, "tiers": listed}
        print_json(data | {"prediction": predicted.as_dict() if predicted else None})
    elif predicted:
        say(f"{predicted.sentence} (by rules)")
    else:
        rows = [(t.elements(dtype), t.load, t.kernels, t.why, t.basis) for t in known]
        columns = ("rows ÷", "loads", "kernels", "why", "known from")
        print_table(f"{chip.name} ({chip.chips}), {dtype}", columns, rows)
        say_notes(chip.notes)


def _gemm_dims(given: list[str]) -> dict[str, int]:
    from gacprof.operators import OPERATORS

    rows = sizes(given, "--row")
    known = OPERATORS["linear"].dims
    for name in rows:
        if name not in known:
            raise MapError(f"--row: '{name}' is no dim of a GEMM (it has {', '.join(known)})")
    return rows
