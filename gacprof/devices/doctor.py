"""What this machine can measure, component by component, and why the rest cannot.

Whether a GPU can be traced and its calls captured is found out in a process of its own: tracing
attaches CUPTI to the process that does it, and Kineto leaves it attached (unless the environment
says ``TEARDOWN_CUPTI=1``). It would change the timings of whoever only asks.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from gacprof.core import programs
from gacprof.core.errors import MeasurementError, first_line
from gacprof.core.files import Record
from gacprof.devices.cuda import CudaDevice
from gacprof.devices.cuda_graph import GraphRun, GraphWork
from gacprof.devices.environment import (
    cpu_environment,
    cuda_environment,
    cudnn_version,
    find_ncu,
    installed,
)
from gacprof.devices.nvml import Telemetry
from gacprof.devices.threads import goes_first

CALLS = 10
LONGEST_S = 120.0
"""For importing torch from a cold disk, opening the device and tracing a little."""


@dataclass(frozen=True)
class Component(Record):
    """``available`` is None where the question does not arise here."""

    name: str
    available: bool | None
    version: str | None
    note: str


def examine() -> list[Component]:
    """Every component that a measurement may need. Never raises for an absent one."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [
        *_processor(),
        Component("torch", True, torch.__version__, _torch_note(gpus)),
        *_gpus(gpus),
        *_timer(gpus),
        *_libraries(gpus),
        _ncu(),
        _nvml(gpus),
    ]


def _processor() -> Iterator[Component]:
    cpu = cpu_environment()
    first = "goes before other programs" if goes_first() else "takes turns with other programs"
    note = f"{cpu.facts['threads']} threads, {cpu.arch}: can be swept with --device cpu, {first}"
    yield Component("cpu", True, cpu.name, note)
    for name in ("mkl", "onednn"):
        if version := cpu.stack[name]:
            yield Component(name, True, version, "serves matrix products on the CPU")


def _torch_note(gpus: int) -> str:
    import torch

    if gpus:
        return f"built for CUDA {torch.version.cuda}"
    if torch.version.cuda:
        return f"built for CUDA {torch.version.cuda}, but it finds no usable GPU"
    return "a CPU build: no GPU can be measured with it, whatever the machine has"


def _gpus(count: int) -> Iterator[Component]:
    if not count:
        why = "no CUDA device: GPU suites cannot run; maps of GPUs can still be used"
        yield Component("gpu", False, None, why)
    for index in range(count):
        try:
            yield _gpu(index)
        except RuntimeError as error:  # a GPU that is broken, or another process's alone
            yield Component(f"cuda:{index}", False, None, f"cannot be opened: {first_line(error)}")


def _gpu(index: int) -> Component:
    telemetry = Telemetry(index)
    gpu = cuda_environment(index, telemetry.driver())
    memory = gpu.facts["memory_bytes"] / 2**30
    built = _built_for(index)
    note = "can be swept" if built else f"this torch has no kernels for {gpu.arch}"
    note = f"{gpu.name}, {gpu.arch}, {memory:.0f} GiB: {note}"
    return Component(f"cuda:{index}", built, gpu.stack["driver"] or "driver unknown", note)


def _built_for(index: int) -> bool:
    """Whether torch has code for the chip: of its generation and no newer, or to be compiled.

    An empty list means that torch does not say.
    """
    import torch

    major, minor = torch.cuda.get_device_capability(index)
    listed = [re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", a) for a in torch.cuda.get_arch_list()]
    archs = [(m[1], int(m[2]), int(m[3])) for m in listed if m]
    return not archs or any(
        (kind == "sm" and at == major and sub <= minor)
        or (kind == "compute" and (at, sub) <= (major, minor))
        for kind, at, sub in archs
    )


def _timer(gpus: int) -> Iterator[Component]:
    if not gpus:
        return
    tracing = try_tracing(0)
    if lacking := tracing.no_graph:
        note = f"calls are timed by events around their launches: {lacking}"
    else:
        note = "calls are timed inside a graph, where the host launches nothing"
    yield Component("cuda-graph", not lacking, None, note)
    if lacking := tracing.why_not:
        note = f"kernels have no names: {lacking}"
    else:
        note = "kernels have names"
    yield Component("kineto", not lacking, None, note)


def _libraries(gpus: int) -> Iterator[Component]:
    import torch

    cuda = torch.version.cuda
    yield Component("cuda runtime", bool(cuda), cuda, "comes with torch")
    cudnn = cudnn_version()
    yield Component("cudnn", bool(cudnn), cudnn, "an SDPA backend on sm90 up")
    cublas = installed("cublas")
    note = "GEMM kernels and their heuristics"
    if cublas is None and gpus:
        note = "not from a wheel: the version that torch was built with is used"
    yield Component("cublas(Lt)", bool(cublas) or bool(gpus), cublas, note)
    triton = installed("triton")
    note = "the operators row_sum and row_copy"
    if not triton:
        note = f"pip install gacprof[triton] for {note}"
    lacking = _lacks_to_compile() if triton and gpus else ""
    if lacking:
        note = f"its launchers cannot be compiled: {lacking}"
    yield Component("triton", bool(triton) and not lacking, triton, note)


def _lacks_to_compile() -> str:
    """What Triton's first launch on a machine will miss (triton/runtime/build.py)."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "install gcc or clang, or name a C compiler in CC"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "install the headers of this Python (python3-dev)"
    return ""


def _ncu() -> Component:
    path = find_ncu()
    if path is None:
        return Component(
            "ncu", False, None, "no hardware counters: install Nsight Compute and put ncu on PATH"
        )
    done = programs.run([path, "--version"], timeout_s=20)
    if done.failure:
        return Component("ncu", False, None, f"{path} {done.failure}")
    version = done.lines[-1] if done.lines else None
    return Component("ncu", True, version, "needs permission for GPU counters to collect any")


def _nvml(gpus: int) -> Component:
    version = installed("nvidia-ml-py")
    if not gpus:
        return Component("nvml", False, version, "no NVIDIA driver: no clocks or throttle reasons")
    telemetry = Telemetry(0)
    if telemetry.driver() is None:
        return Component("nvml", False, version, f"no clocks or throttling: {telemetry.why_not}")
    return Component("nvml", True, version, "clocks and throttle reasons are recorded")


@dataclass(frozen=True)
class Tracing:
    """Why calls cannot be traced, and why not timed in CUDA graphs; empty where they can."""

    why_not: str
    no_graph: str


def try_tracing(index: int) -> Tracing:
    """About the CUDA device of that index. Never raises; a process that dies is an answer too."""
    command = [sys.executable, "-m", "gacprof.devices.doctor", str(index)]
    done = programs.run(command, LONGEST_S)
    try:
        return Tracing(**json.loads(done.output.strip().splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        return _nothing(f"the process that tried {done.failure or 'gave no answer'}")


def _nothing(why_not: str) -> Tracing:
    return Tracing(why_not, why_not)


def _try(index: int) -> Tracing:
    import torch

    try:
        device = CudaDevice(index)
        with device.active():
            x = torch.ones(1 << 16, device=device.torch_device)
            device.tracer.typical_calls([lambda: x + x] * CALLS)
            return Tracing(device.tracer.why_not, _no_graph(device))
    except (RuntimeError, MeasurementError) as error:
        return _nothing(first_line(error))


def _no_graph(device: CudaDevice) -> str:
    """Why small calls cannot be timed in a CUDA graph; empty if they can."""
    import torch

    x = torch.ones(1 << 16, device=device.torch_device)
    try:
        work = GraphWork((lambda: x + x,) * CALLS, before=lambda: x + x)
        run = GraphRun(work, device.graphs)
        run.launch()
        device.synchronise()
        return "" if run.total_us() > 0 else "its events tell no time"
    except (RuntimeError, MeasurementError) as error:
        return first_line(error)


if __name__ == "__main__":
    print(json.dumps(asdict(_try(int(sys.argv[1])))))
