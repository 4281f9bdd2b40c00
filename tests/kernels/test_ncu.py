"""Nsight Compute's reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gacprof.core.errors import MeasurementError
from gacprof.kernels.ncu import METRICS, read_ncu

pytest.importorskip("pandas")


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
