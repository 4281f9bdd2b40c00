"""Tables A.3, B.4 and B.6: matrix products over K."""

from __future__ import annotations

from collections import Counter

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.detect import label
from gacprof.cliffmap.schema import Curve
from gacprof.core.points import BYTES_PER_ELEMENT
from gacprof.report.tables import Cell, Column, Table
from gacprof.report.tables_curves import (
    class_level,
    condition,
    exactly,
    lacking,
    latencies,
    main_kernels,
    of_regime,
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
    curve = exactly(cliff_map, "linear", "K", B6_SHAPE)
    if curve is None:
        rows: tuple[tuple[Cell, ...], ...] = tuple((k, None, None) for k in B6_DIMS)
        return Table(
            "B.6", name, columns, rows, (lacking("linear over K at M = N = 4096", "linear", "K"),)
        )
    at = latencies(curve)
    wide = at.get(128)
    rows = tuple(
        (k, at[k] / 1000 if k in at else None, at[k] / wide if k in at and wide else None)
        for k in B6_DIMS
    )
    return Table("B.6", name, columns, rows, (condition(cliff_map, curve),))
