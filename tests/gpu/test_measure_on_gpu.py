"""What only a GPU can show of measuring: run this first on a new machine.

``pytest tests/gpu -m gpu -v``. No test asserts how long something takes; those that compare
times compare what differs for a reason of the hardware.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from statistics import median  # noqa: E402

from gacprof import operators  # noqa: E402
from gacprof.core.errors import MeasurementError  # noqa: E402
from gacprof.core.points import Point  # noqa: E402
from gacprof.devices.cuda import CudaDevice, CudaSession  # noqa: E402
from gacprof.devices.device import Slot  # noqa: E402
from gacprof.devices.doctor import examine  # noqa: E402
from gacprof.devices.worker import IsolatedDevice  # noqa: E402
from gacprof.extras.evidence.collecting import GET_PERMISSION, collect, find_ncu  # noqa: E402
from gacprof.kernels import parse  # noqa: E402
from gacprof.sweeping.suite import load_suite  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import spoiling  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="measures a CUDA device"),
]

BLOCKS = 9


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    opened = CudaDevice(0)
    opened.burn_in()
    return opened


def linear(m: int, n: int, k: int, dtype: str = "float16", **flags: str) -> Point:
    return operators.point("linear", {"M": m, "N": n, "K": k}, dtype, flags)


def session(device: CudaDevice, *points: Point) -> CudaSession:
    made = device.session([Slot(point) for point in points])
    assert isinstance(made, CudaSession)
    return made


def medians(made: CudaSession, blocks: int = BLOCKS) -> dict[int, float]:
    """Microseconds by slot, over blocks in alternating order."""
    order = list(made._captured)
    found: dict[int, list[float]] = {place: [] for place in order}
    for number in range(blocks):
        for timed in made.block(order if number % 2 else order[::-1]).calls:
            found[timed.slot].append(timed.us)
    return {place: median(times) for place, times in found.items()}


def typical_us(device: CudaDevice, *points: Point) -> Sequence[float]:
    made = session(device, *points)
    assert not made.failed, made.failed
    try:
        return list(medians(made).values())
    finally:
        made.close()


# --- the machine -------------------------------------------------------------------------


def test_the_device_can_be_traced_captured_and_read(device: CudaDevice) -> None:
    """Not needed for a sweep, but a first GPU run should know which of its eyes are shut."""
    made = session(device, linear(64, 64, 64))
    assert made.kernels() and not made.remarks()
    assert device.telemetry.why_not == ""
    assert device.telemetry.sm_clock_mhz() and device.telemetry.slowed_ns()
    assert set(device.telemetry.reading()) == {"mem_clock_mhz", "temperature_c", "power_w"}
    print(device.telemetry.fixed(), device.telemetry.slowed_ns())


def test_the_device_says_what_it_is(device: CudaDevice) -> None:
    environment = device.environment
    assert environment.kind == "cuda" and environment.arch.startswith("sm")
    assert environment.facts["l2_bytes"] > 1 << 20 and environment.facts["sm_count"] > 0
    assert environment.stack["driver"] and environment.stack["cuda"]
    assert environment.stack["cupti"] and environment.stack["cublaslt"]
    print(dict(environment.facts), dict(environment.stack))


def test_the_doctor_has_a_line_for_the_gpu_and_its_timer() -> None:
    checks = {check.name: check for check in examine()}
    assert {"cuda:0", "cuda-graph", "kineto", "triton", "nvml"} <= checks.keys()
    print(*(f"{check.name}: {check.note}" for check in checks.values()), sep="\n")


# --- timing ------------------------------------------------------------------------------


def test_graphs_events_and_traces_agree_on_a_large_product(device: CudaDevice) -> None:
    point = linear(4096, 4096, 4096)
    made = session(device, point)
    (in_graph,) = medians(made).values()
    (by_events,) = typical_us(CudaDevice(0, "cuda-events"), point)
    assert in_graph / 1.5 < by_events < in_graph * 1.5
    print(in_graph, by_events)


def test_events_inside_a_graph_and_around_it_agree(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = linear(1024, 1024, 1024)
    (inside,) = typical_us(device, point)
    monkeypatch.setattr("gacprof.devices.cuda_graph.external_events", lambda: None)
    (around,) = typical_us(CudaDevice(0), point)  # what was captured before is inside
    assert inside / 1.2 < around < inside * 1.2
    print(inside, around)


def test_weights_out_of_the_cache_take_longer_than_weights_in_it(device: CudaDevice) -> None:
    width = int((device.environment.facts["l2_bytes"] / 4 / 2) ** 0.5) // 64 * 64
    warm, cold = typical_us(device, linear(1, width, width), linear(1, width, width, cache="cold"))
    assert cold > warm


def test_cold_weights_are_cold_whatever_ran_before(device: CudaDevice) -> None:
    """Small weights too, of which a graph cannot read twice the cache."""
    small = linear(1, 512, 512, cache="cold")
    made = session(device, small, small, linear(1, 512, 512))
    first, second, warm = medians(made, 20).values()
    assert first / 1.1 < second < first * 1.1 and warm < first
    print(first, second, warm)


def test_replicates_agree_within_ten_per_cent(device: CudaDevice) -> None:
    point = linear(512, 1024, 1024)
    made = device.session([Slot(point), Slot(point, replicate=True)])
    assert isinstance(made, CudaSession)
    one, other = medians(made, 20).values()
    assert one / 1.1 < other < one * 1.1
    print(one, other)


def test_the_planted_cliff_is_seen(device: CudaDevice) -> None:
    """An odd K leaves rows at odd addresses: no 16-byte loads, no TMA."""
    made = session(device, linear(1024, 4096, 4096), linear(1024, 4096, 4097))
    aligned, odd = medians(made).values()
    assert odd > aligned
    if names := made.kernels():
        assert names[0] != names[1]


def test_tf32_is_faster_than_float32_and_does_not_linger(device: CudaDevice) -> None:
    if torch.cuda.get_device_capability()[0] < 8:
        pytest.skip("TF32 came with sm80")
    plain, fast = typical_us(
        device, linear(4096, 4096, 4096, "float32"), linear(4096, 4096, 4096, "tf32")
    )
    assert fast < plain
    assert torch.backends.cuda.matmul.allow_tf32 is False


def test_kernels_are_named_and_known(device: CudaDevice) -> None:
    made = session(device, *(linear(1024, 1024, k) for k in (104, 106, 107, 4096)))
    if device.tracer.why_not:
        pytest.skip(device.tracer.why_not)
    for names in made.kernels().values():
        assert any(parse(name).role in ("gemm", "gemv") for name in names), names


def test_many_sessions_are_all_traced(device: CudaDevice) -> None:
    """pytorch/pytorch#192021: the more traces in a process, the more events are lost."""
    if device.tracer.why_not:
        pytest.skip(device.tracer.why_not)
    for k in range(64, 94):
        made = session(device, linear(64, 64, k))
        assert len(made.kernels()) == 1, (k, device.tracer.why_not)
        made.close()


def test_a_call_of_several_kernels_is_named_whole(device: CudaDevice) -> None:
    dims = {"heads": 8, "q_len": 256, "head_dim": 107}
    made = session(device, operators.point("attention", dims, "float16"))
    if device.tracer.why_not:
        pytest.skip(device.tracer.why_not)
    assert not made.failed and len(made.kernels()[0]) > 3, made.kernels()


def test_compiled_products_are_captured(device: CudaDevice) -> None:
    pytest.importorskip("triton")
    flags = [{"compiled": how} for how in ("plain", "padded")]
    made = session(device, *(linear(64, 107, 107, **flag) for flag in flags))
    if not made.failed:
        assert not made.remarks() and len(medians(made)) == 2


def test_a_session_leaves_no_memory_behind(device: CudaDevice) -> None:
    points = [linear(1024, n, 1024) for n in range(1024, 1056)]
    session(device, *points, linear(1024, 1055, 1024, cache="cold")).close()  # the arenas stay
    held = torch.cuda.memory_allocated()
    for _ in range(3):
        session(device, *points).close()
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
    made = session(device, point)
    print(made.failed, made.remarks(), made.kernels().get(0))
    assert device.usable()
    if made.failed:
        assert made.failed[0] and point.operator in MAY_REFUSE, made.failed
    else:
        assert medians(made, 2)[0] > 0
        assert "timed by events" not in made.remarks().get(0, "")
    made.close()


@pytest.mark.parametrize("backend", ["flash", "efficient", "cudnn"])
def test_a_refused_backend_gives_its_own_reason(device: CudaDevice, backend: str) -> None:
    dims = {"heads": 4, "q_len": 128, "head_dim": 264}
    flags = {"backend": backend, "mask": "float"}
    made = session(device, operators.point("attention", dims, "float32", flags))
    if made.failed:
        assert made.failed[0].startswith(f"the {backend} backend refuses: ")
        assert "runtime disabled" not in made.failed[0]
        assert "No available kernel" not in made.failed[0]
    else:
        assert backend == "efficient"  # it alone takes float32, masks and such a width


def test_a_call_that_waits_is_timed_by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(operators.OPERATORS, "linear", spoiling.Spoiling())
    device = CudaDevice(0)
    made = session(device, linear(64, 64, 96), linear(64, 64, spoiling.WAITING))
    assert list(made.remarks()) == [1] and len(medians(made, 2)) == 2


def test_a_capture_that_fails_leaves_the_process_working(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before torch 2.12 it leaves the allocator in the capture (pytorch/pytorch#180395)."""
    monkeypatch.setitem(operators.OPERATORS, "linear", spoiling.Spoiling())
    monkeypatch.setattr("gacprof.devices.cuda_graph.waits_for_device", lambda call: "")
    made = session(device, linear(64, 64, spoiling.WAITING), linear(64, 64, 96))
    assert list(made.remarks()) == [0] and len(medians(made, 2)) == 2
    made.close()
    torch.cuda.empty_cache()
    assert device.usable() and torch.randn(8, device="cuda").isfinite().all()
    assert not session(device, linear(64, 64, 97)).remarks()


# --- our own kernels -----------------------------------------------------------------------


@pytest.mark.parametrize("specialise", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("k", [1, 1000, 1024, 1031, 4100])
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
        assert stream_triton.launching("row_sum", specialise)(source, sums.zero_())[
            -2:
        ].tolist() == [0, k]


# --- the worker, the counters ------------------------------------------------------------------


def test_only_what_spoils_the_context_costs_a_worker() -> None:
    sizes = [96, spoiling.TOO_LARGE, spoiling.REFUSED, spoiling.ILLEGAL, 105]
    slots = [Slot(linear(64, 64, k)) for k in sizes]
    with IsolatedDevice(spoiling.open_spoiling) as worker:
        made = worker.session(slots)
        failed = {sizes[place]: why for place, why in made.failed.items()}
        assert "out of GPU memory" in failed[spoiling.TOO_LARGE]
        assert failed[spoiling.REFUSED]
        assert "assert" in failed[spoiling.ILLEGAL] and len(failed) == 3
        with pytest.raises(MeasurementError):
            made.block([0])
        made = worker.session([slots[0], slots[-1]])
        assert worker.generation == 1
        assert not made.failed and len(made.block([1, 0]).calls) == 2


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
