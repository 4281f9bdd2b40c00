"""The rule of alignment beside the kernels that real GPUs ran (tests/fixtures/traces)."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gacprof.hardware.architectures import tiers_of
from gacprof.hardware.datasheet import find_gpu
from gacprof.kernels.names import Kernel, parse

PRODUCTS = Path(__file__).parents[1] / "fixtures" / "traces" / "products.csv"


@dataclass(frozen=True)
class Row:
    """A product of a trace, the kernel that ran it, and how often."""

    lengths: dict[str, int]
    dtype: str
    kernel: Kernel
    count: int
    gpu: str

    @property
    def ran(self) -> int:
        """The elements that the kernel's rows are a multiple of; nvjet's come by TMA."""
        return self.kernel.alignment or 16 // {"bfloat16": 2, "float32": 4}[self.dtype]

    def due(self, dims: Sequence[str], steps: Sequence[int]) -> int:
        """The largest step that all of these dims are a multiple of."""
        return next(s for s in steps if all(self.lengths[dim] % s == 0 for dim in dims))


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    with PRODUCTS.open(newline="") as file:
        table = list(csv.DictReader(file))
    return [
        Row(
            {dim: int(row[dim]) for dim in "MNK"},
            row["dtype"],
            parse(row["kernel"]),
            int(row["count"]),
            row["gpu"],
        )
        for row in table
    ]


STEPS = {"float32": (4, 1), "bfloat16": (8, 2, 1)}  # float32 is computed in tf32 here


def test_every_contiguous_dim_decides_in_3940_of_3944_kernels(rows: list[Row]) -> None:
    differing = [
        row for row in rows if row.due(row.kernel.contiguous_dims, STEPS[row.dtype]) != row.ran
    ]
    assert sum(row.count for row in rows) == 3944
    assert sum(row.count for row in differing) == 4
    # aligned sizes by kernels for single elements: memory that is off 16 bytes
    assert {row.ran for row in differing} == {1}


def test_the_operands_alone_do_not_decide(rows: list[Row]) -> None:
    operands = {"tn": "K", "nn": "NK", "nt": "NM", "tt": "KM"}
    differing = [
        row
        for row in rows
        if row.due(operands[row.kernel.layout or ""], STEPS[row.dtype]) != row.ran
    ]
    assert sum(row.count for row in differing) == 243


def test_misaligned_products_of_a_hopper_run_the_kernels_that_its_tiers_name(
    rows: list[Row],
) -> None:
    tiers = tiers_of(find_gpu("h100").arch).tiers["bfloat16"]
    kernels = {tier.K: tier.kernels for tier in tiers}
    misaligned = [row for row in rows if row.gpu.startswith("NVIDIA H100") and row.ran < 8]
    assert sum(row.count for row in misaligned) == 390
    for row in misaligned:
        name = f"cutlass_{(row.kernel.arch or '').removeprefix('sm')} align{row.ran}"
        assert kernels[row.ran].startswith(name)
