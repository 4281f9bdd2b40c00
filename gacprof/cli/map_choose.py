"""Verbs that choose dims: ``map candidates`` and ``map intersect``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gacprof.cli.options import Output, from_requests
from gacprof.cli.printing import emit, print_table, say
from gacprof.cliffmap.request import CandidatesRequest, IntersectRequest
from gacprof.core.formatting import at_most, microseconds, percent

if TYPE_CHECKING:
    from gacprof.api.maps import Offers
    from gacprof.cliffmap import Candidate
    from gacprof.cliffmap.intersect import Intersection


@from_requests
def candidates(asked: CandidatesRequest, output: Output) -> None:
    """Print the safe sizes near one, with latency and penalty.

    With several maps: dims safe on all of them; where a side has none, its least worst one.
    """
    import gacprof

    emit(gacprof.candidates(asked), output.as_json, _print_offers, asked.unsafe)


def _print_offers(found: Offers, unsafe: bool) -> None:
    for note in found.notes:
        say(note)
    if found.undecided:
        say(found.undecided)
    else:
        _print_found(found, found.sources, found.of, unsafe)


@from_requests
def intersect(asked: IntersectRequest, output: Output) -> None:
    """Print the sizes that are safe on all of several maps.

    Where there is none, the least worst ones."""
    import gacprof

    emit(gacprof.intersect(asked), output.as_json, _print_intersection)


def _print_intersection(both: Intersection) -> None:
    for name, curve in both.curves.items():
        say(f"{name}: {curve}")
    say(f"{len(both.dims)} dims in common, {len(both.safe) or 'none'} safe on all")
    near = "" if both.near is None else f" near {both.near}"
    _print_found(both.found, list(both.curves), f"{both.axis} of {both.operator}{near}", True)


def _print_found(found: Sequence[Any], names: Sequence[str], words: str, unsafe: bool) -> None:
    if not found:
        say(f"no safe {words} within what was asked for: try --all, --unsafe or a wider --window")
        return
    if len(names) == 1:
        _print_candidates(found, words, unsafe)
        return
    letters = [chr(ord("A") + i) for i in range(len(names))]
    for letter, name in zip(letters, names, strict=True):
        say(f"{letter}: {name}")
    ruled = set(found[0].tiers)
    columns = ["d", "verdict", "worst", "at most"]
    rows = [[d.d, d.verdict, percent(d.worst_penalty), at_most(d.penalty_high)] for d in found]
    for letter, name in zip(letters, names, strict=True):
        columns += [f"{letter}, tier"] if name in ruled else [f"{letter}, µs", f"{letter}, %"]
        for row, dim in zip(rows, found, strict=True):
            if name in ruled:
                row.append(dim.tiers[name])
            else:
                row += [f"{dim.latencies_us[name]:.1f}", f"{100 * dim.penalties[name]:.1f}"]
    print_table(words, columns, rows)
    for name in found[0].tiers:
        say(f"{name}: tiers, by rules, not measured")
    if len(ruled) < len(names):
        _say_tolerance(found)


def _print_candidates(found: Sequence[Candidate], words: str, unsafe: bool) -> None:
    if found[0].tier is not None:
        rows = [(c.d, c.tier, c.verdict, "yes" if c.on_frontier else "") for c in found]
        title = f"{words if unsafe else f'safe {words}'}, {found[0].curve}"
        print_table(title, ("d", "tier", "verdict", "frontier"), rows)
        return
    timed = [
        (
            c.d, microseconds(c.latency_us), percent(c.penalty), at_most(c.penalty_high),
            *([c.verdict] if unsafe else []), "yes" if c.on_frontier else "",
        )
        for c in found
    ]  # fmt: skip
    columns = ("d", "latency", "penalty", "at most", *(["verdict"] if unsafe else []), "frontier")
    print_table(words if unsafe else f"safe {words}", columns, timed)
    _say_tolerance(found)


def _say_tolerance(found: Sequence[Any]) -> None:
    tolerance = percent(found[0].tolerance)
    say(
        f"safe: a penalty of at most {tolerance}; misaligned: surely above; "
        "undecided: the errors leave it open"
    )
