"""Verbs that give reasons: ``evidence ncu``, ``cpu`` …, ``explain``, ``report``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gacprof.api.evidence import CountRequest, CpuRequest, NamesRequest, SdpaRequest
from gacprof.cli.options import Output, Why, from_requests
from gacprof.cli.printing import emit, plot_width, print_table, say, say_notes
from gacprof.cliffmap.request import ExplainRequest
from gacprof.core.errors import MeasurementError
from gacprof.core.formatting import percent
from gacprof.reporting.making import ReportRequest

if TYPE_CHECKING:
    from gacprof.api.evidence import KernelLaunches
    from gacprof.explaining.causes import Explanation
    from gacprof.kernels import KernelGroup
    from gacprof.kernels.onednn import CpuImplementation
    from gacprof.kernels.sdpa import BackendChoice


app = typer.Typer(
    help="Show what served a size: counters, compilers, libraries.",
    no_args_is_help=True,
)


@app.command()
@from_requests
def ncu(asked: CountRequest, output: Output) -> None:
    """Count with Nsight Compute, or read a report that exists.

    Counters are kept in the folder, where 'map build' and 'explain' find them. Without ncu or
    permission it says how to get them, and that is no failure.
    """
    import gacprof

    emit(gacprof.count_kernels(asked), output.as_json, _print_launches)


def _print_launches(found: KernelLaunches) -> None:
    cells = [
        (one.point or " / ".join(one.counters.ranges), str(one.counters.kernel)[:72],
         *(_value(one.counters.values, key) for key in _SHOWN), _counts(one.counters.loads),
         _counts(one.counters.mma))
        for one in found.launches
    ]  # fmt: skip
    if cells:
        print_table("", ("point", "kernel", *_SHOWN.values(), "loads", "MMA"), cells)
    say_notes([found.problem] if found.problem else ())


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
@from_requests
def cpu(asked: CpuRequest, output: Output) -> None:
    """Ask oneDNN and MKL which implementation serves a CPU sweep's points.

    Kept in the folder, where 'map build' finds it and names the tiers after it.
    """
    import gacprof

    found = gacprof.ask_cpu_libraries(asked)
    emit(found, output.as_json, _print_implementations, Path(asked.samples))


def _print_implementations(found: Sequence[CpuImplementation], samples: Path) -> None:
    from gacprof.kernels.evidence import IMPLEMENTATIONS

    groups: dict[str, list[str]] = {}
    for one in found:
        groups.setdefault(one.mechanism or f"unknown: {one.reason}", []).append(str(one.point))
    rows = [(name, len(listed), listed[0]) for name, listed in groups.items()]
    print_table("", ("implementation", "points", "such as"), rows)
    say(f"kept: {samples / IMPLEMENTATIONS}    next: gacprof map build {samples}")


@app.command()
@from_requests
def names(asked: NamesRequest, output: Output) -> None:
    """Say what kernel names mean; what no rule knows is 'unknown' with its name kept."""
    import gacprof

    if list(asked.kernels) == ["-"]:
        kernels = [line.strip() for line in sys.stdin if line.strip()]
        if not kernels:
            raise MeasurementError("no kernel names on stdin: one a line is read")
        asked = replace(asked, kernels=kernels)
    emit(gacprof.read_kernel_names(asked), output.as_json, _print_groups)


def _print_groups(groups: Sequence[KernelGroup]) -> None:
    for group in groups:
        for kernel in group.before:
            say(f"  before: {kernel}")
        say(str(group.main))
        for kernel in group.after:
            say(f"  after: {kernel}")


@app.command()
@from_requests
def sdpa(asked: SdpaRequest, output: Output) -> None:
    """Say which backend serves an attention call, and why each of the others does not.

    With --arch by rules of that PyTorch release, for any chip; without, PyTorch itself is
    asked about the GPU at hand.
    """
    import gacprof

    emit(gacprof.sdpa_backend(asked), output.as_json, _print_choice, asked)


def _print_choice(choice: BackendChoice, asked: SdpaRequest) -> None:
    say(choice.explanation)
    refused = {**choice.refusals, choice.backend: "serves"}
    later = "could serve; comes later in the order"
    rows = [(name, refused.get(name, later)) for name in choice.order]
    live = choice.basis == "live"
    where = ", asked on the GPU at hand" if live else f" on {asked.arch}, by rules"
    torch = asked.torch or metadata.version("torch")
    print_table(f"torch {torch}{where}", ("backend", "why, or why not"), rows)
    say_notes(choice.doubts)


@from_requests
def explain(asked: ExplainRequest, output: Why) -> None:
    """Say why a size is slow, and on what evidence."""
    import gacprof

    found = gacprof.explain(asked)
    emit(found, output.as_json, _print_explanation, str(asked.cliff_map), output.why)


def _print_explanation(found: Explanation, cliff_map: str, why: bool) -> None:
    from gacprof.cliffmap import CliffMap
    from gacprof.reporting.figures import staircase_text

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
    loaded = CliffMap.load(cliff_map)
    curve = next((c for c in loaded.curves if c.identity == found.curve), None)
    if curve is not None:
        say(staircase_text(curve, plot_width(), asked=found.d))
    say(f"{found.curve} of map {loaded.name}")
    if found.causes and not why:
        say("--why prints the evidence of each cause")


@from_requests
def report(asked: ReportRequest) -> None:
    """Write an HTML page of a model, or of what other verbs left.

    A model is diagnosed and planned by a map (--map) or by the rules of a GPU (--gpu). Figures
    are written as SVG and PNG too."""
    import gacprof

    say(str(gacprof.report(asked)))
