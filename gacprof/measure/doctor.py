"""What this machine can measure, component by component, and why the rest cannot."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from gacprof.measure.environment import cpu_environment, cuda_environment, installed
from gacprof.measure.telemetry import Telemetry


@dataclass(frozen=True)
class Check:
    """One component. ``available`` is None where the question does not arise here."""

    name: str
    available: bool | None
    version: str | None
    note: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def examine() -> list[Check]:
    """Every component that a measurement may need. Never raises for an absent one."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [
        *_processor(),
        Check("torch", True, torch.__version__, _torch_note(gpus)),
        *_gpus(gpus),
        *_libraries(gpus),
        _ncu(),
        _nvml(gpus),
    ]


def _processor() -> Iterator[Check]:
    cpu = cpu_environment()
    cores = f"{cpu.facts['threads']} threads, {cpu.arch}: can be swept with --device cpu"
    yield Check("cpu", True, cpu.name, cores)
    libraries = {name: cpu.stack[name] for name in ("mkl", "onednn") if cpu.stack[name]}
    for name, version in libraries.items():
        yield Check(name, True, version, "serves matrix products on the CPU")


def _torch_note(gpus: int) -> str:
    import torch

    if gpus:
        return f"built for CUDA {torch.version.cuda}"
    if torch.version.cuda:
        return f"built for CUDA {torch.version.cuda}, but it finds no usable GPU"
    return "a CPU build: no GPU can be measured with it, whatever the machine has"


def _gpus(count: int) -> Iterator[Check]:
    if not count:
        why = "no CUDA device: GPU suites cannot run; maps of GPUs can still be used"
        yield Check("gpu", False, None, why)
    for index in range(count):
        telemetry = Telemetry(index)
        gpu = cuda_environment(index, telemetry.driver())
        memory = gpu.facts["memory_bytes"] / 2**30
        note = f"{gpu.name}, {gpu.arch}, {memory:.0f} GiB: can be swept"
        yield Check(f"cuda:{index}", True, gpu.stack["driver"] or "driver unknown", note)


def _libraries(gpus: int) -> Iterator[Check]:
    import torch

    cuda = torch.version.cuda
    yield Check("cuda runtime", bool(cuda), cuda, "comes with torch")
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    yield Check("cudnn", bool(cudnn), str(cudnn) if cudnn else None, "an SDPA backend on sm90 up")
    cublas = installed("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12")
    if cublas is None and gpus:
        note = "not from a wheel: the version that torch was built with is used"
    else:
        note = "GEMM kernels and their heuristics"
    yield Check("cublas(Lt)", bool(cublas) or bool(gpus), cublas, note)
    triton = installed("triton")
    note = "our load-width probes" if triton else "pip install gacprof[triton] for our own probes"
    yield Check("triton", bool(triton), triton, note)


def _ncu() -> Check:
    path = shutil.which("ncu")
    if path is None:
        return Check(
            "ncu", False, None, "no hardware counters: install Nsight Compute and put ncu on PATH"
        )
    try:
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
        version = told.stdout.strip().splitlines()[-1] if told.stdout.strip() else None
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("ncu", False, None, f"{path} does not run: {error}")
    return Check("ncu", True, version, "needs permission for GPU counters to collect any")


def _nvml(gpus: int) -> Check:
    version = installed("nvidia-ml-py")
    if not gpus:
        return Check("nvml", False, version, "no NVIDIA driver: no clocks or throttle reasons")
    telemetry = Telemetry(0)
    if telemetry.driver() is None:
        return Check("nvml", False, version, f"no clocks or throttling: {telemetry.why_not}")
    return Check("nvml", True, version, "clocks and throttle reasons are recorded")
