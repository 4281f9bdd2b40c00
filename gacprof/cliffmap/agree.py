"""Rules beside measurements: how far the safe set and the frontier of a map by rules hold.

Every curve of the measured map is judged by rules at its own dims, and the two verdicts are set
side by side. Dims that the measured map leaves undecided, or has nothing larger to settle by, count
for neither.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gacprof.cliffmap import detect
from gacprof.cliffmap.from_rules import curve_by_rules
from gacprof.cliffmap.map import CliffMap
from gacprof.cliffmap.schema import Cliff, Curve
from gacprof.core.errors import MapError
from gacprof.core.points import Point
from gacprof.rules import NoRuleError, Target, target


@dataclass(frozen=True)
class Share:
    """``agreed`` dims are in both sets, of ``by_rules`` and of ``measured`` in either."""

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
        return Share(
            self.agreed + other.agreed,
            self.by_rules + other.by_rules,
            self.measured + other.measured,
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"precision": self.precision, "recall": self.recall}


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
class CurveAgreement:
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

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "safe": self.safe.as_dict(),
            "frontier": self.frontier.as_dict(),
        }


@dataclass(frozen=True)
class Agreement:
    """``without`` are the measured curves that no rule covers."""

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

    def as_dict(self) -> dict[str, Any]:
        axes = [
            {
                "operator": operator, "axis": axis, "compared": count,
                "safe": safe.as_dict(), "frontier": frontier.as_dict(),
            }
            for (operator, axis), (count, safe, frontier) in self.by_axis().items()
        ]  # fmt: skip
        return {
            "rules": self.rules,
            "measured": self.measured,
            "axes": axes,
            "curves": [curve.as_dict() for curve in self.curves],
            "without": self.without,
            "notes": self.notes,
        }


def agree(rules: CliffMap, measured: CliffMap) -> Agreement:
    """Judge the measured map's dims by the rules of the other map's GPU and PyTorch release.

    Raises :class:`MapError` where the first is not by rules, the second is, or their architectures
    differ.
    """
    about = _target(rules, measured)
    curves, without = [], []
    for curve in measured.curves:
        points = {
            d: Point.of(curve.operator, {**curve.fixed, curve.axis: d}, curve.dtype, curve.flags)
            for d in curve.points.d
        }
        try:
            ruled = curve_by_rules(curve.axis, points, about)
        except NoRuleError:
            ruled = None
        if ruled is None:
            without.append(curve.identity)
        else:
            curves.append(_compared(ruled, curve))
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
    p, settles = measured.points, measured.coverage.settles
    known = set(ruled.points.d)
    dims = [d for d in p.d if settles(d) and d in known]
    penalty = dict(zip(p.d, detect.penalty(p.median_us), strict=True))
    tier = dict(zip(ruled.points.d, ruled.points.median_us, strict=True))
    verdict = dict.fromkeys(measured.safe, "safe") | dict.fromkeys(
        measured.misaligned, "misaligned"
    )
    decided = [d for d in dims if d in verdict]
    safe = set(ruled.safe)
    wrong = [
        CounterExample(
            d, int(tier[d]), "safe" if d in safe else "misaligned", verdict[d], round(penalty[d], 4)
        )
        for d in decided
        if (d in safe) != (verdict[d] == "safe")
    ]
    of_class = [c for c in measured.cliffs if {c.before, c.after} <= safe]
    return CurveAgreement(
        operator=measured.operator,
        axis=measured.axis,
        curve=measured.identity,
        compared=len(decided),
        safe=_share(safe, set(measured.safe), decided),
        frontier=_share(set(ruled.frontier), set(measured.frontier), dims),
        counter_examples=wrong,
        cliffs=len(of_class),
        unexplained=[(c.before, c.after, c.jump) for c in _unexplained(of_class, ruled)],
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
