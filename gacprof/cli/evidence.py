"""Verbs that gather evidence of what served a dim: ``evidence ncu``, ``cpu``, ``static`` …"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gacprof.cli import evidence_attention, evidence_tiers
from gacprof.cli.printing import Json, print_json, print_table, say
from gacprof.core.errors import MeasurementError

if TYPE_CHECKING:
    from gacprof.core.points import Point
    from gacprof.kernels.ncu import KernelCounters

app = typer.Typer(
    help="Gather evidence of what served a dim: counters, compilers, CPU libraries, names.",
    no_args_is_help=True,
)

for room in (evidence_attention, evidence_tiers):
    room.register(app)

Samples = Annotated[Path, typer.Argument(help="A sweep's folder.")]
Edges = Annotated[
    bool, typer.Option("--edges", help="Only the cliffs' edges and their neighbours.")
]


@app.command()
def ncu(
    samples: Annotated[
        Path | None, typer.Argument(help="A sweep's folder; not needed to read a --report.")
    ] = None,
    edges: Edges = False,
    report: Annotated[
        Path | None, typer.Option(help="Read this .ncu-rep instead of collecting one.")
    ] = None,
    device: Annotated[str, typer.Option(help="The GPU to count on: cuda:0, cuda:1 …")] = "cuda:0",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for ncu, in all.")] = 1800,
    as_json: bool = Json,
) -> None:
    """Count with Nsight Compute at a sweep's points, or read a report that exists.

    Counters are kept in the folder, where 'map build' and 'explain' find them. Without ncu or
    permission it says how to get them, and that is no failure.
    """
    from gacprof.kernels.evidence_files import read_counters, write_counters
    from gacprof.kernels.ncu import read_report
    from gacprof.kernels.ncu_collect import by_point, collect

    if samples is None:
        if report is None:
            raise MeasurementError("give a sweep's folder, or --report FILE.ncu-rep, or both")
        _print_launches([("", launch) for launch in read_report(report)], as_json, "")
        return
    points = _points(samples, edges, reading=report is not None)
    if report is not None:
        counters, problem = by_point(points, read_report(report)), ""
        if not counters:
            problem = (
                f"no launch in {report} belongs to a point of {samples}: it is of another sweep, "
                "or of another tool; leave the folder out to see all launches"
            )
    else:
        made = collect(points, samples / "counters.ncu-rep", timeout, _index(device))
        counters, problem = made.counters, made.problem
    known = {point: counters[point.id] for point in points if point.id in counters}
    if known:
        write_counters(samples, read_counters(samples) | known)
    launches = [(str(p), launch) for p, listed in known.items() for launch in listed]
    _print_launches(launches, as_json, problem)


def _index(device: str) -> int:
    kind, _, index = device.partition(":")
    if kind != "cuda" or not (index or "0").isdigit():
        raise MeasurementError(f"counters are a GPU's: --device is cuda:0, cuda:1 …, not {device}")
    return int(index or 0)


@app.command()
def cpu(samples: Samples, edges: Edges = False, as_json: bool = Json) -> None:
    """Ask oneDNN and MKL which implementation serves a CPU sweep's points.

    Kept in the folder, where 'map build' finds it and names the tiers after it.
    """
    from gacprof.kernels.evidence_files import read_implementations, write_implementations
    from gacprof.kernels.onednn import implementations
    from gacprof.sweeping import environment_of

    environment = environment_of(samples)
    if environment.kind != "cpu":
        raise MeasurementError(
            f"{samples} was measured on {environment.name}, which is no CPU: its kernels are in "
            "the samples already"
        )
    found = implementations(_points(samples, edges, reading=True))
    known = read_implementations(samples) | {one.point: one for one in found}
    path = write_implementations(samples, list(known.values()))
    if as_json:
        print_json([one.as_dict() for one in found])
        return
    groups: dict[str, list[str]] = {}
    for one in found:
        groups.setdefault(one.mechanism or f"not told: {one.reason}", []).append(str(one.point))
    rows = [(name, len(listed), listed[0]) for name, listed in groups.items()]
    print_table("", ("implementation", "points", "such as"), rows)
    say(f"kept: {path}    next: gacprof map build {samples}")


@app.command()
def static(
    probe: Annotated[
        list[str] | None, typer.Option(help="row_copy, row_sum or gemm; repeatable.")
    ] = None,
    arch: Annotated[list[str] | None, typer.Option(help="sm80 …; repeatable.")] = None,
    as_json: bool = Json,
) -> None:
    """Compile our Triton probes, without a GPU, and print loads and MMA by divisibility."""
    from gacprof.kernels import static as compiled

    rows = compiled.table(probe or compiled.SHOWN, arch or compiled.ARCHITECTURES)
    if as_json:
        print_json([row.as_dict() for row in rows])
        return
    cells = [
        (r.probe, r.arch, r.divisible_by, r.ptx_load, r.sass_load, r.load_bytes, r.ptx_mma,
         r.sass_mma)
        for r in rows
    ]  # fmt: skip
    columns = ("probe", "arch", "÷", "PTX load", "SASS load", "bytes", "PTX MMA", "SASS MMA")
    print_table(f"Triton {compiled.version()}, fp16, dims divisible by ÷", columns, cells)
    for reason in dict.fromkeys(row.reason for row in rows if row.reason):
        say(f"note: {reason}")


@app.command()
def names(
    kernels: Annotated[
        list[str],
        typer.Argument(help="Kernel names, in order of launch; - reads them from stdin, by line."),
    ],
    as_json: bool = Json,
) -> None:
    """Say what kernel names mean; what no rule knows is 'unknown' with its name kept."""
    from gacprof.kernels import attach

    if kernels == ["-"]:
        kernels = [line.strip() for line in sys.stdin if line.strip()]
        if not kernels:
            raise MeasurementError("no kernel names on stdin: one a line is read")
    groups = attach(kernels)
    if as_json:
        print_json([group.as_dict() for group in groups])
        return
    for group in groups:
        for kernel in group.before:
            say(f"  before: {kernel}")
        say(str(group.main))
        for kernel in group.after:
            say(f"  after: {kernel}")


def _points(samples: Path, edges: bool, reading: bool) -> list[Point]:
    """The folder's measured points, or those at its map's edges."""
    from gacprof.explain.annotate import build_explained, edge_points
    from gacprof.sweeping import environment_of, read_samples

    kind = environment_of(samples).kind
    if kind != "cuda" and not reading:
        raise MeasurementError(
            f"{samples} was measured on a {kind} device: Nsight Compute counts on NVIDIA GPUs "
            "only ('gacprof evidence cpu' asks a CPU's libraries)"
        )
    if edges:
        built = build_explained(samples)
        points = [point for curve in built.curves for point in edge_points(curve)]
        if not points:
            raise MeasurementError(f"the map of {samples} has no cliff: leave --edges out")
    else:
        points = [s.point for s in read_samples(samples) if s.status == "ok"]
    return list(dict.fromkeys(points))


def _print_launches(
    launches: Sequence[tuple[str, KernelCounters]], as_json: bool, problem: str
) -> None:
    if as_json:
        rows = [{"point": point or None} | launch.as_dict() for point, launch in launches]
        print_json({"launches": rows, "problem": problem})
        return
    rows_ = [
        (
            point or " / ".join(launch.ranges), str(launch.kernel)[:72],
            *(_figure(launch.values, key) for key in _SHOWN),
            _counts(launch.loads), _counts(launch.mma),
        )
        for point, launch in launches
    ]  # fmt: skip
    if rows_:
        print_table("", ("point", "kernel", *_SHOWN.values(), "loads", "MMA"), rows_)
    if problem:
        say(f"note: {problem}")


_SHOWN = {
    "duration_ns": "ns",
    "tensor_active_pct": "tensor %",
    "l2_read_sectors": "L2 sectors",
    "dram_read_bytes": "DRAM bytes",
    "waves_per_sm": "waves",
}
"""Counters that the table has room for; ``--json`` gives all."""


def _figure(values: Mapping[str, float | None], key: str) -> str | None:
    value = values.get(key)
    return None if value is None else f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


def _counts(counts: Mapping[str, int] | None) -> str | None:
    if counts is None:
        return None
    return " ".join(f"{name}×{count:,}" for name, count in sorted(counts.items())) or "none"
