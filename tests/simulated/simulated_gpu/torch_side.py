"""The simulated GPU in torch's place: its calls replaced, its tensors without data.

Tensors are torch's fakes: shapes, strides and storages are real, numbers are not, so that a
product of a prefill costs microseconds. They say that they lie on the CPU, since a torch without
CUDA guards a CUDA tensor in C++; every storage made meanwhile is the GPU's.
"""

from __future__ import annotations

import sys
import weakref
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from importlib import import_module
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from gacprof import operators
from gacprof.devices import cuda, cuda_slot
from gacprof.devices.cuda import CudaDevice
from gacprof.devices.kineto import Tracer
from gacprof.operators.base import pattern
from simulated_gpu.gpu import PRODUCTS, SimulatedGpu
from simulated_gpu.nvml import simulated_nvml

KERNELS = (*PRODUCTS, "sum", "add_", "add", "__add__", "scaled_dot_product_attention")
STREAM_KERNELS = "gacprof.operators.stream_triton"

with suppress(ImportError):
    import_module(
        "triton.language"
    )  # reads TRITON_INTERPRET, which is set while a GPU is installed


class Storages(TorchDispatchMode):
    """Every storage that an operation makes is allocated on the GPU, and freed with it."""

    def __init__(self, gpu):
        super().__init__()
        self._gpu, self._held = gpu, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in tree_iter(made):
            if isinstance(tensor, torch.Tensor):
                self._keep(tensor.untyped_storage())
        return made

    def _keep(self, storage):
        key = storage._cdata
        if key not in self._held:
            self._gpu.hold(key, storage.nbytes())
            self._held.add(key)
            weakref.finalize(storage, self._let_go, key).atexit = False

    def _let_go(self, key):
        self._held.discard(key)
        self._gpu.drop(key)


class Kernels(TorchFunctionMode):
    """What torch computes, as kernels of the GPU."""

    def __init__(self, gpu):
        super().__init__()
        self._gpu = gpu

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "item":
            self._gpu.waits()
            return 0
        if name in KERNELS:
            given = [*args, *kwargs.values()]
            self._gpu.kernel(name, [a for a in given if isinstance(a, torch.Tensor)])
        made = _results(name, args, kwargs)
        return func(*args, **kwargs) if made is None else made


def _results(name, args, kwargs):
    """Of what torch computes otherwise without a GPU, or refuses; else None."""
    if name == "scaled_dot_product_attention":
        return torch.empty_like(args[0])
    if name == "_int_mm":
        return torch.empty(args[0].shape[0], args[1].shape[1], dtype=torch.int32)
    if name == "_scaled_mm":
        return torch.empty(args[0].shape[0], args[1].shape[1], dtype=kwargs["out_dtype"])
    if name == "_grouped_mm":
        return torch.empty(args[0].shape[0], args[1].shape[2], dtype=args[0].dtype)
    return None


def stream_kernels(gpu):
    """:mod:`gacprof.operators.stream_triton` without Triton."""

    def launching(name, specialise):
        def call(source, target):
            gpu.kernel(name, [source, target])
            return target

        return call

    made = ModuleType(STREAM_KERNELS)
    made.launching = launching
    return made


@contextmanager
def installed(gpu: SimulatedGpu, with_modes: bool = True):
    """The GPU in torch's place; :func:`opened` opens it. Without modes only torch's calls are
    replaced, and tensors are the CPU's until :func:`modes` are entered."""
    properties = SimpleNamespace(
        name=gpu.name, major=gpu.major, minor=gpu.minor, multi_processor_count=132,
        uuid="12ab", L2_cache_size=gpu.l2_bytes, total_memory=gpu.memory_bytes,
    )  # fmt: skip

    @contextmanager
    def on_stream(stream):
        before, gpu.stream = gpu.stream, stream
        try:
            yield
        finally:
            gpu.stream = before

    replaced = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "device": lambda index: nullcontext(),
        "stream": on_stream,
        "Stream": lambda index: f"stream {id(object())}",
        "Event": gpu.event,
        "CUDAGraph": gpu.graph,
        "graph_pool_handle": gpu.graph_pool_handle,
        "get_device_properties": lambda index=0: properties,
        "get_device_name": lambda index=0: gpu.name,
        "get_device_capability": lambda index=0: (gpu.major, gpu.minor),
        "synchronize": gpu.synchronise,
        "empty_cache": gpu.empty_cache,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": gpu.set_sync_debug_mode,
        "_sleep": gpu.sleep,
        "mem_get_info": lambda index=0: (gpu.memory.total - gpu.memory.reserved, gpu.memory.total),
        "memory_reserved": lambda index=0: gpu.memory.reserved,
        "memory_allocated": lambda index=0: gpu.memory.allocated,
    }
    clock = SimpleNamespace(
        perf_counter_ns=lambda: gpu.host, monotonic=lambda: gpu.host / 1e9, sleep=lambda s: None
    )
    with ExitStack() as stack:
        for name, answer in replaced.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        stack.enter_context(patch.object(torch.autograd.profiler, "profile", gpu.profile))
        stack.enter_context(
            patch.object(torch._C, "_cuda_endAllocateToPool", create=True,
                         new=lambda *message: gpu.ended_allocations.append(message))
        )  # fmt: skip
        for module in (cuda, cuda_slot):
            stack.enter_context(patch.object(module, "time", clock))
        stack.enter_context(patch.object(Tracer, "_traces", 0))
        stack.enter_context(
            patch("gacprof.operators.products._compiled", lambda call, *_, **__: call)
        )
        stack.enter_context(patch.dict("os.environ", {"TRITON_INTERPRET": "1"}))
        modules = {STREAM_KERNELS: stream_kernels(gpu), "pynvml": simulated_nvml(gpu)}
        for name, module in modules.items():
            stack.callback(_put_back, name, sys.modules.get(name))
            sys.modules[name] = module
        stack.enter_context(
            patch.object(operators, "stream_triton", modules[STREAM_KERNELS], create=True)
        )
        pattern.cache_clear()
        stack.callback(pattern.cache_clear)
        for mode in modes(gpu) if with_modes else ():
            stack.enter_context(mode)
        yield gpu


def modes(gpu):
    return FakeTensorMode(allow_non_fake_inputs=True), Storages(gpu), Kernels(gpu)


def _put_back(name, module):
    """``patch.dict(sys.modules)`` would also forget what was first imported meanwhile."""
    if module is None:
        sys.modules.pop(name, None)
    else:
        sys.modules[name] = module


def opened(timer: str = "auto") -> CudaDevice:
    device = CudaDevice(0, timer)
    device.torch_device = torch.device("cpu")
    return device
