"""What only a GPU can show of measuring: run this first on a new machine.

``pytest tests/gpu -m gpu -v``. No test asserts how long something takes; those that compare
times compare what differs for a reason of the hardware.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from gacprof.sweeping.order import Visit  # noqa: E402
from gacprof.sweeping.visiting import measure_visit  # noqa: E402
from gacprof.sweeping.worker import IsolatedDevice, OpenNamed  # noqa: E402

from gacprof import operators  # noqa: E402
from gacprof.errors import MeasurementError  # noqa: E402
from gacprof.kernels import parse  # noqa: E402
from gacprof.kernels.ncu_collect import GET_PERMISSION, collect, find_ncu  # noqa: E402
from gacprof.measure.cuda import CudaDevice  # noqa: E402
from gacprof.measure.doctor import examine  # noqa: E402
from gacprof.measure.stats import median  # noqa: E402
from gacprof.points import Point, Sample  # noqa: E402
from gacprof.sweeping.run import run_sweep  # noqa: E402
from gacprof.sweeping.store import read_samples  # noqa: E402
from gacprof.sweeping.suite import Timing, load_suite, parse_suite  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import spoiling  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="measures a CUDA device"),
]


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    opened = CudaDevice(0)
    opened.burn_in()
    return opened


def visited(device: CudaDevice, point: Point) -> Sample:
    return measure_visit(device, Visit(point, 0, False), (), Timing())


def linear(m: int, n: int, k: int, dtype: str = "float16", **flags: str) -> Point:
    return operators.point("linear", {"M": m, "N": n, "K": k}, dtype, flags)


def typical_us(device: CudaDevice, point: Point) -> float:
    sample = visited(device, point)
    assert sample.status != "failed", sample.reason
    return median(sample.timings_us)


# --- the machine -------------------------------------------------------------------------


def test_the_device_can_be_traced_and_read(device: CudaDevice) -> None:
    """Not needed for a sweep, but a first GPU run should know which of its eyes are shut."""
    assert device.why_not_traced == ""
    assert device.telemetry.why_not == ""
    assert device.telemetry.sm_clock_mhz()
    assert set(device.telemetry.reading()) == {"mem_clock_mhz", "temperature_c", "power_w"}


def test_the_device_says_what_it_is(device: CudaDevice) -> None:
    environment = device.environment
    assert environment.kind == "cuda" and environment.arch.startswith("sm")
    assert environment.facts["l2_bytes"] > 1 << 20 and environment.facts["sm_count"] > 0
    assert environment.stack["driver"] and environment.stack["cuda"]


def test_the_doctor_has_a_line_for_the_gpu_its_timer_and_attention() -> None:
    checks = {check.name: check for check in examine()}
    assert {"cuda:0", "kineto", "attention", "triton", "nvml"} <= checks.keys()
    print(*(f"{check.name}: {check.note}" for check in checks.values()), sep="\n")


# --- timing ------------------------------------------------------------------------------


def test_both_timers_agree_on_a_large_product(device: CudaDevice) -> None:
    if device.why_not_traced:
        pytest.skip(device.why_not_traced)
    point = linear(4096, 4096, 4096)
    by_events = typical_us(CudaDevice(0, "cuda-events"), point)
    by_trace = typical_us(device, point)
    assert by_trace / 1.5 < by_events < by_trace * 1.5


@pytest.mark.parametrize("timer", ["kineto", "cuda-events"])
def test_more_work_takes_longer(device: CudaDevice, timer: str) -> None:
    if timer == "kineto" and device.why_not_traced:
        pytest.skip(device.why_not_traced)
    opened = CudaDevice(0, timer)
    small, large = linear(1024, 1024, 1024), linear(4096, 4096, 4096)
    assert typical_us(opened, small) < typical_us(opened, large)


def test_weights_out_of_the_cache_take_longer_than_weights_in_it(device: CudaDevice) -> None:
    width = int((device.environment.facts["l2_bytes"] / 4 / 2) ** 0.5) // 64 * 64
    warm = typical_us(device, linear(1, width, width))
    cold = typical_us(device, linear(1, width, width, cache="cold"))
    assert cold > warm


def test_the_planted_cliff_is_seen(device: CudaDevice) -> None:
    """An odd K leaves rows at odd addresses: no 16-byte loads, no TMA."""
    aligned, odd = linear(1024, 4096, 4096), linear(1024, 4096, 4097)
    assert typical_us(device, odd) > typical_us(device, aligned)
    if not device.why_not_traced:
        assert visited(device, odd).kernels != visited(device, aligned).kernels


def test_tf32_is_faster_than_float32_and_does_not_linger(device: CudaDevice) -> None:
    if torch.cuda.get_device_capability()[0] < 8:
        pytest.skip("TF32 came with sm80")
    before = typical_us(device, linear(4096, 4096, 4096, "float32"))
    assert typical_us(device, linear(4096, 4096, 4096, "tf32")) < before
    visited(device, linear(64, 64, 64, "float32"))
    assert torch.backends.cuda.matmul.allow_tf32 is False


def test_kernels_are_named_and_known(device: CudaDevice) -> None:
    if device.why_not_traced:
        pytest.skip(device.why_not_traced)
    for k in (104, 106, 107, 4096):
        kernels = visited(device, linear(1024, 4096, k)).kernels
        assert any(parse(name).role in ("gemm", "gemv") for name in kernels), kernels


def test_a_call_of_several_kernels_is_named_whole(device: CudaDevice) -> None:
    if device.why_not_traced:
        pytest.skip(device.why_not_traced)
    dims = {"heads": 8, "q_len": 256, "head_dim": 107}
    sample = visited(device, operators.point("attention", dims, "float16"))
    assert sample.status != "failed" and len(sample.kernels) > 3, sample.kernels


def test_a_visit_leaves_no_memory_behind(device: CudaDevice) -> None:
    visited(device, linear(1024, 1024, 1024, cache="cold"))  # the flush buffer stays
    held = torch.cuda.memory_allocated()
    for n in range(1024, 1056):
        visited(device, linear(1024, n, 1024))
    assert torch.cuda.memory_allocated() == held


# --- what a device may refuse --------------------------------------------------------------

MAY_REFUSE = ("attention", "quantised", "experts")
"""By head_dim, alignment or architecture; a plain product, a batch or a stream has no reason."""


def one_of_each() -> list[Point]:
    """Of every operator, dtype and set of flags in suite ``full``, its first point."""
    if not torch.cuda.is_available():
        return []
    found: dict[object, Point] = {}
    for point in load_suite("full").points("cuda"):
        found.setdefault((point.operator, point.dtype, point.flags), point)
    return list(found.values())


@pytest.mark.parametrize("point", one_of_each(), ids=str)
def test_every_kind_of_point_is_measured_or_says_why_not(device: CudaDevice, point: Point) -> None:
    sample = visited(device, point)
    print(sample.status, sample.reason, *sample.kernels, sep="\n  ")
    assert sample.reason if sample.status == "failed" else min(sample.timings_us) > 0
    assert device.usable()
    if point.operator not in MAY_REFUSE:
        assert sample.status != "failed", sample.reason


@pytest.mark.parametrize("backend", ["flash", "efficient", "cudnn"])
def test_a_refused_backend_gives_its_own_reason(device: CudaDevice, backend: str) -> None:
    dims = {"heads": 4, "q_len": 128, "head_dim": 264}
    flags = {"backend": backend, "mask": "float"}
    sample = visited(device, operators.point("attention", dims, "float32", flags))
    if sample.status == "failed":
        assert sample.reason.startswith(f"the {backend} backend refuses: ")
        assert "runtime disabled" not in sample.reason
        assert "No available kernel" not in sample.reason
    else:
        assert backend == "efficient"  # it alone takes float32, masks and such a width


# --- our own kernels -----------------------------------------------------------------------


@pytest.mark.parametrize("specialise", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("k", [1, 16, 1000, 1024, 1031, 4096, 4100])
def test_streams_give_what_torch_gives(
    device: CudaDevice, k: int, dtype: str, specialise: bool
) -> None:
    pytest.importorskip("triton")
    for name in ("row_sum", "row_copy"):
        flags = {"specialise": specialise}
        point = operators.point(name, {"rows": 37, "K": k}, dtype, flags)
        work = operators.get(name).prepare(point, device.torch_device)
        source, out = work.operands[0], work()
        if name == "row_copy":
            assert torch.equal(out, source)
        else:
            wanted = source.double().sum(1).float()
            assert torch.allclose(out, wanted, atol=1e-2, rtol=1e-4)


def test_streams_reach_beyond_two_to_the_31_elements(device: CudaDevice) -> None:
    pytest.importorskip("triton")
    rows, k = 65_536, 33_001
    if torch.cuda.mem_get_info()[0] < 5 * rows * k:
        pytest.skip("needs 10 GiB of free memory")
    from gacprof.operators import stream_triton

    source = torch.zeros(rows, k, dtype=torch.float16, device=device.torch_device)
    source[-1] = 1
    sums = torch.empty(rows, dtype=torch.float32, device=device.torch_device)
    for specialise in (True, False):
        assert stream_triton.summer(specialise)(source, sums.zero_())[-2:].tolist() == [0, k]


# --- the worker, the sweep, the counters ------------------------------------------------------


def suite(values: list[int], **timing: object) -> object:
    sweep = {"operator": "linear", "axis": "K", "values": values, "dims": {"M": 64, "N": 64}}
    timing = {"passes": 2, "duplicates": 0, "edge_visits": 0} | timing
    return parse_suite({"name": "t", "timing": timing, "sweep": [sweep]}, "t")


def test_only_what_spoils_the_context_costs_a_worker(tmp_path: Path) -> None:
    values = [96, spoiling.ILLEGAL, spoiling.TOO_LARGE, spoiling.REFUSED, 104]
    with IsolatedDevice(spoiling.open_spoiling) as worker:
        summary = run_sweep(suite(values, passes=1), worker, tmp_path / "run")  # type: ignore[arg-type]
        assert worker.restarts == 1
    found = {s.point.dim["K"]: s for s in read_samples(tmp_path / "run")}
    assert summary.failed == 3
    assert {k for k, s in found.items() if s.status != "failed"} == {96, 104}
    assert "assert" in found[spoiling.ILLEGAL].reason
    assert "out of GPU memory" in found[spoiling.TOO_LARGE].reason
    assert found[spoiling.REFUSED].reason


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    folder, small = tmp_path / "run", suite([*range(96, 112)])

    def interrupt(done: int, total: int, point: Point) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with IsolatedDevice(OpenNamed("cuda:0")) as worker:
        with pytest.raises(KeyboardInterrupt):
            run_sweep(small, worker, folder, progress=interrupt)  # type: ignore[arg-type]
        assert len(read_samples(folder)) == 5
        summary = run_sweep(small, worker, folder, resume=True)  # type: ignore[arg-type]
    samples = read_samples(folder)
    assert (summary.visits, summary.failed, len(samples)) == (32, 0, 32)
    assert len({sample.timer for sample in samples}) == 1
    print(f"{len(samples) - 5} visits in {summary.seconds:.2f} s")


def test_counters_are_collected_or_it_is_told_what_to_do(tmp_path: Path) -> None:
    if find_ncu() is None:
        pytest.skip("Nsight Compute is not installed")
    points = [linear(256, 256, k, dtype) for k in (104, 107) for dtype in ("float16", "tf32")]
    evidence = collect(points, tmp_path / "edges.ncu-rep", timeout_s=300)
    print(evidence.problem)
    if evidence.counters:
        assert evidence.counters.keys() == {point.id for point in points}
    else:
        assert evidence.problem == GET_PERMISSION or "ncu_report" in evidence.problem


def test_a_gpu_that_is_not_there_is_told() -> None:
    with pytest.raises(MeasurementError, match="the last is cuda:"):
        CudaDevice(torch.cuda.device_count())
