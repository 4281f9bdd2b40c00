"""Tables as Markdown, LaTeX, CSV and HTML, and what a map says of every curve."""

from __future__ import annotations

import csv
import io
import re
from xml.etree import ElementTree

import pytest

from gacprof.reporting.tables import FORMS, TABLES, Column, Table, map_table, render


def test_every_curve_has_its_constraint(a100):
    table = map_table(a100, "constraints", a100.curves)
    found = {row[0]: row[1] for row in reversed(table.rows)}
    assert set(found) == {curve.identity for curve in a100.curves}
    attention = a100.curve("attention", "head_dim")
    rows = [row[1] for row in table.rows if row[0] == attention.identity]
    assert rows == ["head_dim % 8 = 0", "head_dim % 32 = 0"]
    lost = next(row[3] for row in table.rows if row[0] == attention.identity)
    assert 0.2 < lost < 0.5


def test_every_residue_class_has_a_row_the_fastest_first(a100):
    curve = a100.curve("linear", "K", M=512)
    table = map_table(a100, "classes", [curve])
    assert [row[1] for row in table.rows] == [
        "K % 16 = 0", "K % 16 = 8", "K % 2 = 0, K % 8 ≠ 0", "K % 2 = 1",
    ]  # fmt: skip
    ratios = [row[-1] for row in table.rows]
    assert ratios == sorted(ratios) and ratios[0] == 1.0
    assert "no kernel names" in table.notes[0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", TABLES)
def test_every_table_renders_in_every_form_even_when_empty(a100, name, form):
    for curves in (a100.curves, []):
        text = render(map_table(a100, name, curves), form)
        assert text.endswith("\n") and "None" not in text and "nan" not in text


HARD = Table(
    "X", "A & B", (Column("a|b"), Column("t_1", 2), Column("share", 1, share=True)),
    (("K % 8 ≠ 0", 1.005, 0.5), ("<x>, \"y\"", None, None)), ("50 % & more",),
)  # fmt: skip


def test_markdown_escapes_bars_and_aligns_numbers():
    lines = render(HARD, "markdown").splitlines()
    assert lines[2:4] == ["| a\\|b | t_1 | share |", "| --- | ---: | ---: |"]
    assert lines[4] == "| K % 8 ≠ 0 | 1.00 | 50.0 % |" and lines[5].endswith("| – | – |")


def test_latex_escapes_its_special_characters():
    text = render(HARD, "latex")
    assert r"K \% 8 $\neq$ 0 & 1.00 & 50.0 \% \\" in text and r"\caption{X. A \& B}" in text
    assert r"t\_1" in text and not re.search(r"(?<!\\)[%&](?! )", text.replace(" & ", ""))


def test_csv_holds_raw_values_and_reads_back():
    rows = list(csv.reader(io.StringIO(render(HARD, "csv"))))
    assert rows[1] == ["K % 8 ≠ 0", "1.005", "0.5"] and rows[2] == ['<x>, "y"', "", ""]


def test_html_is_well_formed_and_escaped():
    text = render(HARD, "html")
    ElementTree.fromstring(f"<div>{text}</div>")  # raises where a tag is left open
    assert "&lt;x&gt;" in text and "<td>1.00</td>" in text
