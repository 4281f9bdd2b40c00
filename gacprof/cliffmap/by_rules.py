"""Maps by rules: every point of a suite, for a GPU that is not at hand; and how far they hold.

A map by rules is an ordinary map. In the place of latencies stand tiers (1, 2, 3 …), since nobody
timed anything: a dim is safe if it is of tier 1 or nothing larger is of a better one, and
undecided where its mechanism may have steps that nobody knows.

To see how far it holds, every curve of a measured map is judged by rules at its own dims, and the
two verdicts are set side by side. Dims that the measured map leaves undecided, or has nothing
larger to settle by, count for neither.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, ClassVar

from gacprof import operators
from gacprof.cliffmap import detect
from gacprof.cliffmap.map import CliffMap
from gacprof.cliffmap.schema import (
    BY_RULES,
    SCHEMA,
    Cliff,
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
from gacprof.core.files import Record
from gacprof.core.points import Point
from gacprof.rules import NoRuleError, RefusedError, Served, Target, serve, step, target
from gacprof.rules.gemm import TILES_FROM, wave_edges

TOLERANCE = 1e-6
"""A tier is a tier: rounding of weighted sums of them is all that a tolerance is for."""
REACH = 64
"""How far above a curve's end a dim of tier 1 is looked for: templates are as far apart."""
SHOWN = ("sms", "l2_mib", "gb_s")
"""What a map's notes say of the data sheet."""
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
    made: list[Curve] = []
    without: dict[str, None] = {}
    for axis, points in curves:
        try:
            made.append(curve_by_rules(axis, points, target))
        except NoRuleError as error:
            without[str(error)] = None
    if not made:
        raise MapError(next(iter(without), "a map by rules of no curve"))
    sheet = target.sheet
    known = [f"{key} {sheet.values[key]:g}" for key in SHOWN if key in sheet.values]
    lacking = [key for key in SHOWN if key not in sheet.values]
    missing = f"; without a source, so left out: {', '.join(lacking)}" if lacking else ""
    return CliffMap(
        MapFile(
            schema_=SCHEMA,
            name=name,
            device=Device(kind="cuda", name=sheet.name, arch=sheet.arch, facts=dict(sheet.values)),
            provenance=Provenance(
                kind="rules",
                created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                source="rules of gacprof.rules, each curve names its own",
                suite=suite,
                stack={"torch": target.torch, "cudnn": str(target.cudnn)},
                notes=[
                    *NOTES,
                    f"data sheet: {', '.join(known)}{missing}",
                    *(f"left out: {why}" for why in without),
                ],
            ),
            noise=Noise(floor=None, reason="by rules: nothing was measured"),
            curves=made,
        )
    )


def curve_by_rules(axis: str, points: Mapping[int, Point], target: Target) -> Curve:
    """Every dim of one axis by rules.

    Raises :class:`NoRuleError` where there is none, and for fewer than two dims that are served.
    """
    by_dim: dict[int, Served] = {}
    failed: dict[int, str] = {}
    for d, point in sorted(points.items()):
        try:
            by_dim[d] = serve(point, target)
        except RefusedError as error:
            failed[d] = str(error)
    first = next((points[d] for d in by_dim), None)
    above = _settling(by_dim, first, axis, target) if first else {}
    by_dim |= {d: serve(point, target) for d, point in above.items()}
    if first is None or len(by_dim) < 2:
        operator = next(iter(points.values())).operator
        raise NoRuleError(f"{operator} over {axis}: fewer than two dims that are served")
    at, found, dims = {**points, **above}, list(by_dim.values()), list(by_dim)
    tiers = [float(served.tier) for served in found]
    penalty = [round(p, 6) for p in detect.penalty(tiers)]
    best = [d for d, served in by_dim.items() if served.tier == 1 and not served.open]
    widest = {step(at[d], axis, target): d for d in best}
    undecided = {i for i, served in enumerate(found) if served.open and not penalty[i]}
    mechanisms = sorted({served.mechanism for served in found})
    asked = [*dims, *failed]
    return Curve(
        operator=first.operator,
        axis=axis,
        fixed={name: size for name, size in first.dims if name != axis},
        dtype=first.dtype,
        flags=first.flag,
        timer=BY_RULES,
        points=Points(
            d=dims,
            median_us=tiers,
            low_us=list(tiers),
            high_us=list(tiers),
            count=[0] * len(dims),
            penalty_low=penalty,
            penalty_high=[None if i in undecided else p for i, p in enumerate(penalty)],
            mechanism=[mechanisms.index(served.mechanism) for served in found],
        ),
        mechanisms=mechanisms,
        tiers=_tiers(axis, by_dim),
        rules=[*_notes(found), *_waves(first, axis, target, dims)],
        frontier=sorted(widest.values()),
        safe=[d for i, d in enumerate(dims) if penalty[i] == 0 and i not in undecided],
        misaligned=[d for d, p in zip(dims, penalty, strict=True) if p > 0],
        floor=0.0,
        tolerance=TOLERANCE,
        coverage=Coverage(
            first=min(asked), last=max(asked), measured=len(dims), settled=dims[-1], failed=failed
        ),
    )


def _settling(
    by_dim: Mapping[int, Served], first: Point, axis: str, target: Target
) -> dict[int, Point]:
    """The next dim of tier 1 above the last, so that the last ones are judged too."""
    last = max(by_dim)
    if by_dim[last].tier == 1:
        return {}
    for d in range(last + 1, last + 1 + REACH):
        try:
            at = operators.point(first.operator, {**first.dim, axis: d}, first.dtype, first.flag)
            if serve(at, target).tier == 1:
                return {d: at}
        except MapError:
            continue
    return {}


def _tiers(axis: str, by_dim: Mapping[int, Served]) -> list[Tier]:
    """One for each mechanism: its residues, within the stretch that it serves."""
    by_mechanism: dict[str, list[int]] = defaultdict(list)
    for d, served in by_dim.items():
        by_mechanism[served.mechanism].append(d)
    made = []
    for mechanism, members in by_mechanism.items():
        first, last = members[0], members[-1]
        modulus, remainders = _residues(set(members), [d for d in by_dim if first <= d <= last])
        name = detect.label(axis, modulus, remainders)
        made.append(
            Tier(
                name=name, first=first, last=last,
                modulus=modulus, remainders=remainders, mechanism=mechanism,
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


def _notes(found: Sequence[Served]) -> list[RuleNote]:
    """The rules of each tier that the curve has, best first; then what they leave open."""
    notes: dict[tuple[int, str], RuleNote] = {}
    doubts: dict[str, RuleNote] = {}
    for served in found:
        for rule in served.rules:
            note = RuleNote(tier=served.tier, relative=served.relative, **vars(rule))
            notes.setdefault((served.tier, rule.says), note)
        doubts |= {rule.says: RuleNote(**vars(rule)) for rule in served.doubts}
    return [notes[key] for key in sorted(notes)] + list(doubts.values())


def _waves(point: Point, axis: str, target: Target, dims: Sequence[int]) -> Iterator[RuleNote]:
    edges = wave_edges(point, axis, target, dims)
    if edges:
        yield RuleNote(
            says=f"waves of {target.sheet.sms} tiles end here: a step may be, at most this large",
            source=f"{TILES_FROM}; SMs: {target.sheet.sources['sms']}",
            basis="binary",
            edges=[Edge(**vars(edge)) for edge in edges],
        )


@dataclass(frozen=True)
class Share(Record):
    """``agreed`` dims are in both sets, of ``by_rules`` and of ``measured`` in either."""

    derived: ClassVar = ("precision", "recall")

    agreed: int
    by_rules: int
    measured: int

    @property
    def precision(self) -> float | None:
        """Of the dims that rules name, the share that the measurement does too."""
        return self.agreed / self.by_rules if self.by_rules else None

    @property
    def recall(self) -> float | None:
        """Of the dims that the measurement names, the share that rules do too."""
        return self.agreed / self.measured if self.measured else None

    def __add__(self, other: Share) -> Share:
        sums = (a + b for a, b in zip(astuple(self), astuple(other), strict=True))
        return Share(*sums)


@dataclass(frozen=True)
class CounterExample:
    """A dim on which rules and measurement disagree: its tier and verdict by rules, its verdict
    and penalty (a fraction) as measured."""

    d: int
    tier: int
    by_rules: str
    measured: str
    penalty: float


@dataclass(frozen=True)
class CurveAgreement(Record):
    """One curve. ``cliffs`` are those measured within the best class, ``explained`` those of them
    that lie where a template or a known tile's wave ends and are no larger than it allows."""

    operator: str
    axis: str
    curve: str
    compared: int
    safe: Share
    frontier: Share
    counter_examples: list[CounterExample]
    cliffs: int
    unexplained: list[tuple[int, int, float]]


@dataclass(frozen=True)
class Agreement(Record):
    """``without`` are the measured curves that no rule covers."""

    derived: ClassVar = ("axes",)

    rules: str
    measured: str
    curves: list[CurveAgreement]
    without: list[str]
    notes: list[str]

    def by_axis(self) -> dict[tuple[str, str], tuple[int, Share, Share]]:
        """(dims compared, safe, frontier) of each operator's axis, over its curves."""
        nothing = (0, Share(0, 0, 0), Share(0, 0, 0))
        found: dict[tuple[str, str], tuple[int, Share, Share]] = defaultdict(lambda: nothing)
        for c in self.curves:
            count, safe, frontier = found[c.operator, c.axis]
            found[c.operator, c.axis] = count + c.compared, safe + c.safe, frontier + c.frontier
        return dict(found)

    @property
    def axes(self) -> list[dict[str, Any]]:
        """:meth:`by_axis` as rows."""
        return [
            {
                "operator": operator, "axis": axis, "compared": count,
                "safe": safe.as_dict(), "frontier": frontier.as_dict(),
            }
            for (operator, axis), (count, safe, frontier) in self.by_axis().items()
        ]  # fmt: skip


def agree(rules: CliffMap, measured: CliffMap) -> Agreement:
    """Judge the measured map's dims by the rules of the other map's GPU and PyTorch release.

    Raises :class:`MapError` where the first is not by rules, the second is, or their architectures
    differ.
    """
    about = _target(rules, measured)
    curves, without = [], []
    for curve in measured.curves:
        points = {d: curve.point(d) for d in curve.points.d}
        try:
            curves.append(_compared(curve_by_rules(curve.axis, points, about), curve))
        except NoRuleError:
            without.append(curve.identity)
    torch = measured.environment.stack.get("torch")
    notes = []
    if torch and torch.split("+")[0] != about.torch:
        notes.append(f"the rules are of torch {about.torch}, the measured map is of torch {torch}")
    return Agreement(rules.name, measured.name, curves, without, notes)


def _target(rules: CliffMap, measured: CliffMap) -> Target:
    wanted = "give a map by rules first, then one that was measured or published"
    if not rules.by_rules:
        raise MapError(f"the map '{rules.name}' is not by rules: {wanted}")
    if measured.by_rules:
        raise MapError(f"the map '{measured.name}' is by rules: {wanted}")
    here, there = rules.environment, measured.environment
    if here.arch != there.arch:
        raise MapError(
            f"the rules are for {here.name} ({here.arch}), '{measured.name}' is of {there.name} "
            f"({there.arch}): one architecture's rules say nothing of another"
        )
    return target(here.name, here.stack.get("torch") or "")


def _compared(ruled: Curve, measured: Curve) -> CurveAgreement:
    p, safe = measured.points, set(ruled.safe)
    tier = dict(zip(ruled.points.d, ruled.points.median_us, strict=True))
    dims = [d for d in p.d if measured.coverage.settles(d) and d in tier]
    verdict = dict(zip(p.d, measured.verdicts, strict=True))
    penalty = dict(zip(p.d, detect.penalty(p.median_us), strict=True))
    decided = [d for d in dims if verdict[d] != "undecided"]
    wrong = [
        CounterExample(
            d, int(tier[d]), "safe" if d in safe else "misaligned", verdict[d], round(penalty[d], 4)
        )
        for d in decided
        if (d in safe) != (verdict[d] == "safe")
    ]
    cliffs = [c for c in measured.cliffs if {c.before, c.after} <= safe]
    return CurveAgreement(
        operator=measured.operator,
        axis=measured.axis,
        curve=measured.identity,
        compared=len(decided),
        safe=_share(safe, set(measured.safe), decided),
        frontier=_share(set(ruled.frontier), set(measured.frontier), dims),
        counter_examples=wrong,
        cliffs=len(cliffs),
        unexplained=[(c.before, c.after, c.jump) for c in _unexplained(cliffs, ruled)],
    )


def _share(by_rules: set[int], measured: set[int], dims: Sequence[int]) -> Share:
    a, b = by_rules & set(dims), measured & set(dims)
    return Share(len(a & b), len(a), len(b))


def _unexplained(cliffs: Sequence[Cliff], ruled: Curve) -> Iterator[Cliff]:
    """Cliffs at which no wave ends and no mechanism changes, or larger than a wave allows."""
    edges = [edge for rule in ruled.rules for edge in rule.edges]
    served = dict(zip(ruled.points.d, ruled.points.mechanism, strict=True))
    for cliff in cliffs:
        within = [e for e in edges if cliff.before <= e.after < cliff.after]
        allowed = max((e.at_most for e in within), default=0.0)
        if served[cliff.before] == served[cliff.after] and not 0 < cliff.jump <= allowed:
            yield cliff
