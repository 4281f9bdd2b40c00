"""What misaligned products cost by others' measurements, and where nothing may be said."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from golden_answers import use_of
from groups_left_out import groups_left_out

from gacprof.core.sizes import Gemm, Side, Use, seems_safe
from gacprof.kernels import penalties, third_party
from gacprof.kernels.penalties import MEASURED, estimate, interval_of, parity_of, peak_of
from gacprof.kernels.rules import Rules

H200 = Path(__file__).parents[1] / "fixtures" / "h200"


@pytest.fixture(autouse=True)
def no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the extra is installed or not, padded products have no times."""
    monkeypatch.setattr(third_party, "grids", lambda gpu: [])


def test_a_groups_number_is_within_the_interval_of_the_others_unless_it_says_why_not() -> None:
    answers = [answer for answer in groups_left_out() if answer.bounds]
    assert len(answers) >= 10
    for answer in answers:
        assert answer.is_within != bool(answer.outlies), answer
    assert sum(answer.is_within for answer in answers) >= 0.8 * len(answers)


@pytest.mark.parametrize("parity", ["odd", "even"])
def test_all_sizes_of_our_h200_are_within_the_interval_of_the_other_groups(parity: str) -> None:
    """1,024 rows beside N and K of 4096 to 4160, one call of each size by the tracer."""
    of_parity = [answer for answer in groups_left_out() if answer.parity == parity]
    (ours,) = (a for a in of_parity if "gacprof" in a.group and a.quantity == "ratio")
    assert ours.bounds is not None
    planes = json.loads(gzip.decompress((H200 / "planes.json.gz").read_bytes()))["planes"]
    for plane in planes:
        if plane["M"] < penalties.MIN_ROWS or plane["dtype"] not in ("float16", "bfloat16"):
            continue
        n, k = np.meshgrid(plane["sizes"], plane["sizes"], indexing="ij")
        us = np.reshape(plane["us"], n.shape)
        padded = us[-(-n // 8) * 8 - 4096, -(-k // 8) * 8 - 4096]
        is_parity = np.vectorize(parity_of)(n, k) == parity
        ratios = (us / padded)[is_parity]
        assert len(ratios) > 1000
        assert ours.bounds[0] < ratios.min() and ratios.max() < ours.bounds[1]


def test_a_group_counts_once_on_gpus_of_one_architecture_and_peak() -> None:
    for parity in ("odd", "even"):
        counts = Counter((row["group"], peak_of(row["gpu"])) for row in MEASURED[parity])
        assert set(counts.values()) == {1}


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_hopper_at_its_full_rate_has_classes(gpu: str) -> None:
    odd, even = (
        estimate(gpu, "bfloat16", 1024, 1433, 4096),
        estimate(gpu, "float16", 512, 2230, 500),
    )
    assert odd is not None and even is not None
    assert (odd.low, odd.high, odd.groups) == (2.8, 9.3, 5)
    assert (even.low, even.high, even.groups) == (1.8, 4.1, 4)


@pytest.mark.parametrize(
    ("gpu", "dtype", "rows", "n", "k"),
    [
        ("a100", "bfloat16", 1024, 1433, 4096),  # one group
        ("b200", "bfloat16", 1024, 1433, 4096),  # two
        ("h100-pcie", "bfloat16", 1024, 1433, 4096),  # another peak rate
        ("h100-nvl", "bfloat16", 1024, 1433, 4096),
        ("l40s", "bfloat16", 1024, 1433, 4096),  # none
        ("h100", "bfloat16", 1, 1433, 4096),
        ("h100", "bfloat16", 16, 1433, 4096),
        ("h100", "bfloat16", 511, 1433, 4096),
        ("h100", "bfloat16", 1024, 107, 4096),
        ("h100", "bfloat16", 1024, 4096, 499),
        ("h100", "bfloat16", 1024, 1440, 4096),  # aligned
        ("h100", "float32", 1024, 1433, 4096),
        ("h100", "float8_e4m3", 1024, 1433, 4096),
    ],
)
def test_where_too_little_was_measured_there_is_no_number(
    gpu: str, dtype: str, rows: int, n: int, k: int
) -> None:
    assert estimate(gpu, dtype, rows, n, k) is None


@pytest.mark.parametrize(
    ("n", "k", "parity"),
    [
        (1433, 4096, "odd"),
        (4096, 4095, "odd"),
        (2230, 4096, "even"),
        (2228, 8, "even"),
        (8, 8, "aligned"),
    ],
)
def test_the_worse_side_decides(n: int, k: int, parity: str) -> None:
    assert parity_of(n, k) == parity


def test_groups_that_agree_by_chance_leave_an_interval() -> None:
    low, high = interval_of([2.3, 2.3, 2.3])
    assert (low, high) == (pytest.approx(2.3 / 1.5), pytest.approx(2.3 * 1.5))


def test_the_interval_is_students_of_a_further_value() -> None:
    """Four logarithms of standard deviation 1: t is 1.638 with three degrees of freedom."""
    low, high = interval_of(list(np.exp([0.0, 0.0, np.sqrt(3), np.sqrt(3)])))
    assert np.log(high / low) / 2 == pytest.approx(1.638 * np.sqrt(1 + 1 / 4))


def test_an_estimate_changes_no_verdict_and_nothing_is_chosen_by_it() -> None:
    """An H100 PCIe has the same tiers, and no estimate."""
    uses = [use_of("N", 4096, 1024, "float16"), use_of("K", 4096, 1024, "float16")]
    sizes = range(1400, 1500)
    with_numbers, without = (Rules(gpu).judge(uses, sizes) for gpu in ("h100", "h100-pcie"))
    assert any(verdict.estimate for verdict in with_numbers)
    for verdict, bare in zip(with_numbers, without, strict=True):
        assert verdict.penalty is None and bare.estimate is None
        assert (verdict.verdict, seems_safe(verdict, 0.02)) == (
            bare.verdict,
            seems_safe(bare, 0.02),
        )
        assert (verdict.estimate is not None) == (verdict.verdict == "misaligned")


def test_the_worst_use_of_a_dim_decides() -> None:
    tokens = [use_of("N", 4096, rows, "float16") for rows in (1, 16, 1024)]
    (verdict,) = Rules("h100").judge(tokens, [2230])
    assert verdict.estimate == estimate("h100", "float16", 1024, 2230, 4096)
    twice = Use(Gemm("", 4096, 1), Side(4096), Side(0, 2), 1024, "float16")
    odd = Rules("h100").judge([twice, use_of("N", 4096, 1024, "float16")], [1433])[0].estimate
    assert odd == estimate("h100", "float16", 1024, 1433, 4096)


def test_beside_a_side_that_stays_odd_padding_gains_nothing_known() -> None:
    (verdict,) = Rules("h100").judge([use_of("N", 4094, 1024, "float16")], [1433])
    assert verdict.verdict == "misaligned" and verdict.estimate is None


def test_with_times_of_padded_products_the_rate_of_the_kernels_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four groups' odd kernels ran at 87 to 116 TFLOPS, three groups' even ones at 162 to 224."""
    flops = 2 * 1024 * 1433 * 4096
    monkeypatch.setattr(third_party, "aligned_us", lambda *_: flops / 600e6)
    odd = estimate("h100", "bfloat16", 1024, 1433, 4096)
    assert odd is not None and odd.basis == "rate" and odd.groups == 4
    assert odd.low < 600 / 116 and odd.high > 600 / 87
    even = estimate("h100", "bfloat16", 1024, 2230, 4096)
    assert even is not None and even.basis == "rate" and even.groups == 3
    small = estimate("h100", "bfloat16", 512, 1433, 4096)
    assert small is not None and small.basis == "ratio", "48 tiles leave half of the GPU idle"


def test_tables_of_the_package_are_read_by_framework_and_newest_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A law in place of times: m · n · k / 10⁹ ms; by the second framework three times as long."""
    pd = pytest.importorskip("pandas")
    monkeypatch.undo()
    shapes = list(product((1, 512, 1024), (64, 1024, 4096), (64, 1024, 4096)))
    for framework, factor in (("one/0.9.0", 9.0), ("one/0.10.0", 1.0), ("two/1.0", 3.0)):
        rows = [("bfloat16", *shape, factor * np.prod(shape) / 1e9) for shape in shapes]
        rows += [("fp8", *shape, 1e-9) for shape in shapes]
        folder = tmp_path / "systems" / "data" / "h100_sxm" / "gemm" / framework
        folder.mkdir(parents=True)
        columns = ["gemm_dtype", "m", "n", "k", "latency"]
        pd.DataFrame(rows, columns=columns).to_parquet(folder / "gemm_perf.parquet")
    places = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(third_party, "find_spec", lambda name: places)
    third_party.grids.cache_clear()
    assert third_party.aligned_us("h100", 512, 1024, 1024) == pytest.approx(
        2 * 512 * 1.024**2 * 1e3 / 1e3
    )
    between = 2 * 700 * 2016 * 96 / 1e6
    assert third_party.aligned_us("h100", 700, 2000, 65) == pytest.approx(between)
    assert third_party.aligned_us("h100", 512, 4097, 1024) is None
    assert third_party.aligned_us("h200", 512, 1024, 1024) is None
    third_party.grids.cache_clear()


def test_without_the_package_there_are_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(third_party, "find_spec", lambda name: None)
    third_party.grids.cache_clear()
    assert third_party.aligned_us("h100", 512, 1024, 1024) is None
    third_party.grids.cache_clear()
    assert penalties.measured("h100", "odd", "tflops")
