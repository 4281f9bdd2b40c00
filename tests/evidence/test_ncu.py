"""Counters are read from real reports; broken ones, and machines without ncu, say so."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Point
from gacprof.extras.evidence import collecting, ncu
from gacprof.extras.evidence.ncu import read_report, requested
from gacprof.kernels.evidence import METRICS, KernelCounters
from gacprof.kernels.names import Kernel

POINT = Point.of("linear", {"M": 64, "N": 128, "K": 107}, "float16", {"bias": False})


def test_a_report_is_read(report: Path) -> None:
    launches = read_report(report)
    names = [launch.kernel.name.split("(")[0] for launch in launches]
    assert names == ["init_data_kernel", "daxpy_kernel", "check_results_kernel"]
    daxpy = launches[1]
    assert (daxpy.arch, daxpy.device) == ("sm86", "NVIDIA GeForce RTX 3070")
    assert daxpy.ranges == ("run_test", "daxpy")
    assert daxpy.values["duration_ns"] == 249216
    assert daxpy.values["waves_per_sm"] == pytest.approx(59.36, abs=0.01)
    assert (daxpy.values["tensor_active_pct"], daxpy.values["blocks"]) == (0, 16384)
    assert (daxpy.loads, daxpy.mma) == ({"LDG.8": 262144}, {})


def test_counters_that_were_not_collected_are_none_with_a_reason(report: Path) -> None:
    launch = read_report(report)[0]
    assert set(launch.values) == {metric.key for metric in METRICS}
    assert launch.values["dram_read_bytes"] is None
    assert "collected without dram__bytes_read.sum" in launch.absent["dram_read_bytes"]
    assert launch.absent["gmma_instructions"].startswith("sm86 has no counter")
    assert launch.legacy_mma is None
    assert all((value is None) == (key in launch.absent) for key, value in launch.values.items())


@pytest.mark.parametrize("left", [5, 0.03, 0.62, -1])
def test_a_report_cut_short_is_refused(report: Path, tmp_path: Path, left: float) -> None:
    cut, data = tmp_path / "cut.ncu-rep", report.read_bytes()
    cut.write_bytes(data[: int(left * len(data)) if isinstance(left, float) else left])
    with pytest.raises(MeasurementError, match="is cut short"):
        read_report(cut)


@pytest.mark.parametrize("content", [b"", b"NVR", b"\x7fELF" * 100])
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign.ncu-rep"
    path.write_bytes(content)
    with pytest.raises(MeasurementError, match="is not an Nsight Compute report"):
        read_report(path)


def counters(arch: str, opcodes: dict[str, int] | None = None, **values: float) -> KernelCounters:
    full: dict[str, float | None] = dict.fromkeys((metric.key for metric in METRICS), None)
    return KernelCounters(Kernel("k"), arch, "a GPU", (), full | values, {}, opcodes or {})


def test_loads_are_counted_by_their_width() -> None:
    opcodes = {
        "LDG.E.128": 1, "LDG.E.128.CONSTANT": 2, "LDG.E": 4, "LDG.E.U16": 8, "LDS.128": 99,
        "LDGSTS.E.BYPASS.128": 16, "LDGSTS.E": 32, "UTMALDG.2D": 64, "STG.E.64": 99,
    }  # fmt: skip
    assert counters("sm90", opcodes).loads == {
        "LDG.16": 3, "LDG.4": 4, "LDG.2": 8, "LDGSTS.16": 16, "LDGSTS.4": 32, "TMA": 64,
    }  # fmt: skip


def test_hopper_on_the_old_instructions_shows_whatever_the_name_says() -> None:
    assert counters("sm90", hmma_instructions=9e6, gmma_instructions=0).legacy_mma is True
    assert counters("sm90", hmma_instructions=0, gmma_instructions=4e4).legacy_mma is False
    assert counters("sm90", hmma_instructions=0, gmma_instructions=0).legacy_mma is None
    assert counters("sm80", hmma_instructions=9e6, gmma_instructions=0).legacy_mma is None


def test_the_command_leaves_the_clocks_alone_and_asks_for_every_counter() -> None:
    command = collecting.command("ncu", Path("out.ncu-rep"), Path("points.json"))
    assert command[command.index("--clock-control") + 1] == "none"
    assert command[command.index("--cache-control") + 1] == "none"
    assert command[command.index("--metrics") + 1] == requested()
    assert all(metric.name in requested() for metric in METRICS)
    assert command[-4:] == ["-m", "gacprof.devices.profiled", "points.json", "0"]
    cold = collecting.command("ncu", Path("out.ncu-rep"), Path("points.json"), flush=True)
    assert cold[cold.index("--cache-control") + 1] == "all"


def test_a_chip_is_not_asked_for_counters_it_lacks() -> None:
    assert "gmma" in requested("sm90") and "subpipe_hmma" not in requested("sm90")
    assert "gmma" not in requested("sm80") and "pipe_tma" not in requested("sm80")
    assert requested("sm999") == requested(None) == requested()


@pytest.mark.parametrize(
    "script, problem",
    [
        ("echo '==ERROR== ERR_NVGPUCTRPERM - no permission'; exit 1", "only administrators"),
        ("echo '==ERROR== No kernels were profiled.'; exit 3", "No kernels were profiled"),
        ("exit 0", "failed: no message"),
    ],
)
def test_a_failing_ncu_is_a_reason_not_an_exception(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, problem: str
) -> None:
    fake_ncu(monkeypatch, tmp_path, f"sys.exit(subprocess.call({script!r}, shell=True))")
    evidence = collecting.collect([POINT], tmp_path / "out.ncu-rep")
    assert evidence.counters == {}
    assert problem in evidence.problem


FAKE_NCU = """#!{python}
import os, subprocess, sys, time
out = sys.argv[sys.argv.index("--export") + 1]
{body}
"""


def fake_ncu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
    program = tmp_path / "ncu"
    program.write_text(FAKE_NCU.format(python=sys.executable, body=body))
    program.chmod(0o755)
    monkeypatch.setattr(collecting, "find_ncu", lambda: str(program))


def test_what_was_counted_before_ncu_failed_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, report: Path
) -> None:
    body = f"""
import shutil
shutil.copy({str(report)!r}, out)
print("gacprof: not run: linear K=107: refused")
print("==ERROR== The application returned an error code (1).")
sys.exit(1)"""
    fake_ncu(monkeypatch, tmp_path, body)
    kept = tmp_path / "edges.ncu-rep"
    evidence = collecting.collect([POINT], kept)
    assert evidence.report == kept and kept.is_file()
    assert evidence.problem.startswith("1 points could not be run: linear K=107: refused; 1 of 1")


def test_an_earlier_report_is_neither_taken_for_a_new_one_nor_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_ncu(monkeypatch, tmp_path, 'print("==WARNING== No kernels were profiled.")')
    earlier = tmp_path / "edges.ncu-rep"
    earlier.write_bytes(b"earlier")
    evidence = collecting.collect([POINT], earlier)
    assert evidence.report is None and "No kernels were profiled" in evidence.problem
    assert earlier.read_bytes() == b"earlier"


def test_a_profiler_out_of_time_is_ended_with_what_it_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """ncu's own child holds its output open; waiting for that would take as long as it runs."""
    body = f"""
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
time.sleep(600)"""
    fake_ncu(monkeypatch, tmp_path, body)
    evidence = collecting.collect([POINT], tmp_path / "out.ncu-rep", timeout_s=2.0)
    assert "did not finish within 2 s" in evidence.problem
    state = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    assert not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_launches_are_sorted_by_the_ranges_around_them(report: Path) -> None:
    class Named:
        """A point whose id is an NVTX range of the report."""

        def __init__(self, name: str) -> None:
            self.id = name

    evidence = collecting.from_report([Named("daxpy"), Named("absent")], report)  # type: ignore[list-item]
    assert [launch.kernel.name[:5] for launch in evidence.counters["daxpy"]] == ["daxpy"]
    assert evidence.problem == f"1 of 2 points have no launch in {report.name}"
    assert "cannot be read" in collecting.from_report([POINT], report / "absent").problem


def test_nsights_own_reader_does_where_no_package_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "2025.3.1" / "extras" / "python"
    own.mkdir(parents=True)
    (own / "ncu_report.py").write_text("which = 'of Nsight'\n")
    installed = importlib.import_module

    def none_installed(name: str) -> object:
        if name == "ncu_report" and str(own) not in sys.path:
            raise ImportError(name)
        return installed(name)

    monkeypatch.setattr(ncu.importlib, "import_module", none_installed)
    monkeypatch.setattr(ncu, "find_ncu", lambda: None)
    monkeypatch.setattr(ncu, "NSIGHT", tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
    monkeypatch.delitem(sys.modules, "ncu_report", raising=False)
    assert ncu._reader().which == "of Nsight"
    sys.modules.pop("ncu_report")
    monkeypatch.setattr(ncu, "NSIGHT", tmp_path / "none")
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(MeasurementError, match="pip install"):
        ncu._reader()
