"""Verbs about GPUs that are not at hand: ``gpus``, and the times that ``diagnose --gpu`` adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gacprof.api.gpus import ElsewhereRequest, GpusRequest
from gacprof.cli.options import Drawing, Output, from_requests
from gacprof.cli.printing import MOST_ROWS, emit, print_table, say, say_notes
from gacprof.core.formatting import bounded_time, counted, microseconds, percent

if TYPE_CHECKING:
    from gacprof.api.gpus import Gpus
    from gacprof.cliffmap.estimate import Interval
    from gacprof.elsewhere.curves import MeasuredCurve
    from gacprof.elsewhere.model import Part, StepTimes, Total


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


@from_requests
def map_elsewhere(asked: ElsewhereRequest, output: Drawing) -> None:
    """Show what others measured on a GPU that is not at hand."""
    import gacprof

    curve = gacprof.measured_elsewhere(asked)
    written = []
    if output.out is not None:
        from gacprof.reporting.figures import measured_elsewhere
        from gacprof.reporting.figures_style import save

        written = save(measured_elsewhere(curve), output.out)
    emit(curve, output.as_json, _print_curve)
    for path in () if output.as_json else written:
        say(str(path))


def _print_curve(curve: MeasuredCurve) -> None:
    from gacprof.elsewhere.curves import as_rows

    at = ", ".join(f"{dim}={size}" for dim, size in curve.fixed.items())
    columns = [f"{line.engine} {line.version}" for line in curve.lines]
    rows = [(size, *map(microseconds, times)) for size, times in as_rows(curve)]
    title = f"{curve.operator} over {curve.axis} at {at}, {curve.dtype}, on {curve.gpu}"
    print_table(title, (curve.axis, *columns), rows)
    largest = sorted(curve.steps, key=lambda step: -step.change)[:6]
    for step in largest:
        if step.change > 0.05:
            say(
                f"{step.after} → {step.after + 1}: {percent(step.change, signed=True)} in "
                f"{step.engine}"
            )
    kernels = "; ".join(f"{line.engine}: {', '.join(line.kernels)}" for line in curve.lines)
    say_notes([
        f"measured elsewhere, once a size: {curve.package}", f"by the table's words, {kernels}"
    ])  # fmt: skip


def print_times(times: StepTimes, every: bool) -> None:
    """Totals with bounds, the parts that take longest, what has no time, and how the times came
    about."""
    if not times.totals:
        return
    say(
        f"whole steps on {times.gpu}, in {', '.join(times.dtypes)}"
        f"{f', on one of {times.tp} ranks' if times.tp > 1 else ''}, measured elsewhere by "
        f"{', '.join(times.sources)}"
    )
    rows = [
        (
            counted(total.tokens, "token"), shown_whole(total), shown(total.now),
            shown(total.saved), total.open or None, total.unknown or None,
        )
        for total in times.totals
    ]  # fmt: skip
    columns = ("step of", "at good sizes", "as they are", "good sizes save", "open", "no time")
    print_table("", columns, rows)
    for i, total in enumerate(times.totals):
        known = [p for p in times.parts if p.costs[i].good is not None]
        lines = [_row(p, i) for p in known] if every else _by_name(known, i)
        lines.sort(key=lambda row: -row[0])
        few = lines if every else lines[: MOST_ROWS // 2]
        title = f"a step of {counted(total.tokens, 'token')}"
        head = ("part", "size", "good", "at good sizes", "as it is", "saves")
        print_table(title, head, [row[1:] for row in few])
        if len(lines) > len(few):
            say(f"… and {len(lines) - len(few)} more (--all shows each)")
    costs = [cost for part in times.parts for cost in part.costs]
    why = list(dict.fromkeys(cost.missing for cost in costs if cost.good and cost.missing))
    if why:
        say_notes([f"open: {why[0]}" + (f" (and {len(why) - 1} more)" if why[1:] else "")])
    say_notes([f"without a time: {one}" for one in times.left_out])
    say_notes(times.notes)


def _row(part: Part, i: int) -> tuple[Any, ...]:
    """Its time to sort by, then the cells."""
    need, cost = part.need, part.costs[i]
    changed = part.good != need.shape
    return (
        _value(cost.good), f"{need.name} ×{need.count:g}", _size(need.shape),
        _size(part.good) if changed else None,
        shown(cost.good), shown(cost.now), shown(cost.saved) if changed else None,
    )  # fmt: skip


def _by_name(parts: Sequence[Part], i: int) -> list[tuple[Any, ...]]:
    """Parts of one name together, as factor pairs of many ranks are; what one of them lacks is not
    known of all."""
    rows = []
    for name in dict.fromkeys(part.need.name for part in parts):
        alike = [part for part in parts if part.need.name == name]
        if len(alike) == 1:
            rows.append(_row(alike[0], i))
            continue
        costs = [part.costs[i] for part in alike]
        good, now, saved = (
            _sum([getattr(cost, which) for cost in costs]) for which in ("good", "now", "saved")
        )
        count = sum(part.need.count for part in alike)
        cells = f"{name} ×{count:g}", f"{len(alike)} sizes", None, shown(good), shown(now)
        rows.append((_value(good), *cells, shown(saved)))
    return rows


def _sum(times: Sequence[Interval | None]) -> Interval | None:
    """Bounds of one table's times add up."""
    known = [time for time in times if time is not None]
    if len(known) < len(times):
        return None
    low, value, high = (sum(getattr(t, end) for t in known) for end in ("low", "value", "high"))
    return replace(known[0], low=low, value=value, high=high)


def _size(shape: Mapping[str, int]) -> str:
    """``4096×4096`` of a product, else each size by its name."""
    if list(shape) == ["N", "K"]:
        return f"{shape['N']}×{shape['K']}"
    return ", ".join(f"{name} {size}" for name, size in shape.items())


def _value(time: Interval | None) -> float:
    return 0.0 if time is None else time.value


def shown_whole(total: Total) -> str | None:
    """A step's time, or that of its parts with a time."""
    partly = " (parts with a time)" if total.timed and not total.good else ""
    return f"{shown(total.timed)}{partly}" if total.timed else None


def shown(time: Interval | None) -> str | None:
    return None if time is None else bounded_time(time.low, time.value, time.high)
