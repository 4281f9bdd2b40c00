"""The notebooks run from top to bottom, and what they show is there."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

SECONDS = re.compile(r'("budget_s": 15|time_cap_s=20)')
"""Of the cells whose result no other cell needs; a plan needs a map that can tell."""
NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path: Path):
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:  # what it shows takes a minute; that it works, less
        cell.source = SECONDS.sub(lambda found: found[0][:-2] + "5", cell.source)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    shown = [
        output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type in ("display_data", "execute_result")
    ]
    assert sum("image/png" in output.data for output in shown) >= 2
    assert "[64, 96, 128, 160, 192, 256]" in [o.data.get("text/plain") for o in shown]
