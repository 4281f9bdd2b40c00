"""A CUDA GPU simulated under torch, as hard on its user as a real one.

Two clocks: a launch costs the host some microseconds; its kernel starts once the device is free
*and* the host has come so far. So a gap that a sleep should hide shows in what events tell.
An L2 cache: weights that should be cold are fast if they are not. Memory is finite, and every
access names the allocation that it was captured or launched with: a graph that reads memory given
back since spoils the context, as an illegal access does. cuBLAS keeps a workspace for each stream,
which a graph's reset frees in the torch releases that do so.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass
from itertools import count, pairwise
from math import exp
from types import SimpleNamespace

import torch

from gacprof.devices.kineto import Traced
from simulated_gpu.memory import DEFAULT, Block, Memory

SPIN = "at::cuda::(anonymous namespace)::spin_kernel(long)"
PAGE = 4096
PRODUCTS = ("linear", "mm", "addmm", "bmm", "matmul", "__matmul__", "_int_mm", "_scaled_mm",
            "_grouped_mm")  # fmt: skip
LAUNCH_NS, REPLAY_NS, RECORD_NS, GAP_NS, EVENT_NS = 5_000, 10_000, 1_000, 500, 300
MISS_NS = 100
"""For each page that a kernel does not find in the L2 cache."""
WORKSPACE_BYTES = 4 << 20
RESET_CLEARS_WORKSPACES = (2, 12)
"""The first release whose ``CUDAGraph.reset`` frees the cuBLAS workspaces of the capture's stream
(pytorch/pytorch#193402)."""
SETTLING_NS = 20e6
"""Over so long the power draw is averaged before it meets the cap."""
CAPPED = 0.85
"""Of its clock a capped GPU keeps."""
POISONED = "CUDA error: an illegal memory access was encountered (freed memory of {})"


@dataclass
class Node:
    """What a graph holds: a kernel, or an event that it records."""

    name: str = ""
    ns: float = 0.0
    ranges: tuple[tuple[int, int], ...] = ()
    heavy: bool = False
    event: SimpleNamespace | None = None


class SimulatedGpu:
    """``cost`` says how many nanoseconds a kernel takes whose operands are all in cache."""

    l2_bytes, memory_bytes, page = 1 << 20, 8 << 30, PAGE
    name, major, minor = "Simulated", 9, 0
    miss_ns = float(MISS_NS)
    release: tuple[int, int] = (2, 11)
    driver = "580.159.04"
    jitter = 0.0
    """Standard deviation (log) of a kernel's time."""
    tick_ns = 1
    """By which events' times step."""
    capture_ns, instantiate_ns, trace_ns, plan_ns = 0, 0, 0, 0
    """What a capture, each of its nodes, a trace and a cuDNN plan for a new shape cost the host."""
    power_cap = 1.0
    """The share of time in heavy kernels beyond which the clock is held down."""
    remembers = True
    """Whether all that ran is kept in ``log`` and ``launched``; a trace's events always are."""

    def __init__(self, seed: int = 0):
        self.host = self.device = 0
        self.log = []  # Traced, in order
        self.launched = []  # (name, operands' addresses)
        self.cost = lambda name, operands: 10_000
        self.heavy = lambda name, operands: False
        self.external_events = True
        self.fails = lambda name, operands: None  # an exception instead of a kernel
        self.refuses_capture = lambda name, operands: None
        self.synchronisations = self.captures = self.emptied = self.traces = self.plans = 0
        self.loses = lambda events, traces: events
        self.context_lost = False
        self.ended_allocations = []
        self.memory = Memory(self.memory_bytes)
        self.capturing_ns = 0
        """How long captures took the host."""
        self.slowed_ns = 0
        """How long the power cap has held the clock down."""
        self.stream = "default"
        self._workspaces: dict[str, Block] = {}
        self._blocks: dict[int, Block] = {}
        self._planned = set()
        self._pools = count(1)
        self._graph = None
        self._tracing = False
        self._cache = OrderedDict()
        self._power = 0.0
        self._draw = random.Random(seed)
        self._must_not_wait = 0

    # --- memory

    @property
    def pool(self):
        return self._graph.pool if self._graph is not None else DEFAULT

    def hold(self, storage_key: int, size: int) -> Block:
        """A tensor's storage was made; :meth:`drop` when it is gone."""
        block = self._blocks[storage_key] = self.memory.allocate(size, self.pool)
        if self._graph is not None:
            self._graph.own.add(block.id)
        return block

    def drop(self, storage_key: int) -> None:
        self.memory.free(self._blocks.pop(storage_key))

    def address(self, tensor: torch.Tensor) -> int:
        held = self._blocks[tensor.untyped_storage()._cdata]
        return held.base + tensor.storage_offset() * tensor.itemsize

    def _workspace(self) -> Block:
        """cuBLAS's for the current stream, made on its first product there."""
        if self.stream not in self._workspaces:
            self._workspaces[self.stream] = self.memory.allocate(WORKSPACE_BYTES, self.pool)
        return self._workspaces[self.stream]

    # --- what runs

    def sleep(self, cycles):
        self._enqueue(Node(SPIN, cycles // 2))

    def kernel(self, name, operands):
        problem = self.fails(name, operands)
        if problem is None and self._graph is not None:
            problem = self.refuses_capture(name, operands)
        if problem:
            raise problem
        ranges = tuple((self.address(t), _reach(t)) for t in operands)
        _refuse_overlaps(name, operands, ranges)
        self._plan(name, operands)
        suffix = "_tf32" if torch.backends.cuda.matmul.allow_tf32 else ""
        if self.remembers:
            self.launched.append((name + suffix, list(ranges)))
        held = [self._blocks[t.untyped_storage()._cdata].id for t in operands]
        if name in PRODUCTS:
            held.append(self._workspace().id)
        if self._graph is not None:
            self._graph.reads.update(held)
        self._enqueue(Node(name + suffix, self.cost(name, operands), ranges,
                           self.heavy(name, operands)))  # fmt: skip

    def _plan(self, name, operands):
        """cuDNN builds a plan the first time it meets a shape that it serves."""
        key = name, *(tuple(t.shape) for t in operands)
        if not self.plan_ns or name != "scaled_dot_product_attention" or len(operands) > 3:
            return
        if (
            operands[0].shape[-1] % 8 == 0
            and operands[0].itemsize == 2
            and key not in self._planned
        ):
            self._planned.add(key)
            self.plans += 1
            self.host += self.plan_ns

    def _misses(self, ranges):
        missed, kept = 0, self.l2_bytes // self.page
        for first, size in ranges:
            pages = range(first // self.page, (first + size - 1) // self.page + 1)
            missed += max(0, len(pages) - kept)
            for page in pages[-kept:]:
                missed += page not in self._cache
                self._cache[page] = None
                self._cache.move_to_end(page)
            while len(self._cache) > kept:
                self._cache.popitem(last=False)
        return missed

    def _enqueue(self, node):
        if self._graph is not None:
            self._graph.nodes.append(node)
            return
        self.host += RECORD_NS if node.event is not None else LAUNCH_NS
        self.device = max(self.device, self.host)
        self._run(node)

    def _run(self, node):
        if node.event is not None:
            node.event.at = self.device
            self.device += EVENT_NS
            return
        start = self.device + GAP_NS
        ns = node.ns + self.miss_ns * self._misses(node.ranges)
        if self.jitter:
            ns *= exp(self._draw.gauss(0.0, self.jitter))
        self._power += (node.heavy - self._power) * (1 - exp(-ns / SETTLING_NS))
        if node.heavy and self._power > self.power_cap:
            ns /= CAPPED
            self.slowed_ns += int(ns)
        self.device = start + int(ns)
        if self.remembers or self._tracing:
            self.log.append(Traced(node.name, start, self.device))

    def record(self, event):
        if self._graph is not None and not event.external:
            raise RuntimeError("operation not permitted when stream is capturing")
        self._enqueue(Node(event=event))

    def synchronise(self, index=None):
        self.synchronisations += 1
        if self._graph is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        self._refuse_if_lost()
        idle = self.host - self.device
        if idle > 0:
            self._power *= exp(-idle / SETTLING_NS)
        self.host = max(self.host, self.device)

    def _refuse_if_lost(self):
        if self.context_lost is True:
            raise RuntimeError("CUDA error: device-side assert triggered\nfor debugging …")
        if self.context_lost:
            raise RuntimeError(self.context_lost)

    # --- what torch asks for

    def event(self, enable_timing=False, **more):
        if more and not self.external_events:
            raise TypeError("'external' is an invalid keyword argument")
        made = SimpleNamespace(external=more.get("external", False), at=None)
        made.record = lambda: self.record(made)
        made.elapsed_time = lambda end: (end.at - made.at) // self.tick_ns * self.tick_ns / 1e6
        return made

    def graph_pool_handle(self):
        return (0, next(self._pools))

    def graph(self):
        return SimulatedGraph(self)

    def set_sync_debug_mode(self, mode):
        self._must_not_wait = mode

    def waits(self):
        """What an operation that waits for the device does."""
        if self._must_not_wait == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        self.synchronise()

    def empty_cache(self):
        self.emptied += 1
        self.memory.empty_cache()

    def profile(self, **_):
        return Profile(self)


class SimulatedGraph:
    """``reads`` are the allocations that its kernels were captured with, ``own`` those made while
    it was captured, which stay its pool's."""

    def __init__(self, gpu):
        self._gpu = gpu
        self.nodes = self.pool = None
        self.reads, self.own = set(), set()

    def capture_begin(self, pool, capture_error_mode):
        assert capture_error_mode == "thread_local"
        self._gpu.captures += 1
        self._stream, self.pool, self.nodes = self._gpu.stream, pool, []
        self._gpu.memory.use(pool)
        self._gpu._graph = self

    def capture_end(self):
        gpu = self._gpu
        gpu._graph = None
        taken = gpu.capture_ns + gpu.instantiate_ns * len(self.nodes)
        gpu.host += taken
        gpu.capturing_ns += taken

    def replay(self):
        gpu = self._gpu
        gpu.host += REPLAY_NS
        gpu.device = max(gpu.device, gpu.host)
        gone = self.reads - self.own - gpu.memory.live
        if gone:
            gpu.context_lost = POISONED.format(f"{len(gone)} allocations")
        for node in self.nodes:
            gpu._run(node)

    def __del__(self):
        """torch's destructor of a graph resets it, also one whose capture failed."""
        self.reset()

    def reset(self):
        if self.nodes is None:
            return
        self.nodes = None
        gpu = self._gpu
        gpu.memory.leave(self.pool)
        held = gpu._workspaces.get(self._stream)
        if held is not None and gpu.release >= RESET_CLEARS_WORKSPACES:
            gpu.memory.free(gpu._workspaces.pop(self._stream))


class Profile:
    """torch's profiler, as far as the device's events go."""

    def __init__(self, gpu):
        self._gpu = gpu

    def __enter__(self):
        self._gpu.traces += 1
        self._gpu.host += self._gpu.trace_ns
        self._gpu._tracing = True
        self._from = len(self._gpu.log)
        return self

    def __exit__(self, *_):
        gpu = self._gpu
        events = gpu.loses(gpu.log[self._from :], gpu.traces)
        message = [kineto_event(e.name, e.start_ns, e.end_ns - e.start_ns) for e in events]
        self.kineto_results = SimpleNamespace(events=lambda: message)
        gpu._tracing = False
        if not gpu.remembers:
            gpu.log.clear()


def kineto_event(name, start_ns, ns, kind=torch.autograd.DeviceType.CUDA, **more):
    return SimpleNamespace(
        **more,
        name=lambda: name,
        device_type=lambda: kind,
        start_ns=lambda: start_ns,
        duration_ns=lambda: ns,
    )


def _reach(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if not tensor.numel():
        return 0
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize


def _refuse_overlaps(name, operands, ranges):
    """No call of ours reads one piece of memory as two operands."""
    placed = zip(ranges, operands, strict=True)
    spans = sorted({(first, first + size, id(tensor)) for (first, size), tensor in placed})
    for (_, end, one), (first, _, other) in pairwise(spans):
        if first < end and one != other:
            raise AssertionError(f"operands of {name} overlap in memory")
