"""Tables as values, and as Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import ReportError
from gacprof.core.formatting import percent

if TYPE_CHECKING:
    import pandas as pd

Cell = str | int | float | None


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
    """A ``table`` element; notes follow in a list."""
    text = _frame(table.headings, table.texts()).to_html(index=False, border=0, classes="paper")
    head, start, body = text.partition(">")
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in table.notes)
    return (
        f"{head}{start}\n  <caption>{html.escape(table.caption)}</caption>{body}\n"
        + (f'<ul class="notes">{notes}</ul>\n' if notes else "")
    )  # fmt: skip


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
