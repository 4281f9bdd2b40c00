"""The table of constraints, of maps and of GPUs by rules."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pandas as pd
import pytest

from gacprof.cliffmap.cliffmap import load_map
from gacprof.core.errors import GacprofError
from gacprof.core.sizes import TOLERANCE, seems_safe
from gacprof.diagnosing.explain import explain
from gacprof.kernels.dispatch import load_table
from gacprof.kernels.penalties import estimate
from gacprof.reporting.sections import json_of, section_of
from gacprof.reporting.tables import table


def row_of(frame: pd.DataFrame, operator: str, dtype: str, dim: str) -> pd.Series:
    """The only row of an operator, dtype and dim."""
    chosen = frame[(frame.operator == operator) & (frame.dtype == dtype) & (frame.dim == dim)]
    assert len(chosen) == 1
    return chosen.iloc[0]


@pytest.mark.parametrize(
    ("gpu", "dtype", "dim", "multiple", "mostly"),
    [
        ("a100", "float16", "K", 8, None),
        ("h100", "float16", "N", 8, None),
        ("h100", "bfloat16", "K", 8, 16),
        ("b200", "bfloat16", "K", 8, None),
        ("rtx4090", "bfloat16", "N", 8, 16),
        ("a100", "tf32", "K", 4, None),
        ("rtx-pro-6000", "float32", "K", 1, None),
    ],
)
def test_a_gpu_asks_for_the_multiples_of_its_kernels(
    gpu: str, dtype: str, dim: str, multiple: int, mostly: int | None
) -> None:
    row = row_of(table(gpu), "linear", dtype, dim)
    assert row.multiple == multiple
    assert row.mostly == mostly if mostly else pd.isna(row.mostly)


def test_eight_bit_products_refuse_what_is_no_multiple() -> None:
    frame = table("a100")
    assert row_of(frame, "quantised", "int8", "N").multiple == 8
    assert row_of(frame, "quantised", "int8", "K").multiple == 16
    assert "float8_e4m3" not in set(frame.dtype)  # an A100 has no fp8


@pytest.mark.parametrize("gpu", ["a100", "h100", "rtx4090"])
def test_multiples_are_good_by_explain_and_others_are_not(gpu: str) -> None:
    frame = table(gpu)
    for dim in ("N", "K"):
        row = row_of(frame, "linear", "bfloat16", dim)
        best = row.multiple if pd.isna(row.mostly) else row.mostly
        for size in range(1000, 1100):
            now = explain(size, gpu, dim=dim, dtype="bfloat16").now
            assert seems_safe(now, TOLERANCE) == (size % best == 0)
            if size % row.multiple:
                assert now.verdict == "misaligned"


def test_templates_of_attention_are_good_beside_the_multiple() -> None:
    row = row_of(table("a100"), "attention", "float16", "head_dim")
    assert row.multiple == 64  # 160 has no template
    assert row.also_good == "32, 96"


def test_costs_are_estimates_by_rules_and_medians_by_a_map() -> None:
    row = row_of(table("h100"), "linear", "float16", "K")
    others = estimate("h100", "float16", 1024, 4096, 4097)
    assert others and (row.odd_low, row.odd_high) == (others.low, others.high)
    assert pd.isna(row.odd)
    assert pd.isna(row_of(table("b200"), "linear", "float16", "K").odd_low)  # too few measured
    (curve,) = load_map("a100-published").curves_of("linear", "K", fixed={"M": 512})
    frame = table("a100-published")
    row = frame[frame.curve.str.startswith("M=512 N=4096")].iloc[0]
    assert row.multiple == 16
    odd = [1 + v.penalty.value for v in curve.sizes if v.size % 2 and v.penalty]
    even = [
        1 + v.penalty.value for v in curve.sizes if v.size % 16 in range(2, 16, 2) and v.penalty
    ]
    assert row.odd == pytest.approx(median(odd), rel=1e-3)
    assert row.even == pytest.approx(median(even), rel=1e-3)


def test_a_map_alone_has_a_row_a_curve() -> None:
    cliff_map = load_map("h200-measured")
    frame = table(cliff_map)
    assert len(frame) == len(cliff_map.curves)
    for curve, multiple in zip(cliff_map.curves, frame.multiple, strict=True):
        failed = {v.size for v in curve.sizes if v.cause == "failed"}
        assert pd.isna(multiple) or not any(size % multiple == 0 for size in failed)


def test_several_sources_have_a_row_an_operator_and_dim_each() -> None:
    sources = ["h100", "h200-measured", "a100-published"]
    frame = table(sources)
    assert set(frame.source) == set(sources)
    assert not frame.duplicated(["source", "operator", "dtype", "dim"]).any()
    curve = row_of(frame[frame.source == "h200-measured"], "linear", "float16", "N").curve
    assert curve.startswith("M=1024 K=4096")  # a prefill, not a decode step
    assert list(section_of(frame).columns) == ["operator", "dtype", "dim", *sources]


def test_a_norm_takes_one_kernel_at_multiples() -> None:
    dispatched = load_table("h100")
    assert dispatched is not None
    multiple = row_of(table("h100"), "rms_norm", "bfloat16", "row length").multiple
    kernels = {n: dispatched.rows("rms_norm", n) for n in range(256, 8193)}
    at_multiples = {kernel for n, kernel in kernels.items() if n % multiple == 0}
    assert len(at_multiples) == 1
    assert at_multiples.isdisjoint(kernel for n, kernel in kernels.items() if n % multiple)


def test_a_table_is_written_and_read_back(tmp_path: Path) -> None:
    frame = table(["a100", "cpu-example"], out=tmp_path / "table.csv")
    table(["a100", "cpu-example"], out=tmp_path / "table.json")
    table(["a100", "cpu-example"], out=tmp_path / "table.md")
    assert pd.read_csv(tmp_path / "table.csv").multiple.sum() == frame.multiple.sum()
    rows = json.loads((tmp_path / "table.json").read_text())
    assert rows == json_of(frame)
    assert section_of(pd.DataFrame(rows)).rows == section_of(frame).rows  # as a page reads it
    assert "| attention | bfloat16" in (tmp_path / "table.md").read_text()
    with pytest.raises(GacprofError):
        table("a100", out=tmp_path / "table.txt")


@pytest.mark.parametrize("name", ["no such gpu", "nowhere/map.json", "t4"])
def test_a_name_without_rules_is_refused(name: str) -> None:
    with pytest.raises(GacprofError):
        table(name)
