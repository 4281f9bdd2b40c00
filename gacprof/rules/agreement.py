"""How far the rules hold: every curve of a measured map judged by them, at its own sizes.

The two verdicts are set side by side. Sizes that the measurement leaves undecided, or that the map
has nothing larger to compare with, count for neither; those that rules leave undecided count as not
named by them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any, ClassVar

from gacprof.cliffmap import CliffMap, detect
from gacprof.cliffmap.schema import Curve
from gacprof.core.errors import MapError
from gacprof.core.files import Record
from gacprof.core.formatting import Framed
from gacprof.rules import step
from gacprof.rules.table import RuleTable
from gacprof.rules.target import NoRuleError, Target
from gacprof.rules.verdicts import judged


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
    """One curve, of which so many dims were ``compared``."""

    operator: str
    axis: str
    curve: str
    compared: int
    safe: Share
    frontier: Share
    counter_examples: list[CounterExample]


@dataclass(frozen=True)
class Agreement(Framed, Record):
    """``without`` are the measured curves that no rule covers."""

    derived: ClassVar = ("axes",)

    rules: str
    measured: str
    curves: list[CurveAgreement]
    without: list[str]
    notes: list[str]

    def frame_rows(self) -> Iterator[dict[str, Any]]:
        for curve in self.curves:
            yield {
                "operator": curve.operator, "axis": curve.axis, "curve": curve.curve,
                "compared": curve.compared,
                "precision": curve.safe.precision, "recall": curve.safe.recall,
            }  # fmt: skip

    def frame_title(self) -> str:
        return f"safe sizes of {self.rules} against {self.measured}"

    def by_axis(self) -> dict[tuple[str, str], tuple[int, Share, Share]]:
        """(dims compared, safe, frontier) of each operator's axis, over its curves; of those that
        the rules judge at all."""
        nothing = (0, Share(0, 0, 0), Share(0, 0, 0))
        found: dict[tuple[str, str], tuple[int, Share, Share]] = defaultdict(lambda: nothing)
        for c in (curve for curve in self.curves if curve.compared):
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


def agree(rules: RuleTable, measured: CliffMap) -> Agreement:
    """Judge the measured map's sizes by the rules of a table.

    Raises :class:`MapError` where their architectures differ.
    """
    here, there = rules.environment, measured.environment
    if here.arch != there.arch:
        raise MapError(
            f"the rules are for {here.name} ({here.arch}), '{measured.name}' is of {there.name} "
            f"({there.arch}): one architecture's rules say nothing of another"
        )
    curves, without = [], []
    for curve in measured.curves:
        try:
            curves.append(_compared(curve, rules.target))
        except NoRuleError:
            without.append(curve.identity)
    torch = there.stack.get("torch")
    notes = []
    if torch and torch.split("+")[0] != rules.target.torch:
        notes.append(
            f"the rules are of torch {rules.target.torch}, the measured map is of torch {torch}"
        )
    return Agreement(rules.name, measured.name, curves, without, notes)


def _compared(measured: Curve, target: Target) -> CurveAgreement:
    p, axis = measured.points, measured.axis
    at = judged(measured.point(p.d[0]), axis, p.d, target)
    if len(at) < 2:
        raise NoRuleError(f"{measured.operator} over {axis}: fewer than two sizes that are served")
    ruled = {d: found for d, found in at.items() if found.verdict != "undecided"}
    best = [d for d, found in at.items() if found.tier == 1]
    widest = {step(measured.point(d), axis, target): d for d in best}
    comparable = [d for d in p.d if measured.coverage.compares(d) and d in at]
    verdict = dict(zip(p.d, measured.verdicts, strict=True))
    penalty = dict(zip(p.d, detect.penalty(p.latency_us), strict=True))
    measured_too = [d for d in comparable if verdict[d] != "undecided"]
    decided = [d for d in measured_too if d in ruled]
    wrong = [
        CounterExample(
            d, ruled[d].tier or 0, str(ruled[d].verdict), verdict[d], round(penalty[d], 4)
        )
        for d in decided
        if (ruled[d].verdict == "safe") != (verdict[d] == "safe")
    ]
    safe = {d for d, found in ruled.items() if found.verdict == "safe"}
    return CurveAgreement(
        operator=measured.operator,
        axis=axis,
        curve=measured.identity,
        compared=len(decided),
        safe=_share(safe, set(measured.safe), measured_too),
        frontier=_share(set(widest.values()), set(measured.frontier), comparable),
        counter_examples=wrong,
    )


def _share(by_rules: set[int], measured: set[int], dims: Sequence[int]) -> Share:
    a, b = by_rules & set(dims), measured & set(dims)
    return Share(len(a & b), len(a), len(b))
