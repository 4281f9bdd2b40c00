"""Verbs that choose dims: ``map candidates`` and ``map intersect``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gacprof.cli import options
from gacprof.cli.options import grouped
from gacprof.cli.printing import Json, emit, print_json, print_table, say
from gacprof.cliffmap.request import EACH_SIDE, CandidatesRequest, IntersectRequest
from gacprof.core.errors import MapError
from gacprof.core.formatting import at_most, microseconds, percent

if TYPE_CHECKING:
    from gacprof.cliffmap import Candidate, CliffMap
    from gacprof.cliffmap.intersect import Intersection, SharedDim
    from gacprof.cliffmap.schema import Curve


@grouped
def candidates(asked: CandidatesRequest, *, as_json: bool = Json) -> None:
    """Print the safe dims near one, below and above, with latency and penalty.

    With several maps: dims safe on all of them; where a side has none, its least worst one.
    """
    from gacprof.cliffmap import CliffMap
    from gacprof.cliffmap.intersect import intersect as common
    from gacprof.cliffmap.intersect import intersect_uses

    loaded = options.load_sources(*_names((*asked.maps, *asked.more), least=1))
    near, tp, limits = asked.near, asked.tp, asked.limits
    words, one = f"{asked.axis} of {asked.operator}", loaded[0] if len(loaded) == 1 else None
    if asked.uses:
        words, wanted = " and ".join(asked.uses), asked.uses_on(loaded)
        found: Sequence[Any] = (
            one.joint_candidates(wanted, near, **limits)
            if one
            else intersect_uses(loaded, wanted).choose(near, **limits)
        )
    else:
        op, ax, about = asked.of(loaded)
        found = (
            one.candidates(op, axis=ax, near=near, shards=tp, **limits, **about)
            if one
            else common(loaded, op, ax, near=near, shards=tp, **about).choose(near, **limits)
        )
        for m in loaded if not as_json else ():
            if isinstance(m, CliffMap):
                _say_curve(m, m.curve(op, ax, near=max(1, near // tp), **about), near, tp)
    if not found and one and one.basis and not asked.uses and not as_json:
        limits["safe_only"] = False
        known = one.candidates(op, axis=ax, near=near, shards=tp, **limits, **about)
        if known and all(c.verdict == "undecided" for c in known):
            say(f"no {words} is safe {one.basis}: rules know no steps along it, all are undecided")
            return
    names = [m.name for m in loaded]
    emit(found, as_json, _print_found, names, f"{words} near {near}", asked.unsafe)


def _say_curve(cliff_map: CliffMap, curve: Curve, near: int, tp: int) -> None:
    say(f"{cliff_map.name}: {curve.identity}{f', on one of {tp} ranks' if tp > 1 else ''}")
    first, last = curve.points.d[0] * tp, curve.coverage.last_comparable * tp
    if not first <= near <= last:
        say(f"  {near} is outside of what it can judge: {first} to {last}")


@grouped
def intersect(asked: IntersectRequest, *, as_json: bool = Json) -> None:
    """Print the dims that are safe on all maps; where there is none, the least worst ones."""
    from gacprof.cliffmap.intersect import intersect as common

    loaded = options.load_sources(*_names(asked.maps, least=2))
    op, ax, about = asked.of(loaded)
    near = asked.near
    both = common(loaded, op, ax, near=near, **about)
    shown = _shown(both, near)
    if as_json:
        around = {} if near is None else {"near": near, "found": [s.as_dict() for s in shown]}
        print_json({**both.as_dict(), **around}, "intersection")
        return
    for name, curve in both.curves.items():
        say(f"{name}: {curve}")
    safe = "none" if not both.safe else str(len(both.safe))
    say(f"{len(both.dims)} dims in common, {safe} safe on all")
    where = "" if near is None else f" near {near}"
    _print_found(shown, list(both.curves), f"{ax} of {op}{where}", unsafe=True)


def _shown(both: Intersection, near: int | None) -> list[SharedDim]:
    if near is not None:
        return both.near(near, EACH_SIDE, EACH_SIDE)
    if both.safe:
        return [dim for dim in both.dims if dim.safe]
    return sorted(both.least_worst(2 * EACH_SIDE), key=lambda dim: dim.d)


def _names(maps: Sequence[str], least: int) -> list[str]:
    names = list(dict.fromkeys(maps))
    if len(names) < least:
        raise MapError(
            "name a map: gacprof map list tells those that ship"
            if least == 1
            else f"an intersection needs two different maps, not {', '.join(names) or 'none'}"
        )
    return names


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
