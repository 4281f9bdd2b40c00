"""Tables as values, and as Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gacprof.core.errors import ReportError
from gacprof.core.formatting import percent

Cell = str | int | float | None


@dataclass(frozen=True)
class Column:
    """A heading with its unit, and how many decimals its numbers get (None: as they are).

    A ``share`` is a fraction that is shown as a percentage.
    """

    heading: str
    decimals: int | None = None
    share: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of plain values; None is a value that the map does not hold.

    ``notes`` say what is missing and which suite gives it.
    """

    id: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def texts(self, missing: str = "–") -> list[list[str]]:
        """The rows as they are shown."""
        return [
            [_text(cell, column, missing) for cell, column in zip(row, self.columns, strict=True)]
            for row in self.rows
        ]

    @property
    def headings(self) -> list[str]:
        return [column.heading for column in self.columns]

    @property
    def caption(self) -> str:
        return f"{self.id}. {self.title}"

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
    align = "".join("r" if right else "l" for right in table.numeric)
    head, *body = (
        " & ".join(map(_tex, row)) + r" \\" for row in [table.headings, *table.texts("--")]
    )
    notes = [r"\\[2pt] \footnotesize " + _tex(note) for note in table.notes]
    lines = [
        r"% \usepackage{booktabs}", r"\begin{table}", r"\centering",
        rf"\caption{{{_tex(table.caption)}}}", rf"\begin{{tabular}}{{{align}}}",
        r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}",
        *notes, r"\end{table}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """Raw values, one row a line; missing ones are empty. Notes are left out."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.headings)
    writer.writerows(["" if cell is None else cell for cell in row] for row in table.rows)
    return out.getvalue()


def to_html(table: Table) -> str:
    """A ``table`` element; numbers have the class ``number``, notes follow in a list."""
    kinds = [' class="number"' if right else "" for right in table.numeric]

    def cells(tag: str, row: Sequence[str]) -> str:
        pairs = zip(row, kinds, strict=True)
        parts = (f"<{tag}{kind}>{html.escape(cell)}</{tag}>" for cell, kind in pairs)
        return f"<tr>{''.join(parts)}</tr>"

    lines = [
        '<table class="paper">',
        f"<caption>{html.escape(table.caption)}</caption>",
        f"<thead>{cells('th', table.headings)}</thead>",
        "<tbody>",
        *(cells("td", row) for row in table.texts()),
        "</tbody>",
        "</table>",
    ]
    if table.notes:
        items = "".join(f"<li>{html.escape(note)}</li>" for note in table.notes)
        lines.append(f'<ul class="notes">{items}</ul>')
    return "\n".join(lines) + "\n"


FORMS: Mapping[str, Callable[[Table], str]] = {
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
    "html": to_html,
}


def _text(cell: Cell, column: Column, missing: str) -> str:
    if cell is None:
        return missing
    if isinstance(cell, float) and column.share:
        return percent(cell, decimals=column.decimals or 0) or missing
    if isinstance(cell, float) and column.decimals is not None:
        return f"{cell:.{column.decimals}f}"
    return str(cell)


_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "≠": r"$\neq$", "≥": r"$\geq$", "≤": r"$\leq$", "×": r"$\times$", "→": r"$\rightarrow$",
    "–": "--", "µ": r"$\mu$", "·": r"$\cdot$", "≈": r"$\approx$",
}  # fmt: skip


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in text)
