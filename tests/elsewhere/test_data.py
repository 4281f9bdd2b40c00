"""Others' tables are read as they are, kept for the next time, and refused in one line."""

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from planted_elsewhere import FACTORS, planted_us, rows_of

from gacprof.core.errors import MapError
from gacprof.elsewhere.data import Measurements, installed


def test_each_engine_and_dtype_is_a_surface_of_times_in_us(measured):
    surfaces = {(s.framework, s.dtype): s for s in measured.surfaces("h100")}
    assert set(surfaces) == {(e, d) for e in FACTORS for d in ("bfloat16", "fp8")}
    one = surfaces["sglang", "bfloat16"]
    at = one.latency_us[list(one.m).index(64), list(one.n).index(512), list(one.k).index(4096)]
    assert at == pytest.approx(planted_us(64, 512, 4096, FACTORS["sglang"]))


def test_repeated_rows_count_by_their_median_and_senseless_ones_not(write):
    row = {"gemm_dtype": "bfloat16", "m": 1, "n": 32, "k": 64}
    times = [0.001, 0.004, 0.002, float("nan"), 0.0, -1.0]
    root = write([row | {"latency": t} for t in times])
    (surface,) = Measurements(root, "0.12.0", root.parent).surfaces("h100")
    assert surface.latency_us.tolist() == [[[pytest.approx(2.0)]]]


def test_of_an_engine_the_newest_version_with_the_dtype_counts(write):
    write(rows_of(2.0) + rows_of(3.0, "int8_wo"), version="0.9.0")
    root = write(rows_of(1.0), version="0.24.0")
    found = Measurements(root, "0.12.0", root.parent).surfaces("h100")
    assert {(s.dtype, s.version) for s in found} == {("bfloat16", "0.24.0"), ("int8_wo", "0.9.0")}


def test_what_was_read_is_kept_until_the_files_change(measured):
    first = measured.surfaces("h100")
    (kept,) = measured.cache.glob("gemm-*.npz")
    again = measured.surfaces("h100")
    for a, b in zip(first, again, strict=True):
        assert (a.framework, a.version, a.dtype) == (b.framework, b.version, b.dtype)
        assert np.array_equal(a.latency_us, b.latency_us, equal_nan=True)
    kept.write_bytes(b"no archive")
    assert len(measured.surfaces("h100")) == len(first)
    assert kept.read_bytes()[:2] == b"PK"


def test_a_cache_that_cannot_be_written_costs_time_alone(measured):
    measured.cache.write_text("a file where the folder should be")
    assert measured.surfaces("h100")
    assert measured.held()


def test_all_that_there_is_is_counted(measured):
    for _ in range(2):  # read, and from the cache
        held = measured.held()
        assert {(h.gpu, h.framework) for h in held} == {
            *(("h100_sxm", engine) for engine in FACTORS), ("b300_sxm", "vllm")
        }  # fmt: skip
        of_b300 = next(h for h in held if h.gpu == "b300_sxm")
        assert of_b300.dtypes == ("bfloat16",)
        assert of_b300.rows == len(rows_of())


def test_a_gpu_that_was_not_measured_is_answered_with_those_that_were(measured):
    with pytest.raises(MapError, match=r"no measurements of 'h100-pcie' .* b300, h100"):
        measured.gpu("h100-pcie")


def test_a_package_whose_columns_changed_is_refused_by_name(write):
    root = write([{"gemm_dtype": "bfloat16", "m": 1, "n": 32, "latency": 0.1}])
    with pytest.raises(MapError, match=r"0\.99\.0 cannot be read, it has no column k: h100_sxm/"):
        Measurements(root, "0.99.0", root.parent).surfaces("h100")


def test_a_damaged_table_is_refused_in_one_line(measured):
    path = measured.files("h100_sxm", "gemm")[0]
    path.write_bytes(path.read_bytes()[:100])
    for read in (measured.held, lambda: measured.surfaces("h100")):
        with pytest.raises(MapError, match=r"cannot be read.*gemm_perf\.parquet") as refused:
            read()
        assert "\n" not in str(refused.value)


def test_without_the_package_the_command_that_installs_it_is_named():
    with pytest.raises(MapError, match=r"pip install 'gacprof\[elsewhere\]'"):
        installed()


@pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="needs gacprof[elsewhere]")
def test_the_real_package_is_read_and_never_imported(tmp_path):
    code = (
        "import sys\n"
        "from gacprof.elsewhere.data import Measurements, installed\n"
        "from gacprof.elsewhere.levels import Levels\n"
        "from pathlib import Path\n"
        "there = installed()\n"
        f"own = Measurements(there.root, there.version, Path({str(tmp_path)!r}))\n"
        "levels = Levels(own.surfaces('h100'), 'bfloat16')\n"
        "assert 256 in levels.steps\n"
        "time = levels.at(512, 4096, 4096).time\n"
        "assert 20 < time.low < time.value < time.high < 30, time\n"
        "assert not {'aiconfigurator_core', 'torch'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
