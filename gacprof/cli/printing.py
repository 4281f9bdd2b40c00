"""How the verbs speak: tables and notes on stdout, progress and complaints on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

WIDTH_UNSEEN = 160  # columns where the output is no terminal

out = Console(width=None if sys.stdout.isatty() else WIDTH_UNSEEN)
err = Console(stderr=True)

Json = typer.Option(False, "--json", help="Print JSON and nothing else on stdout.")


def complain(message: str) -> None:
    """One line on stderr."""
    line = " ".join(message.split())
    print(f"gacprof: {line}", file=sys.stderr)


def say(text: str = "") -> None:
    """A line for a person, its text taken literally."""
    out.print(escape(text), highlight=False, soft_wrap=True)


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table; columns whose cells are all numbers or percentages are set flush right."""
    table = Table(title=title or None, title_justify="left")
    for i, name in enumerate(columns):
        numeric = all(_is_number(row[i]) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*("–" if cell is None else escape(str(cell)) for cell in row))
    out.print(table)


def _is_number(cell: Any) -> bool:
    return cell is None or isinstance(cell, int | float) or str(cell)[:1] in "0123456789+-–"


def microseconds(value: float | None) -> str | None:
    """A duration with a unit that suits its size; None stays missing."""
    if value is None:
        return None
    if value < 1e3:
        return f"{value:.1f} µs"
    return f"{value / 1e3:.2f} ms" if value < 1e6 else f"{value / 1e6:.2f} s"


def percent(value: float | None, signed: bool = False) -> str | None:
    if value is None:
        return None
    return f"{value * 100:+.1f} %" if signed else f"{value * 100:.1f} %"


def at_most(bound: float | None) -> str:
    """The upper bound of a penalty; *open* where nothing larger settles it."""
    return "open" if bound is None else f"{bound * 100:.1f} %"


@contextmanager
def progress(title: str) -> Iterator[Callable[[float, float, object], None]]:
    """A bar on stderr with its share and the time left; call it with (done, total, what)."""
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        task = bars.add_task(title, total=None)

        def advance(done: float, total: float, what: object) -> None:
            bars.update(task, completed=done, total=total)

        yield advance
