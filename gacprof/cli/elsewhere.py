"""Verbs about GPUs that are not at hand: ``gpus``, and the times that ``diagnose --gpu`` adds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gacprof.api.gpus import GpusRequest
from gacprof.cli.options import Output, from_requests
from gacprof.cli.printing import MOST_ROWS, emit, print_table, say, say_notes
from gacprof.core.formatting import bounded_time

if TYPE_CHECKING:
    from gacprof.api.gpus import Gpus
    from gacprof.cliffmap.estimate import Interval
    from gacprof.elsewhere.model import StepTimes


@from_requests
def gpus(asked: GpusRequest, output: Output) -> None:
    """List the GPUs that something is known of.

    There are rules, data sheets, shipped maps, and measurements by others."""
    import gacprof

    emit(gacprof.gpus(asked), output.as_json, _print_gpus, asked.gpu is None)


def _print_gpus(found: Gpus, every: bool) -> None:
    if every:
        columns = ("gpu", "rules and data sheet", "shipped map", "measured elsewhere", "by")
        print_table("", columns, [
            (one.gpu, one.arch, one.shipped_map, f"{one.rows:,} rows" if one.rows else None,
             ", ".join(one.engines) or None)
            for one in found.gpus
        ])  # fmt: skip
        say("--gpu NAME lists its operators, engines and data types")
    else:
        columns = ("operator", "engine", "version", "data types", "rows")
        print_table("", columns, [
            (one.operator, one.framework, one.version, ", ".join(one.dtypes), f"{one.rows:,}")
            for one in found.measured
        ])  # fmt: skip
    say_notes([found.note])


def print_times(times: StepTimes, every: bool) -> None:
    """Totals with bounds, the parts that take longest, what has no time, and how the times came
    about."""
    if not times.totals:
        return
    from gacprof.reporting.tables import step_tables

    totals, *steps = step_tables(times.as_dict(), every)
    print_table(totals.title, totals.headings, totals.texts())
    for step in steps:
        lines = step.texts()
        few = lines if every else lines[: MOST_ROWS // 2]
        print_table(step.title, step.headings, few)
        if len(lines) > len(few):
            say(f"… and {len(lines) - len(few)} more (--all shows each)")
    say_notes(totals.notes)


def shown(time: Interval | None) -> str | None:
    return None if time is None else bounded_time(time.low, time.value, time.high)
