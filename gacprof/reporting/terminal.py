"""Results on a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gacprof.reporting.sections import Section, section_of


def print_result(result: Any) -> None:
    """Print a result: in its own words where its class has some, else as its section."""
    if isinstance(result, list):
        for item in result:
            print(item)
    elif "__str__" in vars(type(result)) or isinstance(result, str | Path):
        print(result)
    else:
        print_section(section_of(result))


def print_section(section: Section) -> None:
    """Print the headline, the table and the remarks."""
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=False, highlight=False, markup=False)
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
