"""Tables A.2, B.1, B.2 and B.5: attention over head_dim."""

from __future__ import annotations

from collections.abc import Sequence

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.schema import Curve
from gacprof.report.tables import Cell, Column, Table
from gacprof.report.tables_curves import (
    PAPER_ATTENTION,
    condition,
    find,
    lacking,
    latencies,
    main_kernels,
    penalties,
)

B1_DIMS = (96, 104, 107, 112, 120, 128)
BACKENDS = {
    "auto": "auto",
    "flash": "flash",
    "mem-efficient": "efficient",
    "math": "math",
    "cuDNN": "cudnn",
}

MISALIGNED = 107
"""The papers' example: a head_dim of 107.3 that a compressor asked for."""


def a2_templates(cliff_map: CliffMap) -> Table:
    """Regions of head_dim that one template serves: from one frontier dim to the next."""
    columns = (
        Column("head_dim"), Column("widest"), Column("template"), Column("Br×Bc"),
        Column("latency [ms]", 2), Column("ratio", 1), Column("median in region [ms]", 2),
    )  # fmt: skip
    name = "Attention tiers over head_dim"
    curve = _unmasked(cliff_map)
    if curve is None:
        return Table("A.2", name, columns, (), (_lacking(),))
    at = latencies(curve)
    rows: list[tuple[Cell, ...]] = []
    below = 0
    for widest in curve.frontier:
        inside = sorted(t for d, t in at.items() if below < d <= widest)
        region = (
            str(widest) if len(inside) == 1 else f"({below or curve.points.d[0] - 1}, {widest}]"
        )
        template, tile = _template(curve, widest)
        rows.append(
            (region, widest, template, tile, at[widest] / 1000,
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


def _unmasked(cliff_map: CliffMap, **flags: str) -> Curve | None:
    wanted = {"mask": "none", **flags}
    return find(cliff_map, "attention", "head_dim", PAPER_ATTENTION, wanted)


def _lacking(backend: str | None = None) -> str:
    if backend is None:
        return lacking("attention over head_dim", "attention", "head_dim")
    what = f"attention under the backend '{backend}'"
    return lacking(what, "attention", "head_dim", {"backend": backend})


def _template(curve: Curve, d: int) -> tuple[int | None, str | None]:
    """(head_dim template, tile) of the kernel that served ``d``, as its name tells them."""
    for kernel in main_kernels(curve, [d]):
        tile = "×".join(map(str, kernel.tile)) if kernel.tile else None
        return kernel.template, tile
    return None, None


def b1_backends(cliff_map: CliffMap) -> Table:
    """Attention latency under each forced backend."""
    name = "Attention latency per backend [ms]"
    columns = (Column("head_dim"), *(Column(words, 2) for words in BACKENDS))
    curves = {words: _unmasked(cliff_map, backend=flag) for words, flag in BACKENDS.items()}
    notes = [_lacking(flag) for words, flag in BACKENDS.items() if curves[words] is None]
    known = [curve for curve in curves.values() if curve is not None]
    if not known:
        return Table("B.1", name, columns, (), tuple(notes))
    rows = tuple(
        (d, *(_cell(curves[words], d) for words in BACKENDS))
        for d in B1_DIMS
        if any(_cell(curve, d) is not None for curve in known)
    )
    return Table("B.1", name, columns, rows, (condition(cliff_map, known[0]), *notes))


def _cell(curve: Curve | None, d: int) -> Cell:
    """Milliseconds; ``fails`` where it was tried and could not be measured."""
    if curve is None:
        return None
    if d in curve.coverage.failed:
        return "fails"
    latency = latencies(curve).get(d)
    return None if latency is None else latency / 1000


def b2_availability(cliff_map: CliffMap) -> Table:
    """The share of tried head_dims that each backend serves, aligned to 8 and not."""
    columns = (
        Column("backend"), Column("head_dim % 8 = 0", share=True),
        Column("head_dim % 8 ≠ 0", share=True), Column("dims tried"),
    )  # fmt: skip
    rows, notes = [], []
    for words, flag in BACKENDS.items():
        if flag == "auto":
            continue
        curve = _unmasked(cliff_map, backend=flag)
        if curve is None:
            notes.append(_lacking(flag))
            continue
        tried = [*curve.points.d, *curve.coverage.failed]
        aligned = [d for d in tried if d % 8 == 0]
        others = [d for d in tried if d % 8]
        rows.append((words, _served(curve, aligned), _served(curve, others), len(tried)))
    name = "Backend availability by alignment"
    return Table("B.2", name, columns, tuple(rows), tuple(notes))


def _served(curve: Curve, dims: Sequence[int]) -> float | None:
    measured = set(curve.points.d)
    return sum(d in measured for d in dims) / len(dims) if dims else None


def b5_rescue(cliff_map: CliffMap) -> Table:
    """Padding a misaligned head_dim to safe ones: what is gained, what memory it costs."""
    name = "Padding rescue of a misaligned head_dim"
    columns = (
        Column("head_dim"), Column("padded to"), Column("latency [ms]", 3),
        Column("speed-up", 2), Column("memory", 1, share=True),
    )  # fmt: skip
    curve = _unmasked(cliff_map)
    if curve is None:
        return Table("B.5", name, columns, (), (_lacking(),))
    at = latencies(curve)
    lost = penalties(curve)
    start = MISALIGNED if MISALIGNED in at else max(lost, key=lambda d: lost[d])
    next_class = [d for d in at if d > start and d % 8 == 0][:1]
    best = [d for d in curve.frontier if d > start][:1]
    targets = list(dict.fromkeys([start, *next_class, *best]))
    rows = tuple(
        (start, d if d != start else None, at[d] / 1000, at[start] / at[d], d / start - 1)
        for d in targets
    )
    return Table("B.5", name, columns, rows, (condition(cliff_map, curve),))
