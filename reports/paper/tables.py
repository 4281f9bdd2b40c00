"""The papers' constraint tables from any map: A.2–A.4 and B.1–B.6.

    python reports/paper/tables.py MAP [--table A4] [--format latex]
    python reports/paper/tables.py MAP --out DIR [--beside a100-published]

A is arXiv 2604.09595, B its earlier draft. Each table is computed from the map's own points. What
the map does not hold stays empty, with a note: the suite ``paper`` measures all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from typer import Argument, Option

from gacprof.cli.app import main
from gacprof.cli.printing import say
from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.schema import Curve
from gacprof.cliffmap.selection import best
from gacprof.core.errors import ReportError
from gacprof.core.files import write_json, write_text
from gacprof.core.points import BYTES_PER_ELEMENT
from gacprof.reporting.tables import (
    CLASS_COLUMNS,
    CONSTRAINT_COLUMNS,
    Cell,
    Column,
    Table,
    class_rows,
    constraint_rows,
    main_kernels,
    penalties,
    render,
)

PAPER_ATTENTION = {"batch": 4, "heads": 32, "q_len": 2048}
"""The shape of the papers' attention tables (A.2, B.1, B.5)."""
TENSOR_CORE = {"M": 512, "N": 4096}
"""The shape of A's figure 8a."""
PUBLISHED = ("a100-published", "h100-published")
B1_DIMS = (96, 104, 107, 112, 120, 128)
B6_DIMS, B6_SHAPE = (107, 112, 128), {"M": 4096, "N": 4096}
BACKENDS = {"auto": "auto", "flash": "flash", "mem-efficient": "efficient", "math": "math",
            "cuDNN": "cudnn"}  # fmt: skip
"""The papers' names and ours."""
MISALIGNED = 107
"""The papers' example: a head_dim of 107.3 that a compressor asked for."""
WIDEST_LOAD = 16
"""Bytes of the widest vector load of a GPU thread (ld.global.v4.b32)."""


def of_regime(
    cliff_map: CliffMap,
    operator: str,
    axis: str,
    fixed: Mapping[str, int],
    dtype: str | None = None,
) -> Curve | None:
    """The curve at the paper's own shape, else the plainest one of its regime: over the same
    axis, and at one token (M = 1) only if the paper's is. None where the map has none."""
    exact = cliff_map.select(operator, axis, dtype, None, **fixed)
    tokens = fixed.get("M")
    alike = [
        curve
        for curve in cliff_map.select(operator, axis, dtype)
        if tokens is None or (curve.fixed.get("M") == 1) == (tokens == 1)
    ]
    return best(exact) or best(alike)


def attention(cliff_map: CliffMap, backend: str | None = None) -> Curve | None:
    """Attention over head_dim without a mask, at the papers' shape if the map has it."""
    flags: dict[str, Any] = {"mask": "none"} | ({"backend": backend} if backend else {})
    exact = cliff_map.select("attention", "head_dim", None, flags, **PAPER_ATTENTION)
    return best(exact) or best(cliff_map.select("attention", "head_dim", None, flags))


def lacking(what: str) -> str:
    """The note on what a map does not hold."""
    return f"this map does not hold {what}: the suite 'paper' gives it (gacprof sweep paper)"


def condition(cliff_map: CliffMap, curve: Curve) -> str:
    """Where the numbers of a table come from, as its note."""
    fixed = ", ".join(f"{name} = {size}" for name, size in curve.fixed.items())
    file = cliff_map.file
    return f"{file.device.name} ({file.provenance.kind}), {curve.dtype}, {fixed}"


def a2_templates(cliff_map: CliffMap) -> Table:
    """Regions of head_dim that one template serves: from one frontier dim to the next."""
    columns = (
        Column("head_dim"), Column("widest"), Column("template"), Column("Br×Bc"),
        Column("latency [ms]", 2), Column("ratio", 1), Column("median in region [ms]", 2),
    )  # fmt: skip
    name = "Attention tiers over head_dim"
    curve = attention(cliff_map)
    if curve is None:
        return Table("A.2", name, columns, (), (lacking("attention over head_dim"),))
    at = curve.latencies
    rows: list[tuple[Cell, ...]] = []
    below = 0
    for widest in curve.frontier:
        inside = sorted(t for d, t in at.items() if below < d <= widest)
        region = f"({below or curve.points.d[0] - 1}, {widest}]" if inside[1:] else str(widest)
        kernel = next(iter(main_kernels(curve, [widest])), None)
        tile = "×".join(map(str, kernel.tile)) if kernel and kernel.tile else None
        rows.append(
            (region, widest, kernel.template if kernel else None, tile, at[widest] / 1000,
             at[widest] / at[curve.frontier[0]], inside[len(inside) // 2] / 1000)
        )  # fmt: skip
        below = widest
    notes = [condition(cliff_map, curve)]
    if not curve.kernels:
        notes.append(
            "no kernel names were recorded, so templates and tiles are not told; the regions "
            "are those between dims that no larger dim undercuts"
        )
    return Table("A.2", name, columns, tuple(rows), tuple(notes))


def a3_gemm_tiers(cliff_map: CliffMap) -> Table:
    """Residue classes of K, fastest first, with the kernels that serve them."""
    curve = of_regime(cliff_map, "linear", "K", TENSOR_CORE)
    notes = [condition(cliff_map, curve) if curve else lacking("linear over K")]
    if curve and curve.period is None:
        notes.append("this curve has no residue classes that differ by more than its noise")
    elif curve and not curve.kernels:
        notes.append("no kernel names were recorded, so families and instructions are not told")
    rows = class_rows(curve) if curve else []
    return Table(
        "A.3", "GEMM tiers over K", (Column("K"), *CLASS_COLUMNS), tuple(rows), tuple(notes)
    )


A4_ROWS: tuple[tuple[str, str, str, dict[str, int]], ...] = (
    ("attention", "attention", "head_dim", PAPER_ATTENTION),
    ("GEMM", "linear", "N", {"M": 2048, "K": 128}),
    ("GEMM", "linear", "K", {"M": 2048, "N": 2048}),
    ("GEMV", "linear", "K", {"M": 1, "N": 4096}),
    ("GEMV", "linear", "N", {"M": 1, "K": 4096}),
    ("tensor cores", "linear", "K", {"M": 512, "N": 4096}),
    ("tensor cores", "linear", "N", {"M": 512, "K": 4096}),
    ("row loads", "row_sum", "K", {}),
)


def a4_constraints(cliff_map: CliffMap) -> Table:
    """What each axis asks for, as the data shows it, and what it costs not to comply."""
    rows: list[tuple[Cell, ...]] = []
    notes = [f"{cliff_map.file.device.name} ({cliff_map.file.provenance.kind})"]
    shown = set[str]()
    for words, operator, axis, fixed in A4_ROWS:
        curve = of_regime(cliff_map, operator, axis, fixed)
        if curve is None:
            notes.append(lacking(f"{operator} over {axis} for the row '{words}'"))
        elif curve.identity not in shown:  # a map may have one curve for several rows
            shown.add(curve.identity)
            rows += [(words, axis, *constraint) for constraint in constraint_rows(curve)]
    columns = (Column("operation"), Column("axis"), *CONSTRAINT_COLUMNS)
    return Table("A.4", "Dimension constraints", columns, tuple(rows), tuple(notes))


def b1_backends(cliff_map: CliffMap) -> Table:
    """Attention latency under each forced backend; ``fails`` where it could not be measured."""

    def cell(curve: Curve | None, d: int) -> Cell:
        if curve is None or d in curve.coverage.failed:
            return None if curve is None else "fails"
        latency = curve.latencies.get(d)
        return None if latency is None else latency / 1000

    curves = [attention(cliff_map, flag) for flag in BACKENDS.values()]
    rows = [(d, *(cell(curve, d) for curve in curves)) for d in B1_DIMS]
    notes = [condition(cliff_map, curve) for curve in curves if curve][:1]
    columns = (Column("head_dim"), *(Column(words, 2) for words in BACKENDS))
    return Table(
        "B.1", "Attention latency per backend [ms]", columns,
        tuple(row for row in rows if any(value is not None for value in row[1:])),
        (*notes, *_lacking_backends(cliff_map)),
    )  # fmt: skip


def b2_availability(cliff_map: CliffMap) -> Table:
    """The share of tried head_dims that each backend serves, aligned to 8 and not."""

    def served(curve: Curve, dims: list[int]) -> float | None:
        return sum(d in curve.points.d for d in dims) / len(dims) if dims else None

    rows: list[tuple[Cell, ...]] = []
    for words, flag in BACKENDS.items():
        curve = attention(cliff_map, flag)
        if curve is None or flag == "auto":
            continue
        tried = [*curve.points.d, *curve.coverage.failed]
        aligned, others = [d for d in tried if d % 8 == 0], [d for d in tried if d % 8]
        rows.append((words, served(curve, aligned), served(curve, others), len(tried)))
    columns = (
        Column("backend"), Column("head_dim % 8 = 0", share=True),
        Column("head_dim % 8 ≠ 0", share=True), Column("dims tried"),
    )  # fmt: skip
    notes = _lacking_backends(cliff_map)
    return Table("B.2", "Backend availability by alignment", columns, tuple(rows), tuple(notes))


def _lacking_backends(cliff_map: CliffMap) -> list[str]:
    absent = [flag for flag in BACKENDS.values() if attention(cliff_map, flag) is None]
    return [lacking(f"attention under the backend '{flag}'") for flag in absent]


HYPOTHESES: tuple[tuple[str, str, str, dict[str, int], int, int], ...] = (
    ("H1 tensor-core tiles", "linear", "K", TENSOR_CORE, 16, 1),
    ("H2 L2 sectors", "row_sum", "K", {}, 16, 1),
    ("H3 attention bandwidth", "attention", "head_dim", PAPER_ATTENTION, 8, 1),
    ("H4 vector loads", "linear", "K", TENSOR_CORE, 8, 2),
)
"""(name, operator, axis, shape, aligned to, 2 if only odd dims are the others)."""


def b3_hypotheses(cliff_map: CliffMap) -> Table:
    """The papers' four explanations, each by the rate lost outside the residues it names."""
    columns = (
        Column("hypothesis"), Column("axis"), Column("condition"),
        Column("rate lost", share=True), Column("beyond noise"),
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    notes = []
    for words, operator, axis, fixed, aligned, odd in HYPOTHESES:
        curve = of_regime(cliff_map, operator, axis, fixed)
        if curve is None:
            notes.append(f"{words}: " + lacking(f"{operator} over {axis}"))
            continue
        rates = {d: d / latency for d, latency in curve.latencies.items()}  # work goes with d
        good = [rate for d, rate in rates.items() if d % aligned == 0]
        bad = [rate for d, rate in rates.items() if d % (2 if odd == 2 else aligned)]
        lost = 1 - median(bad) / median(good) if good and bad else None
        against = f"{axis} % {aligned} = 0 against " + ("odd" if odd == 2 else "the rest")
        beyond = None if lost is None else "yes" if lost > curve.floor else "no"
        rows.append((words, axis, against, lost, beyond))
        if operator == "row_sum":
            notes.append(
                "H2 is measured with a Triton row sum, whose compiler specialises on strides "
                "divisible by 16: a loss there need not be the L2's"
            )
    notes.append("a rate lost says that alignment matters there, not why: see the kernels")
    return Table("B.3", "Hardware hypotheses", columns, tuple(rows), tuple(notes))


LOAD_GROUPS: tuple[tuple[str, int, Callable[[int], bool]], ...] = (
    ("K % 16 = 0", 16, lambda d: d % 16 == 0),
    ("K % 8 = 0, K % 16 ≠ 0", 8, lambda d: d % 16 == 8),
    ("K % 4 = 0, K % 8 ≠ 0", 4, lambda d: d % 8 == 4),
    ("K % 2 = 0, K % 4 ≠ 0", 2, lambda d: d % 4 == 2),
    ("K % 2 = 1", 1, lambda d: d % 2 == 1),
)


def b4_load_width(cliff_map: CliffMap) -> Table:
    """Rates by the power of two that K is a multiple of: the widest load its rows allow."""
    name = "Rate by alignment of K"
    curve = of_regime(cliff_map, "linear", "K", TENSOR_CORE)
    if curve is None:
        return Table("B.4", name, (Column("K"),), (), (lacking("linear over K"),))
    work = 2 * curve.fixed["M"] * curve.fixed["N"] / 1e6
    rates = {d: work * d / latency for d, latency in curve.latencies.items()}  # TFLOPS
    decimals = 0 if max(rates.values()) >= 10 else 3
    # A GPU thread's loads; a CPU's copy their operands into rows of their own first.
    loads = cliff_map.file.device.kind != "cpu"
    columns = (
        Column("K"), *((Column("widest load [bytes]"),) if loads else ()),
        Column("lowest [TFLOPS]", decimals), Column("highest [TFLOPS]", decimals), Column("dims"),
    )  # fmt: skip
    element = BYTES_PER_ELEMENT[curve.dtype]
    rows: list[tuple[Cell, ...]] = []
    for words, aligned, belongs in LOAD_GROUPS:
        found = [rate for d, rate in rates.items() if belongs(d)]
        if found:
            load = (min(WIDEST_LOAD, aligned * element),) if loads else ()
            rows.append((words, *load, min(found), max(found), len(found)))
    return Table("B.4", name, columns, tuple(rows), (condition(cliff_map, curve),))


def b5_rescue(cliff_map: CliffMap) -> Table:
    """Padding a misaligned head_dim to safe ones: what is gained, what memory it costs."""
    name = "Padding rescue of a misaligned head_dim"
    columns = (
        Column("head_dim"), Column("padded to"), Column("latency [ms]", 3),
        Column("speed-up", 2), Column("memory", 1, share=True),
    )  # fmt: skip
    curve = attention(cliff_map)
    if curve is None:
        return Table("B.5", name, columns, (), (lacking("attention over head_dim"),))
    at, lost = curve.latencies, penalties(curve)
    start = MISALIGNED if MISALIGNED in at else max(lost, key=lambda d: lost[d])
    next_class = [d for d in at if d > start and d % 8 == 0][:1]
    widest = [d for d in curve.frontier if d > start][:1]
    rows = tuple(
        (start, d if d != start else None, at[d] / 1000, at[start] / at[d], d / start - 1)
        for d in dict.fromkeys([start, *next_class, *widest])
    )
    return Table("B.5", name, columns, rows, (condition(cliff_map, curve),))


def b6_gemm(cliff_map: CliffMap) -> Table:
    """A square product over a narrow K: the shape of a low-rank factor."""
    curve = best(cliff_map.select("linear", "K", None, None, **B6_SHAPE))
    at = curve.latencies if curve else {}
    note = condition(cliff_map, curve) if curve else lacking("linear over K at M = N = 4096")
    rows = tuple(
        (k, at[k] / 1000 if k in at else None, at[k] / at[128] if {k, 128} <= at.keys() else None)
        for k in B6_DIMS
    )
    columns = (Column("K"), Column("latency [ms]", 4), Column("against K = 128", 2))
    return Table("B.6", "GEMM latency, M = N = 4096", columns, rows, (note,))


TABLES: Mapping[str, Callable[[CliffMap], Table]] = {
    "A.2": a2_templates,
    "A.3": a3_gemm_tiers,
    "A.4": a4_constraints,
    "B.1": b1_backends,
    "B.2": b2_availability,
    "B.3": b3_hypotheses,
    "B.4": b4_load_width,
    "B.5": b5_rescue,
    "B.6": b6_gemm,
}


def paper_table(cliff_map: CliffMap, name: str) -> Table:
    """One of the papers' tables (``A4``, ``a.4``, ``A.4``). Raises :class:`ReportError`."""
    key = name.replace(".", "").strip().upper()
    if (key := f"{key[:1]}.{key[1:]}") not in TABLES:
        raise ReportError(f"no table '{name}' (there are {', '.join(TABLES)})")
    return TABLES[key](cliff_map)


def write_beside(here: CliffMap, others: Sequence[CliffMap], folder: Path) -> int:
    """``tables.md`` for people and ``tables.json`` for programs: all tables of this device beside
    those of others; how many have rows of this one."""
    maps = {one.name: one for one in (here, *others)}
    lines = [f"# Constraint tables: {', '.join(maps)}", ""]
    lines += ["A.n are tables of arXiv 2604.09595, B.n of its draft. – is not measured.", ""]
    made = {name: {key: make(one) for key, one in maps.items()} for name, make in TABLES.items()}
    for name, tables_of in made.items():
        lines += [f"## {name}", ""]
        for key, table in tables_of.items():
            file, reasons = maps[key].file, "; ".join(table.notes)
            body = render(table) if table.rows else f"not measured: {reasons}"
            lines += [f"### {file.device.name} ({file.provenance.kind})", "", body, ""]
    write_text(folder / "tables.md", "\n".join(lines))
    plain = {n: {key: t.as_dict() for key, t in row.items()} for n, row in made.items()}
    write_json(folder / "tables.json", {"tables": plain})
    return sum(bool(row[here.name].rows) for row in made.values())


script = typer.Typer(name="tables.py", add_completion=False, rich_markup_mode=None)


@script.command(help=__doc__)
def tables(
    cliff_map: Annotated[str, Argument(metavar="MAP", help="A shipped map's name, or a file.")],
    table: Annotated[list[str] | None, Option(help="A2, A3, A4, B1 … B6; repeatable.")] = None,
    form: Annotated[str, Option("--format", help="markdown, latex, csv or html.")] = "markdown",
    out: Annotated[Path | None, Option(help="Instead: write all of them there.")] = None,
    beside: Annotated[
        list[str] | None,
        Option(help="With --out: another map; repeatable. Default: A100, H100."),
    ] = None,
) -> None:
    loaded = CliffMap.load(cliff_map)
    if out is not None:
        others = [CliffMap.load(name) for name in beside or PUBLISHED]
        filled = write_beside(loaded, others, out)
        say(f"{filled} of {len(TABLES)} tables have rows of this device: {out}/tables.md")
        return
    texts = [render(paper_table(loaded, name), form) for name in table or TABLES]
    print("\n".join(texts), end="")


if __name__ == "__main__":
    main(script)
