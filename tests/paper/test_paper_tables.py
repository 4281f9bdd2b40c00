"""The papers' tables from the published map, and from maps that lack most of what they need."""

from __future__ import annotations

import json

import pytest
from planted_blocks import linear, notes, numbered, planted
from tables import A4_ROWS, BACKENDS, TABLES, paper_table, script

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.build import build_map
from gacprof.core.errors import ReportError
from gacprof.core.points import Environment
from gacprof.reporting.tables import Table, render
from gacprof.sweeping import load_suite


@pytest.fixture(scope="module")
def tiny() -> CliffMap:
    """A map with a single curve, of two kernels whose names are known."""
    native = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_32x6_nn"
    align1 = "cutlass_75_tensorop_f16_s1688gemm_f16_128x128_tn_align1"

    points = linear("K", range(4000, 4100), M=512, N=4096)
    blocks = planted(points, "K", lambda d: 250.0 if d % 8 else 100.0, timer="cupti")
    kernels = notes(points, lambda point: align1 if point.dim["K"] % 8 else native)
    here = Environment("recorded", "tiny", "sm80")
    return build_map(blocks, here, name="tiny", point_notes=kernels)


def column(table: Table, heading: str) -> list:
    return [row[table.headings.index(heading)] for row in table.rows]


def test_a2_regions_are_the_templates(a100):
    table = paper_table(a100, "A.2")
    assert column(table, "widest") == [64, 96, 128, 160, 192, 256]
    assert column(table, "ratio")[:4] == pytest.approx([1.0, 1.38, 1.80, 2.34], abs=0.01)


def test_a3_tiers_of_k(a100, tiny):
    assert column(paper_table(a100, "A3"), "K") == [
        "K % 16 = 0", "K % 16 = 8", "K % 2 = 0, K % 8 ≠ 0", "K % 2 = 1",
    ]  # fmt: skip
    table = paper_table(tiny, "A3")
    assert column(table, "instruction") == ["m16n8k16", "m16n8k8"]
    assert column(table, "alignment") == [8, 1]
    assert column(table, "ratio") == pytest.approx([1.0, 2.5], rel=0.01)


def test_a4_finds_the_papers_constraints_without_being_told(a100):
    table = paper_table(a100, "a4")
    found = {(op, axis, words) for op, axis, words, *_ in table.rows}
    assert {
        ("attention", "head_dim", "head_dim % 8 = 0"),
        ("attention", "head_dim", "head_dim % 32 = 0"),
        ("GEMM", "N", "N % 8 = 0"),
        ("GEMM", "K", "K % 8 = 0"),
        ("GEMV", "K", "K % 8 = 0"),
        ("tensor cores", "K", "K % 16 = 0"),
        ("row loads", "K", "K % 16 = 0"),
    } <= found
    lost = {(row[0], row[1]): row[4] for row in table.rows if "32" not in str(row[2])}
    assert lost["GEMV", "K"] == pytest.approx(0.11, abs=0.02)  # the paper: about 12 %
    assert lost["tensor cores", "K"] == pytest.approx(0.66, abs=0.05)  # about 70 %
    assert lost["GEMM", "N"] == pytest.approx(0.33, abs=0.05)  # about 30 %


def test_b1_and_b2_settle_which_backend_serves_107(a100):
    b1 = paper_table(a100, "B.1")
    row = dict(zip(b1.headings, next(r for r in b1.rows if r[0] == 107), strict=True))
    assert row["mem-efficient"] == "fails"
    assert row["auto"] == pytest.approx(row["flash"], rel=0.01) and row["math"] > 20
    b2 = {name: (aligned, other) for name, aligned, other, _ in paper_table(a100, "B2").rows}
    assert b2["flash"] == (1.0, 1.0) and b2["mem-efficient"] == (1.0, 0.0)


def test_b3_names_what_the_row_sum_cannot_tell(a100):
    table = paper_table(a100, "B3")
    lost = dict(zip(column(table, "hypothesis"), column(table, "rate lost"), strict=True))
    assert lost["H1 tensor-core tiles"] == pytest.approx(0.65, abs=0.02)
    assert any("Triton" in note for note in table.notes)


def test_b4_rates_by_alignment(a100):
    table = paper_table(a100, "B4")
    bounds = {row[0]: (round(row[2]), round(row[3])) for row in table.rows}
    assert bounds["K % 16 = 0"] == (164, 176) and bounds["K % 2 = 1"] == (55, 64)


def test_b5_padding_107_gains_what_was_published(a100):
    table = paper_table(a100, "B5")
    gains = {row[1]: row[3] for row in table.rows}
    assert gains[112] == pytest.approx(2146.75 / 1545.06) and gains[128] > gains[112]
    assert {row[1]: round(row[4], 3) for row in table.rows}[128] == 0.196


def test_a_table_says_which_suite_gives_what_the_map_lacks(a100, tiny):
    assert column(paper_table(a100, "B6"), "latency [ms]") == [None] * 3
    for table in (make(tiny) for make in TABLES.values()):
        if table.id not in ("A.3", "B.4"):
            assert any("gacprof sweep paper" in note for note in table.notes), table.id


def test_an_unknown_table_and_an_unknown_form_are_refused(a100):
    with pytest.raises(ReportError, match=r"no table 'C9' .*A\.2, A\.3"):
        paper_table(a100, "C9")
    with pytest.raises(ReportError, match="no table format 'docx'"):
        render(paper_table(a100, "A4"), "docx")


def test_rows_are_taken_from_curves_of_their_own_regime_and_no_curve_twice():
    """Of curves at one token and at many, in float32: what a CPU's first sweep gives."""

    def over_k(m, us):
        points = linear("K", range(96, 145), dtype="float32", M=m, N=1024)
        return planted(points, "K", lambda d: us * d / 96 * (1.3 if d % 4 else 1), spread=0.002)

    here = Environment("cpu", "cpu", "avx2")
    cpu = build_map(numbered(over_k(512, 600.0), over_k(1, 7.0)), here, name="cpu")
    found = [row[:3] for row in paper_table(cpu, "A4").rows]
    assert ("GEMM", "K", "K % 4 = 0") in found and ("GEMV", "K", "K % 4 = 0") in found
    assert {(operation, axis) for operation, axis, _ in found} == {("GEMM", "K"), ("GEMV", "K")}
    assert len(set(found)) == len(found)


def test_the_suite_named_for_a_missing_row_does_sweep_it():
    swept = {(sweep.operator, sweep.axis) for sweep in load_suite("paper").sweep}
    assert {(operator, axis) for _, operator, axis, _ in A4_ROWS} <= swept
    flags = [sweep.flags.get("backend", []) for sweep in load_suite("paper").sweep]
    assert {"auto", *flags[1]} == set(BACKENDS.values())


def test_the_script_prints_tables_or_writes_them_all_beside_another_map(run, tmp_path):
    message = run(script, "a100-published", "--table", "A2", "--format", "csv")
    assert message.code == 0 and message.out.startswith("head_dim,widest")
    message = run(script, "cpu-example", "--out", tmp_path)
    assert message.code == 0 and "of 9 tables have rows" in message.out
    page = (tmp_path / "tables.md").read_text()
    assert "### NVIDIA A100 80GB (published)" in page and "not measured: this map" in page
    found = json.loads((tmp_path / "tables.json").read_text())["tables"]["A.2"]
    assert found["a100-published"]["rows"] and found["cpu-example"]["rows"]
    run(script, "nonesuch").refused("nonesuch")
