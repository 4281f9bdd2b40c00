"""What of torch's and NVML's insides gacprof calls, by release: parameters, attributes, constants.

    pip download --no-deps --only-binary=:all: --python-version 312 \\
        --platform macosx_14_0_arm64 -d wheels torch==2.12.0 nvidia-ml-py==13.590.44 …
    python tools/torch_contract.py wheels/*.whl --out tests/fixtures/torch_contract.json

The wheels for macOS hold the stubs and headers of every release in 90 MB. Nothing of them is
imported or run. tests/devices/test_contract.py holds the installed releases against the table.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIGNATURES = {
    "torch/_C/__init__.pyi": (
        "_CudaEventBase.__new__", "_CudaEventBase.elapsed_time", "_CUDAGraph.capture_begin",
        "_CUDAGraph.capture_end", "_CUDAGraph.replay", "_CUDAGraph.reset",
        "_cuda_endAllocateToPool", "_get_sdp_priority_order", "_SDPAParams.__init__",
    ),
    "torch/_C/_autograd.pyi": (
        "_KinetoEvent.name", "_KinetoEvent.start_ns", "_KinetoEvent.duration_ns",
        "_KinetoEvent.device_type", "_KinetoEvent.activity_type",
    ),
    "torch/_C/_VariableFunctions.pyi": (
        "_scaled_mm", "_int_mm", "_grouped_mm", "_fused_sdp_choice",
    ),
    "torch/cuda/graphs.py": (
        "graph_pool_handle", "CUDAGraph.capture_begin", "CUDAGraph.capture_end",
        "CUDAGraph.replay", "CUDAGraph.reset",
    ),
    "torch/cuda/streams.py": (
        "Event.__new__", "Event.record", "Event.elapsed_time", "Stream.__new__",
    ),
    "torch/cuda/memory.py": (
        "mem_get_info", "memory_reserved", "memory_allocated", "empty_cache",
    ),
    "torch/cuda/__init__.py": (
        "_sleep", "synchronize", "get_sync_debug_mode", "set_sync_debug_mode",
        "get_device_properties",
    ),
    "torch/autograd/profiler.py": ("profile.__init__",),
    "torch/backends/cuda/__init__.py": (
        "can_use_flash_attention", "can_use_efficient_attention", "can_use_cudnn_attention",
    ),
}  # fmt: skip
"""By file, the functions and methods that :mod:`gacprof.devices` and ``operators`` call."""
WORKSPACES = "torch/include/ATen/cuda/CUDAContextLight.h"
CLEARED = "clearCublasWorkspacesForStream"
"""What a graph's reset calls where it takes its stream's workspace along."""
CONSTANT = re.compile(
    r"^(NVML_FI_DEV_(?:PERF_POLICY_(?:POWER|THERMAL)|"
    r"CLOCKS_EVENT_REASON_(?:SW_THERM|HW_THERM|HW_POWER_BRAKE)_SLOWDOWN))\s*=\s*(\d+)",
    re.MULTILINE,
)

Reader = Callable[[str], str]
"""Gives the text of a file of a release; empty where it has none."""


def torch_contract(read: Reader) -> dict[str, Any]:
    """Parameters by "file function", None for what the release lacks."""
    found: dict[str, Any] = {}
    for path, names in SIGNATURES.items():
        known = _signatures(ast.parse(read(path)))
        found |= {f"{path} {name}": known.get(name) for name in names}
    found["reset clears workspaces"] = CLEARED in read(WORKSPACES)
    return found


def _signatures(module: ast.Module) -> dict[str, list[str]]:
    """Of functions and methods; of overloads the one with most parameters."""
    found: dict[str, list[str]] = {}
    classes = [("", module)] + [
        (f"{node.name}.", node) for node in module.body if isinstance(node, ast.ClassDef)
    ]
    for prefix, scope in classes:
        for node in scope.body:
            if isinstance(node, ast.FunctionDef):
                given = node.args
                names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
                names += [f"*{a.arg}" for a in (given.vararg, given.kwarg) if a]
                kept = [n for n in names if n not in ("self", "cls")]
                if len(kept) >= len(found.get(prefix + node.name, [])):
                    found[prefix + node.name] = kept
    return found


def nvml_contract(read: Reader) -> dict[str, int]:
    return {name: int(number) for name, number in CONSTANT.findall(read("pynvml.py"))}


def in_wheel(wheel: zipfile.ZipFile) -> Reader:
    names = set(wheel.namelist())
    return lambda path: wheel.read(path).decode() if path in names else ""


def in_folder(site_packages: Path) -> Reader:
    return lambda path: (
        (site_packages / path).read_text() if (site_packages / path).exists() else ""
    )


def changes(releases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each fact its value in the first release, and in those where it became another."""
    ordered = sorted(releases, key=lambda v: [int(part) for part in v.split(".")])
    found: dict[str, dict[str, Any]] = {}
    for version in ordered:
        for fact in {fact: None for release in releases.values() for fact in release}:
            since, value = found.setdefault(fact, {}), releases[version].get(fact)
            if not since or list(since.values())[-1] != value:
                since[version] = value
    return found


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("wheels", nargs="+", type=Path)
    ask.add_argument("--out", type=Path, required=True)
    given = ask.parse_args()
    made: dict[str, dict[str, Any]] = {"torch": {}, "nvidia_ml_py": {}}
    for path in given.wheels:
        package, version = path.name.split("-")[:2]
        with zipfile.ZipFile(path) as wheel:
            read = in_wheel(wheel)
            contract = torch_contract if package == "torch" else nvml_contract
            made[package][version] = contract(read)
    table = {
        package: {"releases": list(releases), "since": changes(releases)}
        for package, releases in made.items()
    }
    given.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
