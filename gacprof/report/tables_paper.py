"""The papers' constraint tables for any map: A.2–A.4 and B.1–B.6.

A is arXiv 2604.09595, B its earlier draft. Each table is computed from the map's own points;
what the map does not hold stays empty, and a note names the suite that gives it. Here are the
registry and the tables of matrix products and of all axes together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from math import gcd
from statistics import median

from gacprof.cliffmap import CliffMap, MapLookupError
from gacprof.cliffmap.detect import label
from gacprof.cliffmap.schema import Curve
from gacprof.core.errors import ReportError
from gacprof.core.points import BYTES_PER_ELEMENT
from gacprof.report.tables import Cell, Column, Table
from gacprof.report.tables_attention import a2_templates, b1_backends, b2_availability, b5_rescue
from gacprof.report.tables_curves import (
    PAPER_ATTENTION,
    condition,
    lacking,
    latencies,
    main_kernels,
    of_regime,
    penalties,
)

TENSOR_CORE = {"M": 512, "N": 4096}
"""The shape of the paper's Figure 8a."""

WIDEST_LOAD = 16
"""Bytes of the widest vector load of a GPU thread (ld.global.v4.b32)."""

B6_SHAPE = {"M": 4096, "N": 4096}
B6_DIMS = (107, 112, 128)


def a3_gemm_tiers(cliff_map: CliffMap) -> Table:
    """Residue classes of K, fastest first, with the kernels that serve them."""
    name = "GEMM tiers over K"
    columns = (
        Column("K"), Column("kernel family"), Column("instruction"), Column("alignment"),
        Column("latency [µs]", 1), Column("ratio", 2),
    )  # fmt: skip
    curve = of_regime(cliff_map, "linear", "K", TENSOR_CORE)
    if curve is None:
        return Table("A.3", name, columns, (), (lacking("linear over K", "linear", "K"),))
    notes = [condition(cliff_map, curve)]
    if curve.period is None:
        notes.append("this curve has no residue classes that differ by more than its noise")
        return Table("A.3", name, columns, (), tuple(notes))
    if not curve.kernels:
        notes.append("no kernel names were recorded, so families and instructions are not told")
    modulus = curve.period.modulus
    rows = []
    for c in curve.period.classes:
        members = {d: us for d, us in latencies(curve).items() if d % modulus in c.remainders}
        words, level = label("K", modulus, c.remainders), median(members.values())
        rows.append((words, *_kernel(curve, list(members)), level, c.ratio))
    return Table("A.3", name, columns, tuple(rows), tuple(notes))


def _kernel(curve: Curve, members: list[int]) -> tuple[Cell, Cell, Cell]:
    """(family, instruction, alignment) of the kernel that serves most of these dims."""
    seen = Counter(
        (f"{k.family} {k.arch or ''}".strip(), "m{}n{}k{}".format(*k.mma) if k.mma else None,
         k.alignment)
        for k in main_kernels(curve, members)
    )  # fmt: skip
    return seen.most_common(1)[0][0] if seen else (None, None, None)


def b4_load_width(cliff_map: CliffMap) -> Table:
    """Rates by the power of two that K is a multiple of: the widest load its rows allow."""
    name = "Rate by alignment of K"
    curve = of_regime(cliff_map, "linear", "K", TENSOR_CORE)
    rates = _rates(curve) if curve is not None else {}
    decimals = 0 if max(rates.values(), default=0.0) >= 10 else 3
    # A GPU thread's loads; a CPU's copy their operands into rows of their own first.
    loads = cliff_map.file.device.kind != "cpu"
    columns = (
        Column("K"), *((Column("widest load [bytes]"),) if loads else ()),
        Column("lowest [TFLOPS]", decimals), Column("highest [TFLOPS]", decimals), Column("dims"),
    )  # fmt: skip
    if curve is None:
        return Table("B.4", name, columns, (), (lacking("linear over K", "linear", "K"),))
    element = BYTES_PER_ELEMENT[curve.dtype]
    groups = (
        ("K % 16 = 0", 16, lambda d: d % 16 == 0),
        ("K % 8 = 0, K % 16 ≠ 0", 8, lambda d: d % 16 == 8),
        ("K % 4 = 0, K % 8 ≠ 0", 4, lambda d: d % 8 == 4),
        ("K % 2 = 0, K % 4 ≠ 0", 2, lambda d: d % 4 == 2),
        ("K % 2 = 1", 1, lambda d: d % 2 == 1),
    )
    rows = []
    for words, aligned, belongs in groups:
        found = [rate for d, rate in rates.items() if belongs(d)]
        if found:
            load = (min(WIDEST_LOAD, aligned * element),) if loads else ()
            rows.append((words, *load, min(found), max(found), len(found)))
    return Table("B.4", name, columns, tuple(rows), (condition(cliff_map, curve),))


def _rates(curve: Curve) -> dict[int, float]:
    """K → TFLOPS."""
    work = 2 * curve.fixed["M"] * curve.fixed["N"] / 1e6
    return {d: work * d / latency for d, latency in latencies(curve).items()}


def b6_gemm(cliff_map: CliffMap) -> Table:
    """A square product over a narrow K: the shape of a low-rank factor."""
    name = "GEMM latency, M = N = 4096"
    columns = (Column("K"), Column("latency [ms]", 4), Column("against K = 128", 2))
    try:
        curve = cliff_map.curve("linear", "K", None, None, **B6_SHAPE)
    except MapLookupError:
        at, note = {}, lacking("linear over K at M = N = 4096", "linear", "K")
    else:
        at, note = latencies(curve), condition(cliff_map, curve)
    wide = at.get(128)
    rows = tuple(
        (k, at[k] / 1000 if k in at else None, at[k] / wide if k in at and wide else None)
        for k in B6_DIMS
    )
    return Table("B.6", name, columns, rows, (note,))


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
        if curve is None:
            if not row.optional:
                what = f"{row.operator} over {row.axis} for the row '{row.words}'"
                notes.append(lacking(what, row.operator, row.axis))
            continue
        if curve.identity in shown:
            continue  # the map has no other curve for this row, and said so above
        shown.add(curve.identity)
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
    lost = penalties(curve)
    settled = [lost[d] for d in dims if d <= curve.coverage.settled]
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


TABLES: Mapping[str, Callable[[CliffMap], Table]] = {
    "A2": a2_templates,
    "A3": a3_gemm_tiers,
    "A4": a4_constraints,
    "B1": b1_backends,
    "B2": b2_availability,
    "B3": b3_hypotheses,
    "B4": b4_load_width,
    "B5": b5_rescue,
    "B6": b6_gemm,
}


def paper_table(cliff_map: CliffMap, name: str) -> Table:
    """One of the papers' tables (``A4``, ``a.4``, ``A.4``) from this map.

    Raises :class:`ReportError` for a name that is none of them.
    """
    key = name.replace(".", "").strip().upper()
    if key not in TABLES:
        raise ReportError(f"no table '{name}' (there are {', '.join(TABLES)})")
    return TABLES[key](cliff_map)


def all_tables(cliff_map: CliffMap) -> list[Table]:
    return [table(cliff_map) for table in TABLES.values()]
