"""The notebooks run from top to bottom, and what they show is there."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import IPython.display  # noqa: F401
import nbformat
import pytest
from nbclient import NotebookClient

from gacprof.core.formatting import notebook_progress

SECONDS = re.compile(r"(budget_s=15|time_cap_s=20)")
"""Of the cells whose result no other cell needs; a plan needs a map that can tell."""
SLOW = {"no-gpu", "this-machine"}
MOST_BYTES = 200_000
SHOWN = {
    "no-gpu": ["27 of 29 weights", "[64, 96, 128, 160, 192, 256]", "128 with even_k=false", "same: True"],
    "this-machine": ["[64, 96, 128, 160, 192, 256]", "passed"],
    "write-a-compressor": ["[80, 88, 90, 96, 112, 128]", "aligned"],
}
"""What each notebook is there to show."""
NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if p.stem in SLOW else [])
        for p in NOTEBOOKS
    ],
)
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
    assert sum("image/png" in output.data for output in shown) >= 1
    texts = "\n".join(output.data.get("text/plain", "") for output in shown)
    printed = "\n".join(
        output.text
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "stream"
    )
    for words in SHOWN[path.stem]:
        assert words in texts + printed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_stored_with_what_it_shows(path: Path):
    assert path.stem in SHOWN and path.stat().st_size < MOST_BYTES
    cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    assert any(o.output_type in ("display_data", "execute_result") for o in outputs)
    assert not any(o.output_type == "error" for o in outputs)


def test_a_sweep_shows_its_progress_in_a_notebook(monkeypatch):
    assert notebook_progress("outside of one") is None
    shown: list[Any] = []
    cell = SimpleNamespace(update=shown.append)
    monkeypatch.setattr("IPython.get_ipython", lambda: SimpleNamespace(kernel="a kernel"))
    monkeypatch.setattr("IPython.display.display", lambda *_, **__: cell)
    advance = notebook_progress("sweep <mine>")
    assert advance is not None
    advance(1.0, 4.0)
    advance(4.0, 4.0)
    bar = shown[-1].data
    assert '<progress value="4.0" max="4.0">' in bar and "sweep &lt;mine&gt;: " in bar
