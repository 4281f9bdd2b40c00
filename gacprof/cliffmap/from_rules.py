"""A map for a GPU that is not at hand: every point of a suite, judged by rules.

It is an ordinary map. In the place of latencies stand tiers (1, 2, 3 …), since nobody timed
anything: a dim is safe if it is of tier 1 or nothing larger is of a better one, and undecided
where its mechanism may have steps that nobody knows.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gacprof import operators
from gacprof.cliffmap import detect
from gacprof.cliffmap.map import CliffMap
from gacprof.cliffmap.schema import (
    BY_RULES,
    SCHEMA,
    Coverage,
    Curve,
    Device,
    Edge,
    MapFile,
    Noise,
    Points,
    Provenance,
    RuleNote,
    Tier,
)
from gacprof.core.errors import MapError
from gacprof.core.points import Point
from gacprof.rules import NoRuleError, RefusedError, Rule, Served, Target, serve, step
from gacprof.rules.gemm import TILES_FROM, wave_edges

TOLERANCE = 1e-6
"""A tier is a tier: rounding of weighted sums of them is all that a tolerance is for."""
REACH = 64
"""How far above a curve's end a dim of tier 1 is looked for: templates are as far apart."""
MODULI = (2, 4, 8, 16, 32)
"""Of residue classes that a tier may be."""
NOTES = (
    "by rules, not measured: a tier says which mechanism serves a dim, and that at the same work a "
    "higher number is not faster; no latency is known",
    "FlashAttention-3 is not in PyTorch's wheels and not covered, nor are engines' own kernels",
)


def map_by_rules(
    curves: Iterable[tuple[str, Mapping[int, Point]]], target: Target, *, name: str, suite: str = ""
) -> CliffMap:
    """The map of these curves, each an axis and its points by dim.

    Raises :class:`MapError` where there is no rule for any of them.
    """
    made, without = [], []
    for axis, points in curves:
        try:
            curve = curve_by_rules(axis, points, target)
        except NoRuleError as error:
            without.append(str(error))
            continue
        if curve is None:
            first = next(iter(points.values()))
            without.append(f"{first.operator} over {axis}: fewer than two dims that are served")
        else:
            made.append(curve)
    if not made:
        raise MapError(without[0] if without else "a map by rules of no curve")
    about = Provenance(
        kind="rules",
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        source="rules of gacprof.rules, each curve names its own",
        suite=suite,
        stack={"torch": target.torch, "cudnn": str(target.cudnn)},
        notes=[
            *NOTES,
            *_sheet_notes(target),
            *(f"left out: {why}" for why in dict.fromkeys(without)),
        ],
    )
    sheet = target.sheet
    device = Device(kind="cuda", name=sheet.name, arch=sheet.arch, facts=dict(sheet.values))
    noise = Noise(floor=None, reason="by rules: nothing was measured")
    return CliffMap(
        MapFile(
            schema_=SCHEMA, name=name, device=device, provenance=about, noise=noise, curves=made
        )
    )


def _sheet_notes(target: Target) -> list[str]:
    values = [
        f"{key} {target.sheet.values[key]:g}"
        for key in ("sms", "l2_mib", "gb_s")
        if key in target.sheet.values
    ]
    lacking = [key for key in ("sms", "l2_mib", "gb_s") if key not in target.sheet.values]
    missing = f"; without a source, so left out: {', '.join(lacking)}" if lacking else ""
    return [f"data sheet: {', '.join(values)}{missing}"]


@dataclass(frozen=True)
class _Dim:
    d: int
    served: Served
    step: object


def curve_by_rules(axis: str, points: Mapping[int, Point], target: Target) -> Curve | None:
    """Every dim of one axis by rules. None for fewer than two dims that anything serves.

    Raises :class:`NoRuleError`.
    """
    found: list[_Dim] = []
    failed: dict[int, str] = {}
    for d, point in sorted(points.items()):
        try:
            found.append(_Dim(d, serve(point, target), step(point, axis, target)))
        except RefusedError as error:
            failed[d] = str(error)
    if not found:
        return None
    point = points[found[0].d]
    found += _settling(found, point, axis, target)
    if len(found) < 2:
        return None
    dims, tiers = [each.d for each in found], [float(each.served.tier) for each in found]
    penalty = [round(p, 6) for p in detect.penalty(tiers)]
    undecided = {i for i, each in enumerate(found) if each.served.open and not penalty[i]}
    mechanisms = sorted({each.served.mechanism for each in found})
    asked = [*dims, *failed]
    fixed = {name: size for name, size in point.dims if name != axis}
    return Curve(
        operator=point.operator,
        axis=axis,
        fixed=dict(sorted(fixed.items())),
        dtype=point.dtype,
        flags=dict(sorted(point.flags)),
        timer=BY_RULES,
        points=Points(
            d=dims,
            median_us=tiers,
            low_us=list(tiers),
            high_us=list(tiers),
            count=[0] * len(dims),
            penalty_low=penalty,
            penalty_high=[None if i in undecided else p for i, p in enumerate(penalty)],
            mechanism=[mechanisms.index(each.served.mechanism) for each in found],
        ),
        mechanisms=mechanisms,
        tiers=_tiers(axis, found),
        rules=[*_notes(found), *_bounds(point, axis, target, dims)],
        frontier=_frontier(found),
        safe=[d for i, d in enumerate(dims) if penalty[i] == 0 and i not in undecided],
        misaligned=[d for d, p in zip(dims, penalty, strict=True) if p > 0],
        floor=0.0,
        tolerance=TOLERANCE,
        coverage=Coverage(
            first=min(asked), last=max(asked), measured=len(dims), settled=dims[-1], failed=failed
        ),
    )


def _settling(found: Sequence[_Dim], point: Point, axis: str, target: Target) -> list[_Dim]:
    """The next dim of tier 1 above the last, so that the last ones are judged too."""
    last = found[-1]
    if last.served.tier == 1:
        return []
    for d in range(last.d + 1, last.d + 1 + REACH):
        try:
            at = operators.point(point.operator, {**point.dim, axis: d}, point.dtype, point.flag)
            served = serve(at, target)
        except MapError:
            continue
        if served.tier == 1:
            return [_Dim(d, served, step(at, axis, target))]
    return []


def _frontier(found: Sequence[_Dim]) -> list[int]:
    """The widest dim of tier 1 of every step."""
    best = [each for each in found if each.served.tier == 1 and not each.served.open]
    widest = {each.step: each.d for each in best}
    return sorted(widest.values())


def _tiers(axis: str, found: Sequence[_Dim]) -> list[Tier]:
    """One for each mechanism: its residues, within the stretch that it serves."""
    by_mechanism: dict[str, list[int]] = defaultdict(list)
    for each in found:
        by_mechanism[each.served.mechanism].append(each.d)
    made = []
    for mechanism, members in by_mechanism.items():
        inside = [each.d for each in found if members[0] <= each.d <= members[-1]]
        modulus, remainders = _residues(set(members), inside)
        name = detect.label(axis, modulus, remainders) if modulus > 1 else f"all {axis}"
        made.append(
            Tier(
                name=name, first=members[0], last=members[-1], modulus=modulus,
                remainders=remainders, mechanism=mechanism,
            )
        )  # fmt: skip
    return made


def _residues(members: set[int], inside: Sequence[int]) -> tuple[int, list[int]]:
    """The smallest modulus by which the members are told from the other dims between them."""
    for modulus in (1, *MODULI):
        remainders = {d % modulus for d in members}
        if not any(d % modulus in remainders for d in inside if d not in members):
            return modulus, sorted(remainders)
    return 1, [0]


def _notes(found: Sequence[_Dim]) -> list[RuleNote]:
    """The rules of each tier that the curve has, best first; then what they leave open."""
    notes: dict[tuple[int, str], RuleNote] = {}
    for served in (each.served for each in found):
        for rule in served.rules:
            key = served.tier, rule.says
            notes.setdefault(key, _note(rule, served.tier, served.relative))
    doubts = {rule.says: _note(rule) for each in found for rule in each.served.doubts}
    return [notes[key] for key in sorted(notes)] + list(doubts.values())


def _note(rule: Rule, tier: int | None = None, relative: float | None = None) -> RuleNote:
    return RuleNote(
        tier=tier, says=rule.says, source=rule.source, basis=rule.basis, relative=relative
    )


def _bounds(point: Point, axis: str, target: Target, dims: Sequence[int]) -> list[RuleNote]:
    edges = wave_edges(point, axis, target, dims)
    if not edges:
        return []
    return [
        RuleNote(
            says=f"waves of {target.sheet.sms} tiles end here: a step may be, at most this large",
            source=f"{TILES_FROM}; SMs: {target.sheet.sources['sms']}",
            basis="binary",
            edges=[Edge(after=e.after, tile=e.tile, at_most=e.at_most) for e in edges],
        )
    ]
