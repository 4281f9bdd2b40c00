"""Tables A.4 and B.3: the constraints of a device, and what the papers held responsible."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import gcd
from statistics import median

from gacprof.cliffmap import CliffMap, detect
from gacprof.cliffmap.detect import label
from gacprof.cliffmap.schema import Curve
from gacprof.report.tables import Cell, Column, Table
from gacprof.report.tables_curves import PAPER_ATTENTION, lacking, latencies, of_regime


@dataclass(frozen=True)
class Row:
    """A row of table A.4: a kind of operation and the curve that tests it."""

    words: str
    operator: str
    axis: str
    fixed: dict[str, int]
    optional: bool = False


ROWS = (
    Row("attention", "attention", "head_dim", PAPER_ATTENTION),
    Row("GEMM", "linear", "N", {"M": 2048, "K": 128}),
    Row("GEMM", "linear", "K", {"M": 2048, "N": 2048}),
    Row("GEMV", "linear", "K", {"M": 1, "N": 4096}),
    Row("GEMV", "linear", "N", {"M": 1, "K": 4096}),
    Row("tensor cores", "linear", "K", {"M": 512, "N": 4096}),
    Row("tensor cores", "linear", "N", {"M": 512, "K": 4096}),
    Row("row loads", "row_sum", "K", {}, optional=True),
)


def a4_constraints(cliff_map: CliffMap) -> Table:
    """What each axis asks for, as the data shows it, and what it costs not to comply."""
    columns = (
        Column("operation"), Column("axis"), Column("constraint found"),
        Column("penalty if violated", share=True), Column("rate lost", share=True),
        Column("largest cliff within it", share=True), Column("at"),
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    notes = []
    shown = set[str]()
    for row in ROWS:
        curve = of_regime(cliff_map, row.operator, row.axis, row.fixed)
        if curve is not None and curve.identity in shown:
            continue  # the map has no other curve for this row, and said so above
        if curve is not None:
            shown.add(curve.identity)
        if curve is None:
            if not row.optional:
                what = f"{row.operator} over {row.axis} for the row '{row.words}'"
                notes.append(lacking(what, row.operator, row.axis))
            continue
        rows += [(row.words, row.axis, *constraint) for constraint in _constraints(curve)]
    head = f"{cliff_map.file.device.name} ({cliff_map.file.provenance.kind})"
    return Table("A.4", "Dimension constraints", columns, tuple(rows), (head, *notes))


def _constraints(curve: Curve) -> list[tuple[Cell, ...]]:
    """(constraint, median penalty if violated, the same as a loss of rate, largest cliff within
    it, where): the best residue class first; then the coarser multiple that all its frontier
    dims share, if any."""
    edge, place = _largest_cliff(curve)
    if curve.period is None:
        return [("none found", None, None, edge, place)]
    best = curve.period.classes[0].remainders
    modulus = curve.period.modulus
    outside = [d for d in curve.points.d if d % modulus not in best]
    words = label(curve.axis, modulus, best)
    found: list[tuple[Cell, ...]] = [(words, *_lost(curve, outside), edge, place)]
    coarse = reduce(gcd, curve.frontier, 0)
    if len(curve.frontier) > 2 and coarse > modulus and coarse % modulus == 0:
        within = [d for d in curve.points.d if d % modulus in best and d % coarse]
        found.append((f"{curve.axis} % {coarse} = 0", *_lost(curve, within), None, None))
    return found


def _lost(curve: Curve, dims: list[int]) -> tuple[float | None, float | None]:
    """(median penalty, share of the rate that it means) over these dims, as far as settled."""
    penalties = dict(zip(curve.points.d, detect.penalty(curve.points.median_us), strict=True))
    settled = [penalties[d] for d in dims if d <= curve.coverage.settled]
    if not settled:
        return None, None
    penalty = median(settled)
    return penalty, penalty / (1 + penalty)


def _largest_cliff(curve: Curve) -> tuple[float | None, str | None]:
    best = curve.period.classes[0].remainders if curve.period else [0]
    cliffs = [c for c in curve.cliffs if c.remainders == best]
    largest = max(cliffs, key=lambda c: abs(c.jump), default=None)
    return (largest.jump, f"{largest.before} → {largest.after}") if largest else (None, None)


def b3_hypotheses(cliff_map: CliffMap) -> Table:
    """The papers' four explanations, each by the rate lost outside the residues it names."""
    columns = (
        Column("hypothesis"), Column("axis"), Column("condition"),
        Column("rate lost", share=True), Column("beyond noise"),
    )  # fmt: skip
    tests: tuple[tuple[str, str, str, dict[str, int], int, int], ...] = (
        ("H1 tensor-core tiles", "linear", "K", {"M": 512, "N": 4096}, 16, 1),
        ("H2 L2 sectors", "row_sum", "K", {}, 16, 1),
        ("H3 attention bandwidth", "attention", "head_dim", PAPER_ATTENTION, 8, 1),
        ("H4 vector loads", "linear", "K", {"M": 512, "N": 4096}, 8, 2),
    )
    rows: list[tuple[Cell, ...]] = []
    notes = []
    for words, operator, axis, fixed, aligned, odd in tests:
        curve = of_regime(cliff_map, operator, axis, fixed)
        if curve is None:
            notes.append(f"{words}: " + lacking(f"{operator} over {axis}", operator, axis))
            continue
        lost = _rate_lost(curve, aligned, odd)
        against = f"{axis} % {aligned} = 0 against " + ("odd" if odd == 2 else "the rest")
        beyond = None if lost is None else "yes" if lost > curve.floor else "no"
        rows.append((words, axis, against, lost, beyond))
    if any(row[0] == "H2 L2 sectors" for row in rows):
        notes.append(
            "H2 is measured with a Triton row sum, whose compiler specialises on strides "
            "divisible by 16: a loss there need not be the L2's"
        )
    notes.append("a rate lost says that alignment matters there, not why: see the kernels")
    return Table("B.3", "Hardware hypotheses", columns, tuple(rows), tuple(notes))


def _rate_lost(curve: Curve, aligned: int, odd: int) -> float | None:
    """1 − median rate of the others over median rate of the aligned; work goes with the dim.

    ``odd`` 2 takes only odd dims as the others.
    """
    rates = {d: d / latency for d, latency in latencies(curve).items()}
    good = [rate for d, rate in rates.items() if d % aligned == 0]
    bad = [rate for d, rate in rates.items() if (d % 2 if odd == 2 else d % aligned)]
    return 1 - median(bad) / median(good) if good and bad else None
