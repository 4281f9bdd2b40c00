"""A device and its software stack, so that a map can say what it holds for."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import gacprof
from gacprof.core.points import Environment
from gacprof.gpus.architectures import architecture_of

VIRTUAL = "GACPROF_VIRTUAL"
"""Environment variable that names the virtual GPU whose libraries this process has loaded."""

STEERING = ("CUBLAS", "NVIDIA_TF32_OVERRIDE", "TORCH_CUDNN", "TORCH_ALLOW_TF32", "DISABLE_ADDMM")
"""Beginnings of the environment variables by which cuBLAS and PyTorch choose another kernel."""


def read_environment(device: str) -> Environment:
    """The device called ``cpu``, ``cuda`` or ``cuda:1`` and the versions that drive it."""
    if device == "cpu":
        environment = _cpu_environment()
    else:
        environment = _cuda_environment(torch.device(device).index or 0)
    common = {
        "gacprof": gacprof.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    versions = {name: version for name, version in environment.stack.items() if version}
    return replace(environment, stack=common | versions)


def _cpu_environment() -> Environment:
    facts = {
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": memory_bytes(),
        "native_bfloat16": int(native_bfloat16()),
    }
    build = torch.__config__.show()
    stack = {
        "mkl": _first_match(r"Math Kernel Library Version ([\w.-]+)", build),
        "onednn": _first_match(r"Intel\(R\) MKL-DNN v([\w.]+)", build),
    }
    arch = f"{platform.machine()}-{torch.backends.cpu.get_cpu_capability().lower()}"
    return Environment("cpu", cpu_name(), arch, facts, stack)


def _cuda_environment(index: int) -> Environment:
    properties = torch.cuda.get_device_properties(index)
    facts: dict[str, str | int | float] = {
        "sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
    }
    with suppress(Exception):  # NVML's absence takes many forms and is never fatal
        import pynvml

        pynvml.nvmlInit()
        facts |= nvml_facts(pynvml, _handle_of(pynvml, index))
    facts |= {name: text for name, text in os.environ.items() if name.startswith(STEERING)}
    stack = {
        "driver": driver_version(),
        "cuda": torch.version.cuda or "",
        "cudnn": str(torch.backends.cudnn.version() or ""),
        "cublaslt": _loaded_version("libcublasLt", "cublasLtGetVersion"),
        "triton": _package_version("triton"),
    }
    kind = "virtual" if os.environ.get(VIRTUAL) else "cuda"
    arch = architecture_of(properties).name
    return Environment(kind, properties.name, arch, facts, stack)


def native_bfloat16() -> bool:
    """Tell whether the CPU multiplies bfloat16 itself, by AMX or AVX512-BF16."""
    return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())


def cpu_name() -> str:
    """The CPU's model name; on Linux with family and model, since a name alone may say little."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    name = _first_match(r"model name\s*:\s*(.+)", text) or platform.machine()
    numbers = re.findall(r"(?m)^(?:cpu family|model)\s*:\s*(\d+)", text)
    return f"{name} (family {numbers[0]} model {numbers[1]})" if len(numbers) > 1 else name


def memory_bytes() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _first_match(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1].strip() if match else ""


def _package_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _loaded_version(library: str, function: str) -> str:
    """The result of ``size_t function(void)`` of a library that this process has loaded, as
    ``130100``; empty where it is not loaded."""
    try:
        loaded = _first_match(rf"(/\S*{library}\.so\S*)", Path("/proc/self/maps").read_text())
        version = getattr(ctypes.CDLL(loaded), function)
    except (OSError, AttributeError):
        return ""
    version.restype = ctypes.c_size_t
    return str(version())


POLICIES = (74, 75)
"""Fields of nvmlDeviceGetFieldValues (nvml.h): nanoseconds for which a GPU ran below its clock, by
NVML_PERF_POLICY_POWER and _THERMAL."""
FIRST_REASON = {(580, 82): 269, (575, 0): 251}
"""First of three fields, NVML_FI_DEV_CLOCKS_EVENT_REASON_* (software thermal, hardware thermal,
power brake), from that driver on: renumbered between nvidia-ml-py 13.580.65 and 13.580.82. To other
drivers the number is a setting of power smoothing."""
THROTTLED_SHARE = 0.02
"""Share of a block's time by which a counter has grown in a throttled block."""


def counter_fields(driver: str) -> list[int]:
    """The fields that count throttled nanoseconds in a driver of that version (``580.95.05``)."""
    numbers = tuple(int(part) for part in driver.split(".")[:2] if part.isdigit())
    for since, first in FIRST_REASON.items():
        if numbers >= since:
            return [*POLICIES, first, first + 1, first + 2]
    return list(POLICIES)


def nvml_facts(nvml: Any, handle: Any) -> dict[str, int]:
    """Limits and modes that decide how fast a GPU runs, and the other processes that compute on it;
    what NVML does not say is missing. In a container it may count this process among the others."""
    readers: dict[str, Callable[[], int]] = {
        "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) // 1000,
        "max_sm_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "ecc": lambda: nvml.nvmlDeviceGetEccMode(handle)[0],
        "mig": lambda: nvml.nvmlDeviceGetMigMode(handle)[0],
        "persistence": lambda: nvml.nvmlDeviceGetPersistenceMode(handle),
        "other_processes": lambda: sum(
            process.pid != os.getpid()
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        ),
    }
    facts = {}
    for name, read in readers.items():
        with suppress(nvml.NVMLError):
            facts[name] = int(read())
    return facts


def driver_version() -> str:
    """The NVIDIA driver's version; empty where NVML is not to be had."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # its absence takes many forms and is never fatal
        return ""


class Throttling:
    """Counters of one CUDA device; they stand still where NVML is not to be had."""

    def __init__(self, index: int) -> None:
        self._fields = counter_fields(driver_version())
        self._nvml: Any = None
        with suppress(Exception):  # as above
            import pynvml

            self._handle = _handle_of(pynvml, index)
            pynvml.nvmlDeviceGetFieldValues(self._handle, self._fields)
            self._nvml = pynvml

    def slowed_ns(self) -> dict[int, int]:
        """Nanoseconds for which each cause has slowed the device, since the driver was loaded."""
        if self._nvml is None:
            return {}
        try:
            values = self._nvml.nvmlDeviceGetFieldValues(self._handle, self._fields)
        except self._nvml.NVMLError:  # once in a while: no reason to lose a block
            return {}
        return {value.fieldId: int(value.value.ullVal) for value in values if not value.nvmlReturn}

    def slowed_since(self, before: dict[int, int], seconds: float) -> bool:
        """Tell whether a cause has slowed the device for a good part of these seconds."""
        limit_ns = THROTTLED_SHARE * seconds * 1e9
        return any(ns - before.get(field, ns) > limit_ns for field, ns in self.slowed_ns().items())


def _handle_of(pynvml: Any, index: int) -> Any:
    """NVML's handle of a CUDA device. NVML counts all GPUs, CUDA the visible ones: the UUID joins
    them. torch gives it without the prefix that marks a GPU or a MIG slice of one."""
    uuid = str(torch.cuda.get_device_properties(index).uuid)
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
    except pynvml.NVMLError:
        return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}".encode())
