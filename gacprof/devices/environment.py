"""Describe a device and its software stack, so that a map can say what it holds for."""

import ctypes
import os
import platform
import re
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import torch

import gacprof
from gacprof.core.points import Environment
from gacprof.devices.nvml import driver_version, handle_of, nvml, nvml_facts

VIRTUAL = "GACPROF_VIRTUAL"  # environment variable: the virtual GPU whose libraries are loaded

# Beginnings of the environment variables by which cuBLAS and PyTorch choose another kernel.
STEERING = ("CUBLAS", "NVIDIA_TF32_OVERRIDE", "TORCH_CUDNN", "TORCH_ALLOW_TF32", "DISABLE_ADDMM")


def read_environment(device: str) -> Environment:
    """Return the device called ``cpu``, ``cuda`` or ``cuda:1`` and the versions that drive it."""
    if device == "cpu":
        environment = _cpu_environment()
    else:
        environment = _cuda_environment(torch.device(device).index or 0)
    stack = {"gacprof": gacprof.__version__, "python": platform.python_version()}
    stack |= {"torch": torch.__version__, **environment.stack}
    return replace(environment, stack={name: version for name, version in stack.items() if version})


def _cpu_environment() -> Environment:
    facts = {
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
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
        facts |= nvml_facts(nvml(), handle_of(index))
    facts |= {name: text for name, text in os.environ.items() if name.startswith(STEERING)}
    stack = {
        "driver": driver_version(),
        "cuda": torch.version.cuda or "",
        "cudnn": str(torch.backends.cudnn.version() or ""),
        "cublaslt": _loaded_version("libcublasLt", "cublasLtGetVersion"),
    }
    with suppress(metadata.PackageNotFoundError):
        stack["triton"] = metadata.version("triton")
    kind = "virtual" if os.environ.get(VIRTUAL) else "cuda"
    arch = f"sm{properties.major}{properties.minor}"
    return Environment(kind, properties.name, arch, facts, stack)


def cpu_name() -> str:
    text = Path("/proc/cpuinfo").read_text()
    name = _first_match(r"model name\s*:\s*(.+)", text) or platform.machine()
    # A name alone may say little.
    numbers = re.findall(r"(?m)^(?:cpu family|model)\s*:\s*(\d+)", text)
    return f"{name} (family {numbers[0]} model {numbers[1]})" if len(numbers) > 1 else name


def _first_match(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1].strip() if match else ""


def _loaded_version(library: str, function: str) -> str:
    """Return the result of ``size_t function(void)`` of a loaded library, such as ``130100``."""
    try:
        loaded = _first_match(rf"(/\S*{library}\.so\S*)", Path("/proc/self/maps").read_text())
        version = getattr(ctypes.CDLL(loaded), function)
    except (OSError, AttributeError):
        return ""
    version.restype = ctypes.c_size_t
    return str(version())
