"""A CUDA GPU simulated under torch: two clocks, an L2 cache, events, graphs and a tracer.

The host has a clock and the device another. A launch costs the host some microseconds; its kernel
starts once the device is free *and* the host has come so far. So a gap that a sleep should hide
shows in what the events tell, and weights that should be cold are fast if they are not. Tensors
are the CPU's: what torch computes on them is seen by a function mode and becomes a kernel.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode

from gacprof.devices import cuda_session
from gacprof.devices.cuda import CudaDevice
from gacprof.devices.kineto import Traced

SPIN = "at::cuda::(anonymous namespace)::spin_kernel(long)"
PAGE = 4096
KERNELS = ("linear", "mm", "addmm", "sum", "add_", "add", "__add__", "scaled_dot_product_attention")
LAUNCH_NS, REPLAY_NS, RECORD_NS, GAP_NS, EVENT_NS = 5_000, 10_000, 1_000, 500, 300
MISS_NS = 100
"""For each page that a kernel does not find in the L2 cache."""


class SimulatedGpu:
    """``cost`` says how many nanoseconds a kernel takes whose operands are all in cache."""

    l2_bytes, memory_bytes = 1 << 20, 1 << 30

    def __init__(self):
        self.host = self.device = 0
        self.log = []  # Traced, in order
        self.launched = []  # (name, operands' addresses)
        self.cost = lambda name, operands: 10_000
        self.external_events = True
        self.fails = lambda name, operands: None  # an exception instead of a kernel
        self.refuses_capture = lambda name, operands: None
        self.synchronisations = self.captures = self.emptied = self.traces = 0
        self.loses = lambda events, traces: events
        self.spoilt = False
        self.ended_allocations = []
        self._nodes = None
        self._cache = OrderedDict()
        self._must_not_wait = 0

    # --- what runs

    def sleep(self, cycles):
        self._enqueue(SPIN, lambda: cycles // 2)

    def kernel(self, name, operands):
        problem = self.fails(name, operands)
        if problem is None and self._nodes is not None:
            problem = self.refuses_capture(name, operands)
        if problem:
            raise problem
        ranges = [(t.data_ptr(), t.nbytes) for t in operands]
        cost = self.cost(name, operands)
        suffix = "_tf32" if torch.backends.cuda.matmul.allow_tf32 else ""
        self.launched.append((name + suffix, ranges))
        self._enqueue(name + suffix, lambda: cost + MISS_NS * self._misses(ranges))

    def _misses(self, ranges):
        missed = 0
        for first, size in ranges:
            for page in range(first // PAGE, (first + size - 1) // PAGE + 1):
                missed += page not in self._cache
                self._cache[page] = None
                self._cache.move_to_end(page)
                if len(self._cache) > self.l2_bytes // PAGE:
                    self._cache.popitem(last=False)
        return missed

    def _enqueue(self, name, ns):
        def node():
            start = self.device + GAP_NS
            self.device = start + int(ns())
            self.log.append(Traced(name, start, self.device))

        self._now_or_captured(node, LAUNCH_NS)

    def _now_or_captured(self, node, host_ns):
        if self._nodes is not None:
            self._nodes.append(node)
            return
        self.host += host_ns
        self.device = max(self.device, self.host)
        node()

    def record(self, event):
        if self._nodes is not None and not event.external:
            raise RuntimeError("operation not permitted when stream is capturing")

        def node():
            event.at = self.device
            self.device += EVENT_NS

        self._now_or_captured(node, RECORD_NS)

    def synchronise(self, index=None):
        self.synchronisations += 1
        if self._nodes is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        if self.spoilt:
            raise RuntimeError("CUDA error: device-side assert triggered\nfor debugging …")
        self.host = max(self.host, self.device)

    # --- what torch asks for

    def event(self, enable_timing=False, **more):
        if more and not self.external_events:
            raise TypeError("'external' is an invalid keyword argument")
        made = SimpleNamespace(external=more.get("external", False), at=None)
        made.record = lambda: self.record(made)
        made.elapsed_time = lambda end: (end.at - made.at) / 1e6
        return made

    def graph(self):
        made = SimpleNamespace(nodes=None)

        def begin(pool, capture_error_mode):
            assert capture_error_mode == "thread_local"
            self.captures += 1
            self._nodes = []

        def end():
            made.nodes, self._nodes = self._nodes, None

        def replay():
            self.host += REPLAY_NS
            self.device = max(self.device, self.host)
            for node in made.nodes:
                node()

        made.capture_begin, made.capture_end, made.replay = begin, end, replay
        made.reset = lambda: made.__dict__.update(nodes=None)
        return made

    def set_sync_debug_mode(self, mode):
        self._must_not_wait = mode

    def waits(self):
        """What an operation that waits for the device does."""
        if self._must_not_wait == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        self.synchronise()

    def empty_cache(self):
        self.emptied += 1

    def profile(self, **_):
        gpu = self

        class Profile:
            def __enter__(self):
                gpu.traces += 1
                self._from = len(gpu.log)
                return self

            def __exit__(self, *_):
                events = gpu.loses(gpu.log[self._from :], gpu.traces)
                told = [kineto_event(e.name, e.start_ns, e.end_ns - e.start_ns) for e in events]
                self.kineto_results = SimpleNamespace(events=lambda: told)

        return Profile()


def kineto_event(name, start_ns, ns, kind=torch.autograd.DeviceType.CUDA, **more):
    return SimpleNamespace(
        **more,
        name=lambda: name,
        device_type=lambda: kind,
        start_ns=lambda: start_ns,
        duration_ns=lambda: ns,
    )


class Kernels(TorchFunctionMode):
    """What torch computes, as kernels of the GPU."""

    def __init__(self, gpu):
        super().__init__()
        self._gpu = gpu

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ in KERNELS:
            operands = [a for a in args if isinstance(a, torch.Tensor)]
            self._gpu.kernel(func.__name__, operands)
        return func(*args, **(kwargs or {}))


@contextmanager
def simulated(monkeypatch):
    """The GPU in torch's place; :func:`opened` opens it."""
    gpu = SimulatedGpu()
    properties = SimpleNamespace(
        name="Simulated", major=9, minor=0, multi_processor_count=132, uuid="none",
        L2_cache_size=gpu.l2_bytes, total_memory=gpu.memory_bytes,
    )  # fmt: skip
    for name, answer in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "device": lambda index: nullcontext(),
        "stream": lambda stream: nullcontext(),
        "Stream": lambda index: "stream",
        "Event": gpu.event,
        "CUDAGraph": gpu.graph,
        "graph_pool_handle": lambda: (0, 1),
        "get_device_properties": lambda index: properties,
        "synchronize": gpu.synchronise,
        "empty_cache": gpu.empty_cache,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": gpu.set_sync_debug_mode,
        "_sleep": gpu.sleep,
        "mem_get_info": lambda index: (1 << 30, 8 << 30),
        "memory_reserved": lambda index: 6 << 30,
        "memory_allocated": lambda index: 1 << 30,
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch.autograd.profiler, "profile", gpu.profile)
    monkeypatch.setattr(
        torch._C, "_cuda_endAllocateToPool", lambda *told: gpu.ended_allocations.append(told),
        raising=False,
    )  # fmt: skip
    clock = SimpleNamespace(
        perf_counter_ns=lambda: gpu.host, monotonic=lambda: gpu.host / 1e9, sleep=lambda s: None
    )
    monkeypatch.setattr(cuda_session, "time", clock)
    with Kernels(gpu):
        yield gpu


def opened(timer="auto"):
    device = CudaDevice(0, timer)
    device.torch_device = torch.device("cpu")
    return device
