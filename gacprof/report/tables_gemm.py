"""Tables A.3, B.4 and B.6: matrix products over K."""

from __future__ import annotations

from collections import Counter

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.residues import label
from gacprof.cliffmap.schema import Curve
from gacprof.report.tables import Cell, Column, Table
from gacprof.report.tables_curves import (
    class_level,
    condition,
    exactly,
    find,
    lacking,
    latencies,
    main_kernels,
)

TENSOR_CORE = {"M": 512, "N": 4096}
"""The shape of the paper's Figure 8a."""

B6_SHAPE = {"M": 4096, "N": 4096}
B6_DIMS = (107, 112, 128)


def a3_gemm_tiers(cliff_map: CliffMap) -> Table:
    """Residue classes of K, fastest first, with the kernels that serve them."""
    name = "GEMM tiers over K"
    columns = (
        Column("K"), Column("kernel family"), Column("instruction"), Column("alignment"),
        Column("latency [µs]", 1), Column("ratio", 2),
    )  # fmt: skip
    curve = find(cliff_map, "linear", "K", TENSOR_CORE)
    if curve is None:
        return Table("A.3", name, columns, (), (lacking("linear over K"),))
    notes = [condition(cliff_map, curve)]
    if curve.period is None:
        notes.append("this curve has no residue classes that differ by more than its noise")
        return Table("A.3", name, columns, (), tuple(notes))
    if not curve.kernels:
        notes.append("no kernel names were recorded, so families and instructions are not told")
    modulus = curve.period.modulus
    rows = tuple(
        (label("K", modulus, c.remainders), *_kernel(curve, c.remainders),
         class_level(curve, c.remainders), c.ratio)
        for c in curve.period.classes
    )  # fmt: skip
    return Table("A.3", name, columns, rows, tuple(notes))


def _kernel(curve: Curve, remainders: list[int]) -> tuple[Cell, Cell, Cell]:
    """(family, instruction, alignment) of the kernel that serves most dims of the class."""
    assert curve.period is not None
    members = [d for d in curve.points.d if d % curve.period.modulus in remainders]
    seen = Counter(
        (f"{k.family} {k.arch or ''}".strip(), "m{}n{}k{}".format(*k.mma) if k.mma else None,
         k.alignment)
        for k in main_kernels(curve, members)
    )  # fmt: skip
    return seen.most_common(1)[0][0] if seen else (None, None, None)


def b4_load_width(cliff_map: CliffMap) -> Table:
    """Rates by the power of two that K is a multiple of: the widest load its rows allow."""
    name = "Rate by alignment of K"
    columns = (
        Column("K"), Column("load of 16-bit elements"), Column("lowest [TFLOPS]", 0),
        Column("highest [TFLOPS]", 0), Column("dims"),
    )  # fmt: skip
    curve = find(cliff_map, "linear", "K", TENSOR_CORE)
    if curve is None:
        return Table("B.4", name, columns, (), (lacking("linear over K"),))
    work = 2 * curve.fixed["M"] * curve.fixed["N"] / 1e6
    rates = {d: work * d / latency for d, latency in latencies(curve).items()}
    groups = (
        ("K % 16 = 0", "16 bytes", lambda d: d % 16 == 0),
        ("K % 8 = 0, K % 16 ≠ 0", "16 bytes", lambda d: d % 16 == 8),
        ("K % 4 = 0, K % 8 ≠ 0", "8 bytes", lambda d: d % 8 == 4),
        ("K % 2 = 0, K % 4 ≠ 0", "4 bytes", lambda d: d % 4 == 2),
        ("K % 2 = 1", "2 bytes", lambda d: d % 2 == 1),
    )
    rows = []
    for words, load, belongs in groups:
        found = [rate for d, rate in rates.items() if belongs(d)]
        if found:
            rows.append((words, load, min(found), max(found), len(found)))
    return Table("B.4", name, columns, tuple(rows), (condition(cliff_map, curve),))


def b6_gemm(cliff_map: CliffMap) -> Table:
    """A square product over a narrow K: the shape of a low-rank factor."""
    name = "GEMM latency, M = N = 4096"
    columns = (Column("K"), Column("latency [ms]", 4), Column("against K = 128", 2))
    curve = exactly(cliff_map, "linear", "K", B6_SHAPE)
    if curve is None:
        rows: tuple[tuple[Cell, ...], ...] = tuple((k, None, None) for k in B6_DIMS)
        return Table("B.6", name, columns, rows, (lacking("linear over K at M = N = 4096"),))
    at = latencies(curve)
    wide = at.get(128)
    rows = tuple(
        (k, at[k] / 1000 if k in at else None, at[k] / wide if k in at and wide else None)
        for k in B6_DIMS
    )
    return Table("B.6", name, columns, rows, (condition(cliff_map, curve),))
