"""A GPU as a device: how it is opened, what it says of itself, when it is of no more use."""

import pytest
import torch
from simulated_gpu import opened
from suites import over, suite_of

from gacprof import operators
from gacprof.core.errors import MeasurementError
from gacprof.devices import doctor
from gacprof.devices.cuda import CudaDevice
from gacprof.devices.environment import loaded, loaded_version
from gacprof.sweeping import read_samples, run_sweep


def test_opening_a_gpu_runs_and_traces_nothing(gpu):
    timers = {timer: opened(timer).timer for timer in ("auto", "cuda-events")}
    assert timers == {"auto": "cuda-graph", "cuda-events": "cuda-events"}
    assert (gpu.log, gpu.traces) == ([], 0)


def test_timers_and_gpus_that_are_not_there_are_refused(gpu):
    with pytest.raises(MeasurementError, match="unknown timer 'sundial'"):
        CudaDevice(0, "sundial")
    with pytest.raises(MeasurementError, match="no cuda:3 here; the last is cuda:0"):
        CudaDevice(3)


def test_the_environment_names_what_steers_the_libraries(gpu, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    environment = opened().environment
    assert (environment.kind, environment.name, environment.arch) == ("cuda", "Simulated", "sm90")
    assert environment.facts["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert {"power_limit_w", "l2_bytes"} <= environment.facts.keys()
    assert {"cupti", "cublaslt", "cudnn"} <= environment.stack.keys()


def test_a_loaded_library_tells_its_version():
    assert loaded("libtorch_cpu").name == "libtorch_cpu.so"
    assert loaded("libno_such_thing") is None
    assert loaded_version("libno_such_thing", "version") is None
    assert loaded_version("libtorch_cpu", "no_such_function") is None


OUT_OF_MEMORY = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. …")


@pytest.mark.parametrize(
    ("error", "usable"),
    [
        (None, True),
        (OUT_OF_MEMORY, True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
)
def test_only_a_lost_context_is_unusable(gpu, monkeypatch, error, usable):
    def synchronise():
        if error:
            raise error

    device = opened()
    monkeypatch.setattr(device, "synchronise", synchronise)
    assert device.usable() is usable


@pytest.mark.parametrize("dtype", ["float32", "tf32", "float16"])
def test_tf32_is_on_for_tf32_points_and_off_for_all_others(dtype):
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = dtype != "tf32"
        operators.set_precision(operators.point("linear", {"M": 1, "N": 1, "K": 1}, dtype))
        assert torch.backends.cuda.matmul.allow_tf32 is (dtype == "tf32")
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize(
    ("listed", "chip", "built"),
    [([], (9, 0), True), (["sm_80", "sm_86"], (8, 6), True), (["sm_80"], (8, 6), True),
     (["sm_86"], (8, 0), False), (["sm_80"], (9, 0), False), (["sm_90a"], (9, 0), True),
     (["sm_86", "compute_86"], (9, 0), True), (["compute_90"], (8, 9), False)],
)  # fmt: skip
def test_a_chip_is_swept_where_torch_has_kernels_for_it(monkeypatch, listed, chip, built):
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: listed)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: chip)
    assert doctor._built_for(0) is built


def trying(monkeypatch):
    """What the process that tries would answer."""
    monkeypatch.setattr("gacprof.devices.doctor.CudaDevice", lambda index: opened())
    return doctor._try(0)


def test_the_doctor_tries_a_trace_and_a_graph_and_tells_why_there_is_none(gpu, monkeypatch):
    message = trying(monkeypatch)
    assert (message.why_not, message.no_graph) == ("", "")
    gpu.loses = lambda events, traces: []
    gpu.refuses_capture = lambda name, operands: RuntimeError("not permitted")
    message = trying(monkeypatch)
    assert "gave no device events" in message.why_not and message.no_graph == "not permitted"
    monkeypatch.setattr(doctor, "try_tracing", lambda index: message)
    graph, kineto = doctor._timer(1)
    assert (graph.name, graph.available) == ("cuda-graph", False)
    assert graph.note == "calls are timed by events around their launches: not permitted"
    assert (kineto.available, kineto.note[:22]) == (False, "kernels have no names:")


def test_a_sweep_keeps_what_the_gpu_does(gpu, monkeypatch, tmp_path):
    axis = over("K", range(96, 113), {"M": 16, "N": 64}, dtype="float16")
    gpu.cost = lambda name, operands: 8_000 if operands[0].shape[-1] % 8 else 5_000
    device = opened()
    monkeypatch.setattr(device, "burn_in", lambda: None)
    summary = run_sweep(suite_of(axis, processes=1), device, tmp_path / "run")
    samples = {sample.point.dim["K"]: sample for sample in read_samples(tmp_path / "run")}
    assert (summary.failed, summary.points, len(samples)) == (0, 17, 17)
    for k, sample in samples.items():
        assert (sample.status, sample.timer) == ("ok", "cuda-graph")
        assert set(sample.kernels) == {"linear"}
        assert all(abs(us - (8.5 if k % 8 else 5.5)) < 0.1 for us in sample.timings_us)
