"""Evidence kept in a sweep's folder comes back as it was, and damage is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Point
from gacprof.kernels import parse
from gacprof.kernels.evidence import (
    COUNTERS,
    IMPLEMENTATIONS,
    METRICS,
    KernelCounters,
    read_counters,
    read_implementations,
    write_counters,
    write_implementations,
)
from gacprof.kernels.onednn import CpuImplementation, LibraryCall

POINT = Point.of("linear", {"M": 64, "N": 128, "K": 107}, "float16", {"bias": False})
NAME = "cutlass_75_tensorop_f16_s1688gemm_f16_128x128_tn_align1"
VALUES: dict[str, float | None] = dict.fromkeys((metric.key for metric in METRICS), None)
LAUNCH = KernelCounters(
    parse(NAME), "sm80", "an A100", ("outer", POINT.id), VALUES | {"duration_ns": 512.0},
    {"waves_per_sm": "not collected"}, {"LDG.E.U16": 12, "HMMA.1688.F32": 3},
)  # fmt: skip


def test_counters_come_back_as_they_were(tmp_path: Path) -> None:
    write_counters(tmp_path, {POINT: [LAUNCH]})
    (launch,) = read_counters(tmp_path)[POINT]
    assert launch == LAUNCH
    assert launch.loads == {"LDG.2": 12} and launch.kernel.alignment == 1


def test_implementations_come_back_as_they_were(tmp_path: Path) -> None:
    served = CpuImplementation(POINT, (LibraryCall("oneDNN", "matmul", "brg_matmul:avx2", "x"),))
    silent = CpuImplementation(POINT.with_dim("K", 8), (), "neither reported")
    write_implementations(tmp_path, [served, silent])
    assert read_implementations(tmp_path) == {served.point: served, silent.point: silent}


def test_counters_of_another_type_are_refused_before_they_are_used(tmp_path: Path) -> None:
    data = json.loads(write_counters(tmp_path, {POINT: [LAUNCH]}).read_text())
    data["points"][0]["launches"][0]["values"]["duration_ns"] = "long"
    (tmp_path / COUNTERS).write_text(json.dumps(data))
    with pytest.raises(MeasurementError, match=r"points\.0\.launches\.0\.values\.duration_ns"):
        read_counters(tmp_path)


def test_counters_that_a_file_lacks_are_none(tmp_path: Path) -> None:
    data = json.loads(write_counters(tmp_path, {POINT: [LAUNCH]}).read_text())
    data["points"][0]["launches"][0]["values"] = {}
    (tmp_path / COUNTERS).write_text(json.dumps(data))
    (launch,) = read_counters(tmp_path)[POINT]
    assert launch.legacy_mma is None


def test_a_folder_without_evidence_has_none(tmp_path: Path) -> None:
    assert read_counters(tmp_path) == {} and read_implementations(tmp_path) == {}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": "gacprof.counters/9", "points": []}', "\xff", "[" * 100_000,
     json.dumps({"schema": "gacprof.counters/1", "points": [{"point": {}}]}),
     json.dumps({"schema": "gacprof.counters/1", "points": 3})],
)  # fmt: skip
def test_garbled_evidence_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / COUNTERS).write_text(text)
    (tmp_path / IMPLEMENTATIONS).write_text(text)
    with pytest.raises(MeasurementError, match=COUNTERS):
        read_counters(tmp_path)
    with pytest.raises(MeasurementError, match=IMPLEMENTATIONS):
        read_implementations(tmp_path)
