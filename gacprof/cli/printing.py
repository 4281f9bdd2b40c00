"""How the verbs speak: tables and notes on stdout, progress and complaints on stderr."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gacprof.core import Progress
from gacprof.core.files import json_text
from gacprof.core.formatting import duration, percent, visible

WIDTH_UNSEEN = 2000
"""Columns where the output is no terminal and COLUMNS is not set: no cell is ever folded."""

NEVER_FOLDED = 14
"""Columns whose cells are at most this long are never folded: a wide one beside them is. Nor are
words of this length and a little more."""

LONGEST_NUMBER = 28
"""Nor are numbers with their intervals of at most this length."""

LONGEST_NAME = 16
"""Of a model in a table beside its numbers; longer ones are numbered above it."""

MOST_ROWS = 20
"""Rows of a table before the rest is summed up: with the lines below them they fill a screen."""

SILENCE_S = 30.0
"""Seconds after which a long verb says how far it is, where no bar can be shown."""
LEAST_SHARE = 0.05
"""Of a task done, from which the time left is shown: before that the first part stands for all."""

_seen = sys.stdout.isatty() or "COLUMNS" in os.environ
out = Console(width=None if _seen else WIDTH_UNSEEN)
err = Console(stderr=True)


def complain(message: str) -> None:
    """One line on stderr."""
    line = visible(" ".join(message.split()))
    print(f"gacprof: {line}", file=sys.stderr)


def say(text: str = "") -> None:
    """A line for a person, its text taken literally."""
    out.print(escape(visible(text)), highlight=False, soft_wrap=True)


def plot_width() -> int:
    """Columns of a plot: the terminal's, 80 where there is none, at most 120."""
    return min(out.width, 120) if _seen else 80


def say_notes(notes: Iterable[str]) -> None:
    for note in notes:
        say(f"note: {note}")


def print_json(data: Any, name: str = "") -> None:
    """``data`` with the schema id ``gacprof.NAME/1``; a list has it in each entry. What brings an
    id of its own keeps it."""
    named = {"schema": f"gacprof.{name}/1"} if name else {}
    whole = [named | entry for entry in data] if isinstance(data, list) else named | data
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json_text(whole, ascii_only=not unicode)
    print(re.sub(r"[^\x00-\x7e]", lambda found: _escaped(found[0]), text))


def _escaped(letter: str) -> str:
    """What a terminal would obey is escaped as JSON does it: it obeys more than ASCII's codes."""
    return json.dumps(letter)[1:-1] if unicodedata.category(letter)[0] == "C" else letter


def emit(found: Any, as_json: bool, show: Callable[..., None], *more: Any) -> None:
    """A result, or a list of them, as JSON or in the words of ``show(found, *more)``."""
    several = isinstance(found, list | tuple)
    if not as_json:
        show(found, *more)
    elif several and not found:
        print_json([])
    else:
        first = type(found[0] if several else found).__name__
        name = re.sub(r"(?<!^)(?=[A-Z])", "-", first).lower()  # MapDiff: map-diff
        print_json([one.as_dict() for one in found] if several else found.as_dict(), name)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table; columns whose cells are all numbers or percentages are set flush right."""
    if title:
        say(title)
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for i, name in enumerate(columns):
        cells = [row[i] for row in rows]
        widest = max((len(str(cell)) for cell in cells), default=0)
        word = max((len(word) for cell in (name, *cells) for word in str(cell).split()), default=0)
        numbers = all(map(_is_number, cells))
        whole = LONGEST_NUMBER if numbers else NEVER_FOLDED
        table.add_column(
            escape(name),
            justify="right" if numbers else "left",
            overflow="fold",
            no_wrap=widest <= whole,  # else rich narrows it, widens it again, and cuts the table
            min_width=widest if widest <= whole else min(word, NEVER_FOLDED + 4),
        )
    for row in rows:
        table.add_row(*("–" if cell is None else escape(visible(str(cell))) for cell in row))
    out.print(table)


def labelled(names: Sequence[str]) -> list[str]:
    """What stands for these names in a table: themselves, or numbers that are explained here."""
    if all(len(name) <= LONGEST_NAME for name in names):
        return list(names)
    for number, name in enumerate(names, 1):
        say(f"{number}: {name}")
    return [str(number) for number in range(1, len(names) + 1)]


def _is_number(cell: Any) -> bool:
    if cell is None or isinstance(cell, int | float):
        return True
    return str(cell)[:1] in "0123456789+-–" and not re.search("[a-z]{3}", str(cell))


@contextmanager
def interruptible() -> Iterator[None]:
    """An interrupt is reported with its notes here: typer turns it into an exit code, silently."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        complain(": ".join(["interrupted", *getattr(interrupt, "__notes__", ())]))
        raise


@contextmanager
def progress(title: str, clock: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """A bar on stderr with its share and the time left; where stderr is no terminal, a line of the
    same every :data:`SILENCE_S`."""
    from rich import progress as bar

    columns = (
        bar.TextColumn("{task.description}"),
        bar.BarColumn(),
        bar.TaskProgressColumn(),
        bar.TimeElapsedColumn(),
        bar.TimeRemainingColumn(),
    )
    bars = bar.Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
    began = said = clock()
    with interruptible(), bars:
        task = bars.add_task(title, total=None)

        def advance(done: float, total: float, what: object = "") -> None:
            nonlocal said
            bars.update(task, completed=done, total=total)
            now = clock()
            if err.is_terminal or now - said < SILENCE_S or not 0 < done < total:
                return
            said, share = now, done / total
            left = duration((now - began) * (total - done) / done)
            about = f", about {left} left" if share >= LEAST_SHARE else ""
            complain(f"{title}: {percent(share, decimals=0)}{about} {what}".rstrip())

        yield advance


@contextmanager
def search_line(objective: str) -> Iterator[Progress]:
    """A line on stderr while a plan is searched for; call it with the best value and the bound."""
    from rich.live import Live
    from rich.spinner import Spinner

    spinner = Spinner("dots", f"planning for {objective}: reading")
    live = Live(
        spinner, console=err, transient=True, refresh_per_second=8, auto_refresh=err.is_terminal
    )
    with interruptible(), live:
        if not err.is_terminal:
            live.stop()

        def report(done: float, total: float, what: object = "") -> None:
            spinner.update(
                text=f"planning for {objective}: best {done:.8g}, bound {total:.8g}, "
                f"gap {total - done:.2g}; Ctrl-C keeps it"
            )

        yield report
