"""Ask cuDNN's deviceless planning which engine serves each size, and write ``reports/cudnn.json``.

    python -m venv asked && asked/bin/pip install nvidia-cudnn-cu12==9.26.1.1 \\
        nvidia-cudnn-frontend==1.20.0 nvidia-cuda-runtime-cu12 nvidia-cublas-cu12 numpy
    PYTHONPATH=. asked/bin/python tools/ask_cudnn.py

cuDNN plans for a GPU that is described to it (``create_device_properties``), without a device or
driver: it answers whether it supports an operation and by which of its engines, not by which tile
and not how fast. Where no driver is installed, its library wants a ``libcuda.so.1`` to load; the
one made here has functions that all answer "no device". ``tools/dispatch_report.py`` prints the
answers. Newer packages refuse the description or number engines otherwise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gacprof.virtual.ask import compressed
from gacprof.virtual.profiles import gpus, profile

PAGE = Path(__file__).parents[1] / "reports" / "cudnn.json"
PACKAGES = ("nvidia-cudnn-cu12", "nvidia-cudnn-frontend")
DRIVER = (
    "TensorMapEncodeTiled TensorMapEncodeIm2col ModuleUnload ModuleLoadData ModuleGetFunction "
    "GetErrorString GetErrorName DriverGetVersion LibraryLoadData LibraryLoadFromFile "
    "LibraryGetKernel LibraryUnload KernelSetAttribute KernelGetAttribute KernelGetFunction "
    "OccupancyMaxPotentialClusterSize OccupancyMaxActiveClusters DeviceGet DeviceGetCount "
    "CtxGetCurrent CtxGetLimit CtxPopCurrent CtxPushCurrent LaunchCooperativeKernel LaunchKernel "
    "LaunchKernelEx LinkAddData LinkComplete LinkCreate LinkDestroy StreamGetCtx"
)
"""The driver's functions that cuDNN's libraries name."""
HEADS, KV_HEADS, TOKENS = 16, 4, 2048
HEAD_DIMS = (1, 512)
PRODUCT_SIZES = (4033, 4160)
OTHER_SIDES = 4096
SCALED = 16
"""Elements of NVFP4 that share a scale."""


def with_driver() -> None:
    """Start this program anew where its libraries find a driver that has no device."""
    if "GACPROF_NO_DEVICE" in os.environ:
        return
    functions = "\n".join(f"int cu{name}(void) {{ return 100; }}" for name in DRIVER.split())
    folder = tempfile.mkdtemp()
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", f"{folder}/libcuda.so.1"]
    subprocess.run(command, input=functions, text=True, check=True)
    nvidia = Path(sys.prefix).glob("lib/python*/site-packages/nvidia/*/lib")
    paths = ":".join([folder, *map(str, nvidia)])
    environment = os.environ | {"LD_LIBRARY_PATH": paths, "GACPROF_NO_DEVICE": "1"}
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def described(gpu: str) -> tuple[str, int]:
    """A GPU in cuDNN's words, and its compute capability."""
    facts = profile(gpu)
    major, minor = facts.capability
    values = facts.values
    words = {
        "deviceVer": major * 100 + minor * 10,
        "deviceName": facts.name,
        "totalGlobalMem": facts.memory_bytes,
        "multiProcessorCount": values["sms"],
        "maxSharedMemoryPerBlockOptin": values["shared_bytes_per_block"],
        "maxCtasPerSM": values["blocks_per_sm"],
        "maxThreadsPerSM": values["threads_per_sm"],
        "smClockRateKHz": values["clock_khz"],
        "memClockRateKHz": values["memory_khz"],
        "l2CacheSize": values["l2_bytes"],
    }
    alike = {
        "warpSize": 32,
        "maxSharedMemoryPerBlock": 49152,
        "oversizedSharedMemoryPerBlock": 0,
        "reservedSharedMemoryPerBlock": 1024,
        "maxRegistersPerSM": 65536,
        "regsPerBlock": 65536,
        "maxThreadsPerBlock": 1024,
        "maxBlockSize": [1024, 1024, 64],
        "maxGridSize": [2147483647, 65535, 65535],
        "supportCoopLaunch": 1,
        **dict.fromkeys(("pciDeviceId", "isTccDriver", "cudaDeviceId"), 0),
        "driverVer": 13000,
    }
    return json.dumps(words | alike), major * 10 + minor


class Asked:
    """cuDNN's plans for one GPU."""

    def __init__(self, gpu: str) -> None:
        import cudnn

        self.cudnn: Any = cudnn
        self.types = cudnn.data_type
        text, self.capability = described(gpu)
        self.device = cudnn.create_device_properties(text)

    def plan(self, build: Callable[[Any, int], None], size: int) -> dict[str, int] | str:
        """The engine of the first plan and the number of plans; "refused" where there is none."""
        graph = self.cudnn.pygraph(
            intermediate_data_type=self.types.FLOAT,
            compute_data_type=self.types.FLOAT,
            device_property=self.device,
            sm_version=self.capability,
        )
        modes = [self.cudnn.heur_mode.A, self.cudnn.heur_mode.FALLBACK]
        try:
            build(graph, size)
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans(modes)
            graph.check_support()
            name = graph.get_plan_name_at_index(0).partition("_")[0]
        except (self.cudnn.cudnnGraphNotSupportedError, RuntimeError):
            return "refused"
        return {"engine": int(name.removeprefix("eng")), "plans": graph.get_execution_plan_count()}

    def attention(self, graph: Any, head_dim: int, queries: int) -> None:
        """Causal attention over 2,048 keys; of one query grouped by four, and not causal."""
        is_decode = queries == 1
        kv_heads = KV_HEADS if is_decode else HEADS
        half = self.types.BFLOAT16
        q = self._rows(graph, [1, HEADS, queries, head_dim], half)
        k, v = (self._rows(graph, [1, kv_heads, TOKENS, head_dim], half) for _ in "kv")
        output, _ = graph.sdpa(
            q=q, k=k, v=v, is_inference=True, attn_scale=0.1, use_causal_mask=not is_decode
        )
        shape = [1, HEADS, queries, head_dim]
        output.set_output(True).set_dim(shape).set_stride(strides(shape)).set_data_type(half)

    def product(self, graph: Any, n: int, k: int, dtype: str) -> None:
        """y[M, N] = x[M, K] · W[N, K]ᵀ, K contiguous in both."""
        number = {"float16": self.types.HALF, "nvfp4": self.types.FP4_E2M1}
        kind = number.get(dtype, self.types.FP8_E4M3)
        x = self._rows(graph, [1, OTHER_SIDES, k], kind)
        w = graph.tensor(dim=[1, k, n], stride=[k * n, 1, k], data_type=kind)
        if dtype == "nvfp4":
            x = self._scaled(graph, x, OTHER_SIDES, k, [1, SCALED])
            w = self._scaled(graph, w, n, k, [SCALED, 1])
        y = graph.matmul(A=x, B=w, compute_data_type=self.types.FLOAT)
        y.set_output(True).set_data_type(self.types.HALF)

    def _scaled(self, graph: Any, tensor: Any, length: int, k: int, block: list[int]) -> Any:
        """A matrix with its scales, one for 16 elements of K, in cuDNN's 128 × 4 order."""
        rows, columns = -(-length // 128) * 128, -(-k // (SCALED * 4)) * 4
        shape, stride = [1, rows, columns], [rows * columns, columns, 1]
        if block[0] > 1:
            shape, stride = [1, columns, rows], [rows * columns, 1, columns]
        order = self.cudnn.tensor_reordering.F8_128x4
        kind = self.types.FP8_E4M3
        scales = graph.tensor(dim=shape, stride=stride, data_type=kind, reordering_type=order)
        return graph.block_scale_dequantize(tensor, scales, block_size=block)

    @staticmethod
    def _rows(graph: Any, shape: list[int], dtype: Any) -> Any:
        return graph.tensor(dim=shape, stride=strides(shape), data_type=dtype)


def strides(shape: list[int]) -> list[int]:
    """Strides of a contiguous tensor."""
    steps = [1]
    for length in reversed(shape[1:]):
        steps.insert(0, steps[0] * length)
    return steps


def questions(asked: Asked) -> Iterator[tuple[str, str, str, tuple[int, int], Callable]]:
    """What is asked of each GPU: section, two words of the key, sizes and how to build it."""
    for call, queries in (("prefill", TOKENS), ("decode", 1)):
        yield (
            "attention",
            "bfloat16",
            call,
            HEAD_DIMS,
            lambda g, s, q=queries: asked.attention(g, s, q),
        )
    for dtype in ("float16", "float8_e4m3", "nvfp4"):
        yield (
            "products",
            dtype,
            "K",
            PRODUCT_SIZES,
            lambda g, s, d=dtype: asked.product(g, OTHER_SIDES, s, d),
        )
        yield (
            "products",
            dtype,
            "N",
            PRODUCT_SIZES,
            lambda g, s, d=dtype: asked.product(g, s, OTHER_SIDES, d),
        )


def main() -> None:
    with_driver()
    sections: dict[str, dict] = {}
    for gpu in gpus():
        asked = Asked(gpu)
        for name, dtype, what, bounds, build in questions(asked):
            by = ["gpu", "dtype", "axis" if name == "products" else "call"]
            section = sections.setdefault(
                name, {"by": by, "range": bounds, "answers": [], "rows": []}
            )
            answers = [asked.plan(build, size) for size in range(bounds[0], bounds[1] + 1)]
            first = len(section["answers"])
            section["answers"] += answers
            section["rows"].append([gpu, dtype, what, list(range(first, first + len(answers)))])
        print(gpu, flush=True)
    head = {
        "provenance": "by cuDNN's deviceless planning; no kernel was run",
        "versions": {package: version(package) for package in PACKAGES},
        "sections": {name: compressed(section) for name, section in sections.items()},
    }
    PAGE.write_text(json.dumps(head, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
