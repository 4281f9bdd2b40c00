"""Results on a terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gacprof.reporting.sections import Section, section_of

FILE_WIDTH = 160
"""Characters of a line where the output is no terminal."""


def print_result(result: Any) -> None:
    """Print a result: in its own words where its class has some, else as its section."""
    if "__str__" in vars(type(result)) or isinstance(result, str | Path):
        print(result)
    else:
        print_section(section_of(result))


def print_section(section: Section) -> None:
    """Print the headline, the table and the remarks."""
    from rich.console import Console
    from rich.table import Table

    width = None if sys.stdout.isatty() else FILE_WIDTH
    console = Console(width=width, highlight=False, markup=False)
    if section.headline:
        console.print(section.headline)
    if section.rows:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in section.columns:
            table.add_column(column, overflow="fold")
        for row in section.rows:
            table.add_row(*row)
        console.print(table)
    for remark in section.remarks:
        console.print(remark)
