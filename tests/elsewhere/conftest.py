"""Tables in the form of others' measurements, as if they were installed."""

import pyarrow as pa
import pytest
from planted_elsewhere import FACTORS, rows_of
from pyarrow import parquet

from gacprof.elsewhere.data import Measurements


@pytest.fixture
def write(tmp_path):
    """Write one table where the package has it; the folder of all tables is returned."""

    def write(rows, gpu="h100_sxm", engine="vllm", version="0.24.0", operator="gemm", name=""):
        folder = tmp_path / "data" / gpu / operator / engine / version
        path = folder / f"{name or operator}_perf.parquet"
        folder.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.Table.from_pylist(rows), path)
        return tmp_path / "data"

    return write


@pytest.fixture
def measured(write, tmp_path, monkeypatch):
    """Three engines on one GPU and one on another, as if they were installed."""
    for engine, factor in FACTORS.items():
        write(rows_of(factor) + rows_of(factor / 2, "fp8"), engine=engine)
    root = write(rows_of(), gpu="b300_sxm")
    made = Measurements(root, "0.12.0", tmp_path / "cache")
    monkeypatch.setattr("gacprof.elsewhere.data.installed", lambda: made)
    return made
