"""Tables as values, as Markdown, LaTeX, CSV and HTML; and what a map says of every curve.

Of a curve: the constraint that a dim should keep to and what it costs not to, and the residue
classes with the kernels that serve them.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import gcd
from statistics import median
from typing import TYPE_CHECKING, Any

from gacprof.cliffmap import CliffMap, detect
from gacprof.cliffmap.detect import label
from gacprof.cliffmap.schema import Curve
from gacprof.core.errors import ReportError
from gacprof.core.files import Record
from gacprof.core.formatting import bounded_time, counted, percent
from gacprof.kernels import Kernel, attach

if TYPE_CHECKING:
    import pandas as pd

    from gacprof.rules.table import RuleTable


Cell = str | int | float | None
LONG_CELL = 30
"""Letters of a cell above which a page breaks it into lines."""


@dataclass(frozen=True)
class Column:
    """A heading with its unit, and how many decimals its numbers get (None: as they are).

    A ``share`` is a fraction that is shown as a percentage.
    """

    heading: str
    decimals: int | None = None
    share: bool = False

    def text(self, cell: Cell) -> str | None:
        """A cell as it is shown; None for a missing one."""
        if isinstance(cell, float) and self.share:
            return percent(cell, decimals=self.decimals or 0)
        if isinstance(cell, float) and self.decimals is not None:
            return f"{cell:.{self.decimals}f}"
        return None if cell is None else str(cell)


@dataclass(frozen=True)
class Table(Record):
    """Rows of plain values; None is a value that the map does not hold.

    ``notes`` say what is missing and which suite gives it.
    """

    id: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = field(default=())

    def texts(self, missing: str = "–") -> list[list[str]]:
        """The rows as they are shown."""
        pairs = (zip(row, self.columns, strict=True) for row in self.rows)
        return [[column.text(cell) or missing for cell, column in row] for row in pairs]

    @property
    def headings(self) -> list[str]:
        return [column.heading for column in self.columns]

    @property
    def caption(self) -> str:
        return f"{self.id}. {self.title}" if self.id else self.title

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers (and nothing else)."""
        columns = zip(*self.rows, strict=True) if self.rows else ((),) * len(self.columns)
        return [
            any(c is not None for c in column) and not any(isinstance(c, str) for c in column)
            for column in columns
        ]


def render(table: Table, form: str = "markdown") -> str:
    """The table as ``markdown``, ``latex``, ``csv`` or ``html``. Raises :class:`ReportError`."""
    try:
        return FORMS[form](table)
    except KeyError:
        raise ReportError(f"no table format '{form}' (there are {', '.join(FORMS)})") from None


def to_markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "| " + " | ".join("---:" if right else "---" for right in table.numeric) + " |"
    lines = [f"**{table.caption}**", "", line(table.headings), rule, *map(line, table.texts())]
    lines += ["", *(f"- {note}" for note in table.notes)] if table.notes else []
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    """A ``table`` environment with the rules of the package ``booktabs``."""
    rows = [[_tex(cell) for cell in row] for row in table.texts("--")]
    text = _frame([_tex(heading) for heading in table.headings], rows).to_latex(
        index=False,
        caption=_tex(table.caption),
        column_format="".join("r" if right else "l" for right in table.numeric),
    )
    notes = "".join(rf"\\[2pt] \footnotesize {_tex(note)}" + "\n" for note in table.notes)
    head, end, tail = text.rpartition(r"\end{table}")
    return "% \\usepackage{booktabs}\n" + head + notes + end + tail


def to_csv(table: Table) -> str:
    """Raw values, one row a line; missing ones are empty. Notes are left out."""
    return str(_frame(table.headings, table.rows).to_csv(index=False, lineterminator="\n"))


def to_html(table: Table) -> str:
    """A ``table`` element, text flush left by the class ``text``; notes follow, folded."""

    def side(cell: str, right: bool) -> str:
        return "" if right else ' class="wrap"' if len(cell) > LONG_CELL else ' class="text"'

    def line(tag: str, cells: Sequence[str]) -> str:
        pairs = zip(cells, table.numeric, strict=True)
        shown = "".join(
            f"<{tag}{side(cell, right)}>{html.escape(cell)}</{tag}>" for cell, right in pairs
        )
        return f"<tr>{shown}</tr>\n"

    rows = line("th", table.headings) + "".join(line("td", cells) for cells in table.texts())
    text = f"<table>\n<caption>{html.escape(table.caption)}</caption>\n{rows}</table>\n"
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in table.notes)
    return text + (
        f"<details><summary>Notes</summary><ul>{notes}</ul></details>\n" if notes else ""
    )


def _frame(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> pd.DataFrame:
    """Cells as they are: a column of whole numbers with a gap would else become floats."""
    import pandas as pd

    return pd.DataFrame([list(row) for row in rows], columns=list(headings), dtype=object)


FORMS: Mapping[str, Callable[[Table], str]] = {
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
    "html": to_html,
}

_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "≠": r"$\neq$", "≥": r"$\geq$", "≤": r"$\leq$", "×": r"$\times$", "→": r"$\rightarrow$",
    "–": "--", "µ": r"$\mu$", "·": r"$\cdot$", "≈": r"$\approx$", "÷": r"$\div$",
}  # fmt: skip


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in text)


CONSTRAINT_COLUMNS = (
    Column("constraint found"), Column("penalty if violated", share=True),
    Column("rate lost", share=True), Column("largest cliff within it", share=True), Column("at"),
)  # fmt: skip
CLASS_COLUMNS = (
    Column("kernel family"), Column("instruction"), Column("alignment"),
    Column("latency [µs]", 1), Column("ratio", 2),
)  # fmt: skip


def constraints(cliff_map: CliffMap, curves: Sequence[Curve]) -> Table:
    """A row a curve and constraint, as the curve's own points show it."""
    rows = tuple((curve.identity, *row) for curve in curves for row in constraint_rows(curve))
    title = f"Constraints: {_device(cliff_map)}"
    return Table("", title, (Column("curve"), *CONSTRAINT_COLUMNS), rows)


def classes(cliff_map: CliffMap, curves: Sequence[Curve]) -> Table:
    """A row a residue class of every curve that has any, the fastest first."""
    rows = tuple((curve.identity, *row) for curve in curves for row in class_rows(curve))
    columns = (Column("curve"), Column("class"), *CLASS_COLUMNS)
    bare = sum(bool(curve.period) and not curve.kernels for curve in curves)
    notes = (f"{bare} curves have no kernel names recorded",) if bare else ()
    return Table("", f"Residue classes: {_device(cliff_map)}", columns, rows, notes)


TABLES: Mapping[str, Callable[[CliffMap, Sequence[Curve]], Table]] = {
    "constraints": constraints, "classes": classes,
}  # fmt: skip


def map_table(cliff_map: CliffMap, name: str, curves: Sequence[Curve]) -> Table:
    """``constraints`` or ``classes`` of these curves. Raises :class:`ReportError` for another."""
    if name not in TABLES:
        raise ReportError(f"no table '{name}' (there are {', '.join(TABLES)})")
    return TABLES[name](cliff_map, curves)


def rule_table(table: RuleTable) -> Table:
    """A row a tier: costs are known only where they were published."""
    dtypes: dict[tuple[Cell, ...], list[str]] = {}
    for tier in table.tiers:
        axis = f"{tier.operator} {tier.axis}"
        same = (tier.tier, axis, tier.sizes, tier.mechanism, tier.relative)
        dtypes.setdefault(same, []).append(tier.dtype)
    rows = tuple(
        (tier, axis, sizes, ", ".join(of), *more)
        for (tier, axis, sizes, *more), of in dtypes.items()
    )
    columns = (
        Column("tier", 0), Column("axis"), Column("sizes"), Column("dtype"), Column("served by"),
        Column("cost, of K ×", 1),
    )  # fmt: skip
    sources = dict.fromkeys(
        f"{rule.says} [{rule.basis}: {rule.source}]"
        for tier in table.tiers
        for rule in (*tier.rules, *tier.doubts)
    )
    title = f"Tiers, by rules, not measured: {table.environment.name}"
    return Table("", title, columns, rows, tuple(sources))


STEP_TOTALS = ("step of", "at good sizes", "as they are", "good sizes save", "open", "no time")
STEP_PARTS = ("part", "size", "good", "at good sizes", "as it is", "saves")
Times = Mapping[str, Any]
"""Of a part or of a whole step, by what they are of: low, value and high, or None."""


def step_tables(times: Mapping[str, Any], every: bool = True) -> list[Table]:
    """Whole steps by others' measurements (``StepTimes`` as JSON): the sums, then the parts of each
    step, what takes longest first; unless ``every``, those of one name together, as factor pairs
    of many ranks are."""
    ranks = f", on one of {times['tp']} ranks" if times["tp"] > 1 else ""
    title = (
        f"whole steps on {times['gpu']}, in {', '.join(times['dtypes'])}{ranks}, measured "
        f"elsewhere by {', '.join(times['sources'])}"
    )
    open_ones = [c["missing"] for p in times["parts"] for c in p["costs"] if c["good"]]
    why = list(dict.fromkeys(filter(None, open_ones)))
    notes = [f"open: {why[0]}" + (f" (and {len(why) - 1} more)" if why[1:] else "")] if why else []
    notes += [*(f"without a time: {one}" for one in times["left_out"]), *times["notes"]]
    rows = tuple(
        (
            counted(one["tokens"], "token"), _step_time(one), _bounded(one["now"]),
            _bounded(one["saved"]), one["open"] or None, one["unknown"] or None,
        )
        for one in times["totals"]
    )  # fmt: skip
    columns = tuple(map(Column, STEP_TOTALS))
    steps = (_step_parts(times, i, every) for i in range(len(rows)))
    return [Table("", title, columns, rows, tuple(notes)), *steps]


def _step_parts(times: Mapping[str, Any], i: int, every: bool) -> Table:
    alike: dict[str, list[tuple[Mapping[str, Any], Times]]] = {}
    for place, part in enumerate(times["parts"]):
        if part["costs"][i]["good"] is not None:
            key = str(place) if every else part["need"]["name"]
            alike.setdefault(key, []).append((part, part["costs"][i]))
    rows = []
    for parts in alike.values():
        (part, _), name = parts[0], parts[0][0]["need"]["name"]
        count = sum(one["need"]["count"] for one, _ in parts)
        good, now, saved = (_sum([cost[e] for _, cost in parts]) for e in ("good", "now", "saved"))
        size, to = f"{len(parts)} sizes", None
        if len(parts) == 1:
            changed = part["good"] != part["need"]["shape"]
            size, to = _size(part["need"]["shape"]), _size(part["good"]) if changed else None
            saved = saved if changed else None
        cells = (f"{name} ×{count:g}", size, to, _bounded(good), _bounded(now), _bounded(saved))
        rows.append((good["value"] if good else 0.0, cells))
    rows.sort(key=lambda row: -row[0])
    title = f"a step of {counted(times['totals'][i]['tokens'], 'token')}"
    return Table("", title, tuple(map(Column, STEP_PARTS)), tuple(cells for _, cells in rows))


def _step_time(total: Mapping[str, Any]) -> str | None:
    """A step's time, or that of its parts with a time."""
    partly = " (parts with a time)" if total["timed"] and not total["good"] else ""
    return f"{_bounded(total['timed'])}{partly}" if total["timed"] else None


def _bounded(time: Times | None) -> str | None:
    return None if time is None else bounded_time(**time)


def _sum(times: Sequence[Times | None]) -> Times | None:
    """Bounds of one table's times add up; what one of them lacks is not known of all."""
    known = [time for time in times if time is not None]
    if len(known) < len(times):
        return None
    return {end: sum(time[end] for time in known) for end in ("low", "value", "high")}


def _size(shape: Mapping[str, int]) -> str:
    """``4096×4096`` of a product, else each size by its name."""
    if list(shape) == ["N", "K"]:
        return f"{shape['N']}×{shape['K']}"
    return ", ".join(f"{name} {size}" for name, size in shape.items())


def constraint_rows(curve: Curve) -> list[tuple[Cell, ...]]:
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


def class_rows(curve: Curve) -> list[tuple[Cell, ...]]:
    """(class, kernel family, instruction, alignment, median µs, ratio to the fastest), of the
    kernel that serves most of the class; nothing for a curve without classes."""
    if curve.period is None:
        return []
    rows: list[tuple[Cell, ...]] = []
    for c in curve.period.classes:
        modulus = curve.period.modulus
        members = {d: us for d, us in curve.latencies.items() if d % modulus in c.remainders}
        seen = Counter(
            (f"{k.family} {k.arch or ''}".strip(), "m{}n{}k{}".format(*k.mma) if k.mma else None,
             k.alignment)
            for k in main_kernels(curve, list(members))
        )  # fmt: skip
        served = seen.most_common(1)[0][0] if seen else (None, None, None)
        words = label(curve.axis, modulus, c.remainders)
        rows.append((words, *served, median(members.values()), c.ratio))
    return rows


def penalties(curve: Curve) -> dict[int, float]:
    """Dim → penalty as a share."""
    return dict(zip(curve.points.d, detect.penalty(curve.points.latency_us), strict=True))


def main_kernels(curve: Curve, dims: Sequence[int]) -> list[Kernel]:
    """The main kernel at each of these dims, where the map recorded kernels."""
    if not curve.points.kernels:
        return []
    at = dict(zip(curve.points.d, curve.points.kernels, strict=True))
    names = [curve.kernels[i] for d in dims if (i := at.get(d)) is not None]
    groups = [attach(kernels) for kernels in names]
    return [max(g, key=lambda group: group.main.role != "unknown").main for g in groups if g]


def _device(cliff_map: CliffMap) -> str:
    return f"{cliff_map.file.device.name} ({cliff_map.file.provenance.kind})"


def _lost(curve: Curve, dims: list[int]) -> tuple[float | None, float | None]:
    """(median penalty, share of the rate that it means) over these dims, as far as comparable."""
    lost = penalties(curve)
    known = [lost[d] for d in dims if curve.coverage.compares(d)]
    if not known:
        return None, None
    penalty = median(known)
    return penalty, penalty / (1 + penalty)


def _largest_cliff(curve: Curve) -> tuple[float | None, str | None]:
    _, best = curve.classes[0]
    cliffs = [c for c in curve.cliffs if c.remainders == best]
    largest = max(cliffs, key=lambda c: abs(c.jump), default=None)
    return (largest.jump, f"{largest.before} → {largest.after}") if largest else (None, None)
