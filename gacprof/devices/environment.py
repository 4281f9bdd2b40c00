"""Which device and which software stack this is, so that a map can say what it holds for."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from gacprof.core.points import Environment
from gacprof.devices.threads import cores_allowed

PACKAGES = {
    "cublas": ("nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cublas-cu13"),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "cupti": ("nvidia-cuda-cupti", "nvidia-cuda-cupti-cu13", "nvidia-cuda-cupti-cu12"),
}

STEERING = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "DISABLE_ADDMM_CUDA_LT",
)
"""Environment variables by which cuBLAS and PyTorch choose another kernel; facts where set."""

NCU_PLACES = ("usr/local/cuda/bin/ncu", "opt/nvidia/nsight-compute/*/ncu")
"""Where the CUDA toolkit and NVIDIA's package ``nsight-compute`` put it; below the root."""


def cpu_environment() -> Environment:
    """This machine's CPU as torch uses it."""
    import torch

    facts = {
        "threads": torch.get_num_threads(),
        "cores_allowed": len(cores_allowed()) or None,
        "native_bfloat16": native_bfloat16(),
        "cpus": os.cpu_count(),
        "last_level_cache_bytes": last_level_cache(),
        "memory_bytes": memory_bytes(),
    }
    stack = common_stack() | {
        "mkl": _first_match(r"Math Kernel Library Version ([\w.-]+)", torch.__config__.show()),
        "onednn": _first_match(r"Intel\(R\) MKL-DNN v([\w.]+)", torch.__config__.show()),
    }
    arch = f"{platform.machine()}-{torch.backends.cpu.get_cpu_capability().lower()}"
    return Environment("cpu", cpu_name(), arch, facts, stack)


def cuda_environment(
    index: int, driver: str | None, more_facts: Mapping[str, Any] | None = None
) -> Environment:
    """The CUDA device of that index and the libraries that torch drives it with."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    facts = {
        "sm_count": properties.multi_processor_count,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "memory_bytes": properties.total_memory,
        **(more_facts or {}),
        **{name: os.environ[name] for name in STEERING if name in os.environ},
    }
    stack = common_stack() | {
        "driver": driver,
        "cuda": torch.version.cuda,
        "cudnn": cudnn_version(),
        "cublas": installed("cublas"),
        "cublaslt": loaded_version("libcublasLt", "cublasLtGetVersion"),
        "cupti": loaded_cupti() or installed("cupti"),
        "triton": installed("triton"),
    }
    arch = f"sm{properties.major}{properties.minor}"
    return Environment("cuda", properties.name, arch, facts, stack)


def cuda_arch(index: int) -> str | None:
    """``sm90`` and the like; None where torch sees no such device."""
    try:
        import torch

        major, minor = torch.cuda.get_device_capability(index)
    except Exception:  # without CUDA it is an AssertionError, with a broken driver others
        return None
    return f"sm{major}{minor}"


def cudnn_version() -> str | None:
    """As 91002; None where torch has none."""
    import torch

    number = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return str(number) if number else None


def common_stack() -> dict[str, str | None]:
    import torch

    import gacprof

    return {
        "gacprof": gacprof.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def native_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 itself (AMX, AVX512-BF16) rather than through float32."""
    import torch

    names = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(bool(getattr(torch.cpu, name, bool)()) for name in names)


def installed(library: str) -> str | None:
    """The version of a library, by the first of its packages that is installed."""
    for package in PACKAGES.get(library, (library,)):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None


def loaded(library: str) -> Path | None:
    """The file of a shared library that this process has loaded, by its name's beginning."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    files = (Path(line.split(maxsplit=5)[5]) for line in lines if "/" in line)
    return next((f for f in files if f.name.startswith(library + ".so")), None)


def _of_loaded(library: str, function: str) -> Any:
    """A function of a library that this process has loaded; None where there is none."""
    file = loaded(library)
    try:
        return None if file is None else getattr(ctypes.CDLL(str(file)), function)
    except (OSError, AttributeError):
        return None


def loaded_version(library: str, function: str) -> str | None:
    """The version that a loaded library's ``size_t function(void)`` returns, as 130100."""
    version = _of_loaded(library, function)
    if version is None:
        return None
    version.restype, version.argtypes = ctypes.c_size_t, []
    return str(version())


def loaded_cupti() -> str | None:
    """The version of the CUPTI that this process has loaded, which a preload may have put in
    place of the installed one (``CUptiResult cuptiGetVersion(uint32_t *)``)."""
    version, number = _of_loaded("libcupti", "cuptiGetVersion"), ctypes.c_uint32()
    return None if version is None or version(ctypes.byref(number)) else str(number.value)


def cpu_name() -> str:
    """The model name, with core family where the name alone says little."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    name = _first_match(r"model name\s*:\s*(.+)", text) or platform.machine()
    family, model = (_first_match(rf"{key}\s*:\s*(\d+)", text) for key in ("cpu family", "model"))
    return f"{name} (family {family} model {model})" if family else name


def last_level_cache() -> int | None:
    """Bytes of the largest cache that Linux reports for CPU 0."""
    sizes = []
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        match = re.fullmatch(r"(\d+)([KM])", entry.read_text().strip())
        if match:
            sizes.append(int(match[1]) * {"K": 1 << 10, "M": 1 << 20}[match[2]])
    return max(sizes, default=None)


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_bytes(device: str) -> int | None:
    """Memory that models on that torch device may use now; None where it is unknown."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        fields = dict(line.split(":", 1) for line in text.splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _first_match(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text)
    return match[1].strip() if match else None


def find_ncu() -> str | None:
    """The ``ncu`` program (Nsight Compute), or None."""
    if found := shutil.which("ncu"):
        return found
    for pattern in NCU_PLACES:
        if listed := sorted(Path("/").glob(pattern)):
            return str(listed[-1])
    return None
