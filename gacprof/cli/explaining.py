"""Verbs that give reasons and write them up: ``explain``, ``report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from gacprof.cli import options
from gacprof.cli.options import Axis, Dtype, Fixed, Flags, MapName
from gacprof.cli.printing import Json, emit, plot_width, print_table, say
from gacprof.core.formatting import microseconds, percent

if TYPE_CHECKING:
    from gacprof.explain.causes import Explanation


def explain(
    cliff_map: MapName,
    d: Annotated[int, Option("--d", min=1, help="The dim.")],
    operator: Annotated[str, Option("--op", help="linear, attention …")],
    axis: Axis = None,
    fixed: Fixed = None,
    dtype: Dtype = None,
    flag: Flags = None,
    samples: Annotated[
        Path | None, Option(help="A sweep's folder with counters. Default: the map's own.")
    ] = None,
    as_json: bool = Json,
) -> None:
    """Say why a dim is slow: what serves it, what each cause costs, on what evidence."""
    import gacprof

    found = gacprof.explain_dim(
        cliff_map, operator, d, axis=axis, dtype=dtype, fixed=options.sizes(fixed),
        flags=options.flags(flag), samples=samples,
    )  # fmt: skip
    emit(found, as_json, _print_explanation, cliff_map)


def _print_explanation(found: Explanation, cliff_map: str) -> None:
    from gacprof.report.terminal import staircase_text

    say(found.row)
    rows = [
        (
            cause.kind, percent(cause.share), cause.sentence, cause.basis,
            ", ".join(cause.evidence) or None,
        )
        for cause in found.causes
    ]  # fmt: skip
    if rows:
        print_table("", ("cause", "share", "what", "basis", "evidence"), rows)
    (loaded,) = options.load_maps(cliff_map)
    say(f"{found.curve} of map {loaded.name}: {found.d} takes {microseconds(found.latency_us)}, "
        f"{found.reference} {microseconds(found.reference_us)}")  # fmt: skip
    curve = next((c for c in loaded.curves if c.identity == found.curve), None)
    if curve is not None:
        say(staircase_text(curve, plot_width(), asked=found.d))


def report(
    out: Annotated[Path, Option(help="The page's folder.")],
    cliff_map: Annotated[
        str | None, Option("--map", help="A shipped map's name, or a file.")
    ] = None,
    diagnosis: Annotated[Path | None, Option(help="What diagnose --json printed.")] = None,
    plan: Annotated[Path | None, Option(help="A plan's file.")] = None,
    realigned: Annotated[Path | None, Option(help="What realign --json printed.")] = None,
    verified: Annotated[Path | None, Option(help="What verify --json printed.")] = None,
    benched: Annotated[Path | None, Option(help="What bench --json printed.")] = None,
    title: Annotated[str | None, Option(help="The page's heading.")] = None,
) -> None:
    """Write one HTML page, with figures as SVG and PNG, from what the other verbs left."""
    import gacprof

    page = gacprof.write_report(
        out, cliff_map=cliff_map, diagnosis=diagnosis, plan=plan, realigned=realigned,
        verification=verified, bench=benched, title=title,
    )  # fmt: skip
    say(str(page))
