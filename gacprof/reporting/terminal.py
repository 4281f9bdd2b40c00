"""A result as text: its sentence, its table, its remarks."""

from __future__ import annotations

import io
import shutil
import sys
from typing import Any

from gacprof.core.formatting import one_line
from gacprof.reporting.sections import section_of

FILE_WIDTH = 160  # characters of a line where the output is no terminal


def screen_of(result: Any, *, styled: bool = False) -> str:
    """Return what the command line prints of a result: wrapped for a terminal only."""
    from rich.console import Console
    from rich.table import Table

    section = section_of(result)
    on_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if on_terminal else FILE_WIDTH
    screen = io.StringIO()
    console = Console(
        file=screen, width=width, force_terminal=styled, highlight=False, markup=False
    )
    if section.headline:  # control characters of a stranger's texts are escaped
        console.print(one_line(section.headline), soft_wrap=not on_terminal)
    if section.rows:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in section.columns:
            table.add_column(column, overflow="fold")
        for row in section.rows:
            table.add_row(*map(one_line, row))
        console.print(table)
    for remark in section.remarks:
        console.print(one_line(remark), soft_wrap=not on_terminal)
    return screen.getvalue().rstrip("\n")
