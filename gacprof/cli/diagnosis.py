"""A diagnosis in the terminal: dims that are alike in one row, the most to recover first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gacprof.cli.printing import MOST_ROWS, print_table, say, say_notes
from gacprof.core.formatting import at_most, microseconds, percent
from gacprof.report.grouping import Group, group

if TYPE_CHECKING:
    from gacprof.diagnosing import Diagnosis
    from gacprof.diagnosing.findings import DimFinding

SECTIONS = {
    "misaligned": "misaligned: the time is surely lost",
    "undecided": "undecided: the map's errors leave it open",
    "unknown": "not in this map",
    "safe": "safe",
}

Cells = Callable[["Group[DimFinding]"], tuple[Any, ...]]


def print_diagnosis(found: Diagnosis, every: bool) -> None:
    """A table a verdict; ``every`` shows each dim on its own and safe ones too."""
    for verdict in SECTIONS:
        members = [d for d in found.dims if d.verdict == verdict]
        if members and (every or verdict != "safe"):
            _print_section(verdict, members, every, found.basis)
    _print_totals(found)
    if not found.basis:
        _print_time(found)
    missing = next((d.advice for d in found.dims if d.verdict == "unknown"), None)
    say_notes([*found.notes, *([f"the first unknown dim: {missing}"] if missing else ())])


def _print_section(verdict: str, dims: Sequence[DimFinding], every: bool, basis: str) -> None:
    shown: Callable[[DimFinding], Hashable] = (lambda d: d.name) if every else _shown
    rows = group(dims, lambda d: d.name.removesuffix(f":{d.kind}"), shown)
    rows.sort(key=lambda row: -_lost(row))
    columns, cells = _columns_by_rules() if basis else _columns(verdict)
    few = rows if every else rows[:MOST_ROWS]
    table = [(row.name, *cells(row)) for row in few]
    title = f"{verdict} {basis}" if basis else SECTIONS[verdict]
    print_table(title, ("dims", *columns), table)
    left = rows[len(few) :]
    if left:
        count = sum(len(row.members) for row in left)
        lost = sum(_lost(row) for row in left)
        recover = f", {microseconds(lost)} to recover" if lost else ""
        say(f"… and {count} more {verdict} dims{recover} (--all shows each)")
    for line in _reasons(dims):
        say(line)


def _shown(dim: DimFinding) -> Hashable:
    """All that a row shows of a dim, as it is shown: equal rows become one."""
    return (
        dim.kind, dim.size, _todo(dim), percent(dim.penalty), at_most(dim.penalty_high),
        microseconds(dim.latency_us), microseconds(dim.lost_us),
    )  # fmt: skip


def _lost(row: Group[DimFinding]) -> float:
    return sum(dim.lost_us for dim in row.members)


def _columns(verdict: str) -> tuple[tuple[str, ...], Cells]:
    """What stands beside a row's name, and how it is taken from a group."""
    if verdict == "misaligned":
        return ("size", "do", "penalty", "at most", "recovers"), lambda row: (
            _size(row), _todo(row.first), percent(row.first.penalty),
            at_most(row.first.penalty_high), microseconds(_lost(row)) if _lost(row) else None,
        )  # fmt: skip
    if verdict == "unknown":
        return ("size",), lambda row: (_size(row),)
    return ("size", "penalty", "at most", "takes"), lambda row: (
        _size(row), percent(row.first.penalty), at_most(row.first.penalty_high),
        microseconds(row.first.latency_us),
    )  # fmt: skip


def _columns_by_rules() -> tuple[tuple[str, ...], Cells]:
    return ("size", "do", "largest product served by"), lambda row: (
        _size(row), _todo(row.first), row.first.tier,
    )  # fmt: skip


def _size(row: Group[DimFinding]) -> str:
    """``rank 107 ×128``."""
    times = f" ×{len(row.members)}" if len(row.members) > 1 else ""
    return f"{row.first.kind} {row.first.size}{times}"


def _todo(dim: DimFinding) -> str:
    """The advice in a cell; a mark or its first word where there is more to say."""
    advice, _, more = dim.advice.partition(", once ")
    return f"{advice} *" if more else advice.partition(":")[0]


def _reasons(dims: Sequence[DimFinding]) -> Iterator[str]:
    """What the cells leave out of the advice, once each."""
    if any(", once " in dim.advice for dim in dims):
        yield "* once the dims beside it in its product are aligned"
    for advice in dict.fromkeys(d.advice for d in dims if d.verdict == "misaligned"):
        if ":" in advice:
            yield advice


def _print_totals(found: Diagnosis) -> None:
    totals = found.totals()
    say(
        f"{found.checkpoint}: {found.layout}, {found.parameters:,} parameters, "
        f"judged in {found.dtype} for {found.device} (map {found.map})"
    )
    counted = (
        f"{totals['misaligned']} of {totals['weights']} weights "
        f"({percent(totals['misaligned_share'])}), {_undecided(totals)}, "
        f"{totals['unknown']} unknown"
    )
    if totals["fixed"]:
        counted += f", {totals['fixed']} not judged (no dim of theirs could be changed)"
    if totals["weights"] and not totals["judged"]:
        counted = f"not known: this map knows none of the {totals['weights']} weights"
    odd = f"{totals['not_divisible_by_8']} ({percent(totals['not_divisible_by_8_share'])})"
    how = found.basis or "by measurement"
    say(f"misaligned {how}: {counted}; not a multiple of 8: {odd}")
    if found.basis:
        return
    say(
        f"tolerance {percent(found.tolerance)}: safe is a penalty of at most that, misaligned one "
        "surely above, undecided one that the map's errors leave open"
    )


def _print_time(found: Diagnosis) -> None:
    totals = found.totals()
    when = ", ".join(f"{m} tokens × {w:g}" for m, w in found.tokens.items())
    predicted = microseconds(totals["predicted_us"]) or "unknown"
    say(
        f"predicted time in matrix products, {when}: {predicted}; lost to penalties "
        f"{microseconds(totals['lost_us']) or 'unknown'}, recoverable by padding "
        f"{microseconds(totals['recoverable_us']) or 'unknown'}"
    )


def _undecided(totals: Mapping[str, Any]) -> str:
    """``3 undecided (≤ 4.1 %)``."""
    bound = totals["undecided_penalty_high"]
    return f"{totals['undecided']} undecided" + ("" if bound is None else f" (≤ {percent(bound)})")
