"""The rules beside the first GPU that was measured: one H200 with torch 2.11."""

from __future__ import annotations

import csv
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

import gacprof
from gacprof.kernels.attention import AttentionCall, judge_head_dim
from gacprof.kernels.dispatch import load_table
from gacprof.kernels.names import parse

H200 = Path(__file__).parents[1] / "fixtures" / "h200"
TORCH = "2.11.0"
PLANES = json.loads(gzip.decompress((H200 / "planes.json.gz").read_bytes()))["planes"]


def rows(name: str) -> list[dict[str, str]]:
    with (H200 / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def tier(m: int, n: int, k: int) -> tuple[str, int | None]:
    """The family of the kernel of 16-bit x[m, k] · W[n, k]ᵀ, and the alignment in its name."""
    if n % 8 == 0 and k % 8 == 0:
        return "nvjet", None
    if m == 1:
        return "gemv", None
    return "cutlass2", 2 if n % 2 == 0 and k % 2 == 0 else 1


@pytest.mark.parametrize("plane", PLANES, ids=lambda plane: f"{plane['dtype']}-{plane['M']}")
def test_every_product_ran_the_kernel_of_its_tier(plane: dict[str, Any]) -> None:
    kernels = [parse(name) for name in plane["names"]]
    sizes = plane["sizes"]
    assert len(plane["kernels"]) == len(sizes) ** 2 == 4225
    for index, numbers in enumerate(plane["kernels"]):
        n, k = sizes[index // len(sizes)], sizes[index % len(sizes)]
        (product,) = (kernels[i] for i in numbers if kernels[i].role in ("gemm", "gemv"))
        # fp8 is refused off multiples of 16, so that all of its sizes are of one tier
        assert (product.family, product.alignment) == tier(plane["M"], n, k), (n, k)


def test_attention_launched_what_the_table_says() -> None:
    table = load_table("h200", TORCH)
    assert table is not None
    launches = rows("attention.csv")
    assert len(launches) == 375
    for row in launches:
        dims = ("head_dim", "q_len", "kv_len", "batch", "heads", "kv_heads")
        call: dict[str, Any] = {name: int(row[name]) for name in dims}
        answer = table.sdpa(**call, dtype=row["dtype"], causal=row["causal"] == "1")
        assert answer is not None and answer.kernel is not None, row
        launched = [int(row[name]) for name in ("template", "tile_m", "tile_n", "warps")]
        if row["splits"] != "1":
            launched.append(int(row["splits"]))
        kernel = answer.kernel.removeprefix("FlashAttention-2")
        assert [int(digits) for digits in re.findall(r"\d+", kernel)] == launched, row


@pytest.mark.parametrize("name", ["h200-measured", "h200-paper"])
def test_no_measured_head_dim_contradicts_the_rules(name: str) -> None:
    pairs = set()
    for curve in gacprof.load_map(name).curves_of("attention", "head_dim"):
        flags, fixed = curve.axis.flags, curve.axis.fixed
        if flags["backend"] != "auto":
            continue
        for verdict in curve.sizes:
            call = AttentionCall(
                gpu="h200",
                arch="sm90",
                torch=TORCH,
                dtype=curve.axis.dtype,
                head_dim=verdict.size,
                mask=flags["mask"] != "none",
                causal=bool(flags["causal"]),
                **fixed,
            )
            pairs.add((verdict.verdict, judge_head_dim(call).verdict))
    assert ("misaligned", "misaligned") in pairs
    assert not pairs & {("safe", "misaligned"), ("misaligned", "safe")}


def test_triton_loads_16_bytes_of_rows_divisible_by_16_and_2_of_others() -> None:
    sums = [row for row in rows("ncu.csv") if row["kernel"] == "gacprof_row_sum"]
    assert len(sums) == 6
    for row in sums:
        _, count, k, mark = row["call"].split(maxsplit=3)
        wide = mark == "specialised" and int(k) % 16 == 0
        nbytes = int(count) * 4096 * 2  # a block reads all 4,096 lanes; those beyond K are masked
        loads = nbytes / (32 * (16 if wide else 2))  # of a warp
        assert float(row["global_loads"]) == pytest.approx(loads, rel=1e-4), row
