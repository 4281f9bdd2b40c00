"""What others measured, and Nsight Compute's reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gacprof.core.errors import MeasurementError
from gacprof.core.sizes import Gemm
from gacprof.kernels import third_party
from gacprof.kernels.ncu import METRICS, read_ncu
from gacprof.kernels.third_party import ThirdPartyTimes

pd = pytest.importorskip("pandas")


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's tables with a law in the place of times: m · n · k / 10⁶ µs, twice as long by
    one of two frameworks."""
    sizes = (1, 16, 256, 1024)
    widths = (64, 1024, 4096, 16384)
    grid = [(m, n, k) for m in sizes for n in widths for k in widths]
    for framework, factor in (("vllm", 1.0), ("sglang", 2.0)):
        folder = tmp_path / "h100_sxm" / "gemm" / framework / "1.0"
        folder.mkdir(parents=True)
        rows = pd.DataFrame(grid, columns=["m", "n", "k"])
        rows["latency"] = factor * rows["m"] * rows["n"] * rows["k"] / 1e9
        rows["gemm_dtype"] = "bfloat16"
        rows.to_parquet(folder / "gemm_perf.parquet")
    monkeypatch.setattr(third_party, "_data", lambda: tmp_path)
    monkeypatch.setattr(third_party.metadata, "version", lambda name: "0")
    return tmp_path


@pytest.mark.parametrize("m, n, k", [(256, 4096, 4096), (100, 2048, 512), (1000, 8192, 96)])
def test_latencies_are_interpolated_between_measured_sizes(
    tables: Path, m: int, n: int, k: int
) -> None:
    interval = ThirdPartyTimes("h100").latency_us(Gemm("w", n, k), m, "float16")
    assert interval is not None
    law = m * n * k / 1e6
    assert interval.value == pytest.approx(1.5 * law, rel=1e-6)
    assert interval.low < law and interval.high > 2 * law


def test_what_was_not_measured_has_no_latency(tables: Path) -> None:
    times = ThirdPartyTimes("h100")
    for n, k, dtype in ((4095, 4096, "float16"), (4096, 32768, "float16"), (4096, 4096, "int8")):
        assert times.latency_us(Gemm("w", n, k), 64, dtype) is None
    with pytest.raises(MeasurementError):
        ThirdPartyTimes("l40s")


class FakeMetric:
    def has_value(self) -> bool:
        return True

    def value(self) -> float:
        return 9.0


def test_a_report_is_a_row_a_launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On the interface of NVIDIA's module, of which no small report may be shipped."""
    ncu_report = pytest.importorskip("ncu_report")

    class Action:
        NameBase_DEMANGLED = 0

        def name(self, base: int = 0) -> str:
            return "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_32x6_nn"

        def metric_by_name(self, name: str) -> FakeMetric | None:
            return FakeMetric() if name in (METRICS["duration_ns"],) else None

        def nvtx_state(self) -> None:
            return None

    class Range:
        def num_actions(self) -> int:
            return 2

        def action_by_idx(self, index: int) -> Action:
            return Action()

    class Context:
        def num_ranges(self) -> int:
            return 1

        def range_by_idx(self, index: int) -> Range:
            return Range()

    monkeypatch.setattr(ncu_report, "load_report", lambda path: Context())
    frame = read_ncu(tmp_path / "x.ncu-rep")
    assert list(frame["mechanism"]) == ["native sm80 float16 m16n8k16 align8"] * 2
    assert list(frame["duration_ns"]) == [9.0, 9.0]
    assert np.isnan(frame["dram_read_bytes"].astype(float)).all()


def test_a_file_that_is_no_report_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("ncu_report")
    (tmp_path / "x.ncu-rep").write_text("no report")
    with pytest.raises(MeasurementError):
        read_ncu(tmp_path / "x.ncu-rep")
