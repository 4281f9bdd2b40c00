"""Verbs that give reasons: ``evidence ncu``, ``cpu``, ``static`` …, ``explain``, ``report``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from gacprof.cli import options
from gacprof.cli.printing import Json, emit, plot_width, print_json, print_table, say, say_notes
from gacprof.cliffmap.request import ExplainRequest
from gacprof.core.errors import MapError, MeasurementError
from gacprof.core.formatting import percent
from gacprof.core.texts import sizes
from gacprof.report.making import ReportRequest

if TYPE_CHECKING:
    from gacprof.explain.causes import Explanation
    from gacprof.extras.evidence.static import CompiledProbe
    from gacprof.kernels import Group
    from gacprof.kernels.fa2 import FlashTemplates, Tile
    from gacprof.kernels.onednn import CpuImplementation
    from gacprof.kernels.sdpa import BackendChoice, Question


app = typer.Typer(
    help="Gather evidence of what served a dim: counters, compilers, CPU libraries, names.",
    no_args_is_help=True,
)

Samples = Annotated[Path, Argument(help="A sweep's folder.")]
Edges = Annotated[bool, Option("--edges", help="Only the cliffs' edges and their neighbours.")]
Torch = Annotated[str | None, Option(help="With --arch. Default: installed.")]
Report = Annotated[Path | None, Option(help="Read this .ncu-rep instead of collecting one.")]


@app.command()
def ncu(
    samples: Annotated[Path | None, Argument(help="A sweep's folder; --report needs none.")] = None,
    edges: Edges = False,
    report: Report = None,
    device: Annotated[str, Option(help="The GPU to count on: cuda:0, cuda:1 …")] = "cuda:0",
    timeout: Annotated[float, Option(min=1, help="Seconds for ncu, in all.")] = 1800,
    as_json: bool = Json,
) -> None:
    """Count with Nsight Compute at a sweep's points, or read a report that exists.

    Counters are kept in the folder, where 'map build' and 'explain' find them. Without ncu or
    permission it says how to get them, and that is no failure.
    """
    from gacprof.extras.evidence.collecting import count
    from gacprof.extras.evidence.ncu import read_report

    problem = ""
    if samples is not None:
        known, problem = count(samples, edges, report, device, timeout)
        launches = [(str(point), launch) for point, listed in known.items() for launch in listed]
    elif report is not None:
        launches = [("", launch) for launch in read_report(report)]
    else:
        raise MeasurementError("give a sweep's folder, or --report FILE.ncu-rep, or both")
    if as_json:
        rows = [{"point": point or None} | launch.as_dict() for point, launch in launches]
        print_json({"launches": rows, "problem": problem}, "kernel-launches")
        return
    cells = [
        (point or " / ".join(launch.ranges), str(launch.kernel)[:72],
         *(_value(launch.values, key) for key in _SHOWN), _counts(launch.loads),
         _counts(launch.mma))
        for point, launch in launches
    ]  # fmt: skip
    if cells:
        print_table("", ("point", "kernel", *_SHOWN.values(), "loads", "MMA"), cells)
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
    from gacprof.extras.evidence.collecting import ask_libraries

    emit(ask_libraries(samples, edges), as_json, _print_implementations, samples)


def _print_implementations(found: Sequence[CpuImplementation], samples: Path) -> None:
    from gacprof.kernels.evidence import IMPLEMENTATIONS

    groups: dict[str, list[str]] = {}
    for one in found:
        groups.setdefault(one.mechanism or f"unknown: {one.reason}", []).append(str(one.point))
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
    from gacprof.extras.evidence import static as compiled

    rows = compiled.table(probe or compiled.SHOWN, arch or compiled.ARCHITECTURES)
    emit(rows, as_json, _print_static)


def _print_static(rows: Sequence[CompiledProbe]) -> None:
    from gacprof.extras.evidence.static import version

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


def _print_groups(groups: Sequence[Group]) -> None:
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
        arch or "", (batch, heads, q_len, head_dim), (*keys, head_dim),
        (*keys, v_head_dim or head_dim), dtype, torch or metadata.version("torch"), cudnn, mask,
        causal,
    )  # fmt: skip
    emit(choose(question) if arch else ask(question), as_json, _print_choice, question)


def _print_choice(choice: BackendChoice, question: Question) -> None:
    say(choice.explanation)
    refused = {**choice.refusals, choice.backend: "serves"}
    later = "could serve; comes later in the order"
    rows = [(name, refused.get(name, later)) for name in choice.order]
    live = choice.basis == "live"
    where = ", asked on the GPU at hand" if live else f" on {question.arch}, by rules"
    print_table(f"torch {question.torch}{where}", ("backend", "why, or why not"), rows)
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
    def shown(tiles: tuple[Tile, ...]) -> str:
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
    from gacprof.operators import OPERATORS

    chip = architecture(arch)
    known = chip.tiers_for(dtype)
    rows = sizes(row, "--row")
    for name in rows:
        if name not in (dims := OPERATORS["linear"].dims):
            raise MapError(f"--row: '{name}' is no dim of a GEMM (it has {', '.join(dims)})")
    predicted = predict(arch, dtype, rows) if rows else None
    if as_json:
        listed = [{"elements": tier.elements(dtype)} | asdict(tier) for tier in known]
        data = {"arch": chip.name, "dtype": dtype, "tiers": listed}
        print_json(data | {"prediction": predicted.as_dict() if predicted else None}, "tiers")
    elif predicted:
        say(f"{predicted.sentence} (by rules)")
    else:
        cells = [(t.elements(dtype), t.load, t.kernels, t.why, t.basis) for t in known]
        columns = ("rows ÷", "loads", "kernels", "why", "known from")
        print_table(f"{chip.name} ({chip.chips}), {dtype}", columns, cells)
        say_notes(chip.notes)


@options.grouped
def explain(
    asked: ExplainRequest,
    *,
    why: Annotated[bool, Option("--why", help="Print the evidence of each cause.")] = False,
    as_json: bool = Json,
) -> None:
    """Say why a dim is slow: what serves it, what each cause costs, on what evidence."""
    import gacprof

    emit(gacprof.explain_dim(asked), as_json, _print_explanation, str(asked.cliff_map), why)


def _print_explanation(found: Explanation, cliff_map: str, why: bool) -> None:
    from gacprof.report.figures import staircase_text

    say(found.headline)
    if not why:
        for reason in found.reasons:
            say(f"- {reason}")
    elif found.causes:
        rows = [
            (c.kind, percent(c.share), c.sentence, c.basis, ", ".join(c.evidence) or None)
            for c in found.causes
        ]
        print_table("", ("cause", "share", "what", "basis", "evidence"), rows)
    (loaded,) = options.load_maps(cliff_map)
    curve = next((c for c in loaded.curves if c.identity == found.curve), None)
    if curve is not None:
        say(staircase_text(curve, plot_width(), asked=found.d))
    say(f"{found.curve} of map {loaded.name}")
    if found.causes and not why:
        say("--why prints the evidence of each cause")


@options.grouped
def report(asked: ReportRequest) -> None:
    """Write one HTML page, with figures as SVG and PNG: of a model, which is diagnosed and planned
    by a map (--map) or by the rules of a GPU (--gpu), or from what the other verbs left."""
    import gacprof

    say(str(gacprof.write_report(asked)))
