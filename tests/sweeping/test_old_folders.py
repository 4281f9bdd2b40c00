"""Run folders from before a column was added are read, and damaged ones are told."""

import json

import pyarrow.parquet as pq
import pytest

from gacprof.errors import MeasurementError
from gacprof.measure.recorded import RecordedDevice
from gacprof.sweeping.run import run_sweep
from gacprof.sweeping.store import ADDED_LATER, JOURNAL, PARQUET, read_frame, read_samples
from gacprof.sweeping.suite import parse_suite

SUITE = parse_suite(
    {
        "name": "t",
        "timing": {"passes": 1, "duplicates": 0},
        "sweep": [
            {"operator": "linear", "axis": "K", "values": [4, 8], "dims": {"M": 1, "N": 500}}
        ],
    },
    "t",
)


@pytest.fixture
def run(tmp_path):
    run_sweep(SUITE, RecordedDevice(lambda point, n: [2.0] * n), tmp_path / "run")
    return tmp_path / "run"


def test_parquet_without_the_added_columns_is_read(run):
    new = read_samples(run)
    table = pq.read_table(run / PARQUET)
    pq.write_table(table.drop_columns(list(ADDED_LATER)), run / PARQUET)
    assert read_samples(run) == new
    assert {s.power_w for s in new} == {None}


def test_a_journal_without_the_added_fields_is_read(run):
    rows = pq.read_table(run / PARQUET).to_pylist()
    old = [{k: v for k, v in row.items() if k not in ADDED_LATER} for row in rows]
    new = read_samples(run)
    (run / PARQUET).unlink()
    (run / JOURNAL).write_text("".join(json.dumps(row) + "\n" for row in old))
    assert read_samples(run) == new


def test_parquet_without_a_column_it_always_had_is_refused(run):
    table = pq.read_table(run / PARQUET)
    pq.write_table(table.drop_columns(["timings_us"]), run / PARQUET)
    with pytest.raises(MeasurementError):
        read_samples(run)


def test_a_frame_tells_work_done_and_its_rate(run):
    frame = read_frame(run).set_index("K")
    assert frame.loc[8, "median_us"] == 2.0
    assert frame.loc[8, "tflops"] == pytest.approx(2 * 500 * 8 / 2.0 / 1e6)
    assert frame.loc[8, "gb_s"] == pytest.approx(4 * (8 + 500 * 8 + 500) / 2.0 / 1e3)
    assert frame["roof_share"].isna().all()
