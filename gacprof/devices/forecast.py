"""What a sweep would ask of a GPU that is not here: memory, graphs, plans, seconds.

Operands are asked of the operators themselves, as shapes without memory; times are the data
sheet's roof, of which a call is taken to reach a share. What :mod:`.cuda` does with
a curve is counted, not run: these numbers are for choosing a suite and a machine, not for results.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from gacprof import operators
from gacprof.core.files import Record
from gacprof.core.points import Point
from gacprof.devices.cuda import ASSUMED_KERNELS, OTHER_NODES
from gacprof.devices.cuda_slot import ROUGH_CALLS, WARM_UP_CALLS, calls_of_runs
from gacprof.devices.datasheet import Roof, Sheet
from gacprof.devices.gpu import ASSUMED_L2_BYTES, L2_FACTOR
from gacprof.operators.base import itemsize, operands_from

if TYPE_CHECKING:
    import torch

SHORTEST_US, ASSUMED_GB_S = 3.0, 1000.0
"""The shortest call; the memory's bandwidth where the sheet has none."""
START_S = 8.0
"""A fresh process: importing torch, opening the device, cuBLAS's first call. Not measured."""
GRAPH_S, NODE_S, TRACE_S, SLOT_S = 0.005, 50e-6, 0.2, 0.003
"""A capture, each node instantiated and uploaded, a trace, and an operator's preparation. The
first is what pytorch/pytorch#166975 reports of small graphs; the others are guesses."""
PLAN_S = 0.44
"""cuDNN's plan of a new shape of attention (modelscope/FunASR#3704, a B200)."""
CUDNN_FIRST = ("sm90", "sm100")
CONTEXT_BYTES, NODE_BYTES = 600 << 20, 1 << 10
"""CUDA's context with its libraries, and a graph's node."""
USABLE = 0.9
"""Of the memory: what fragments and other processes leave."""


@dataclass(frozen=True)
class Load:
    """A curve: its points, how many A/A replicates they get, its fewest blocks, and how many slots
    each process after the first calls."""

    points: tuple[Point, ...]
    replicates: int
    blocks: int
    later: int


@dataclass(frozen=True)
class Forecast(Record):
    """``seconds`` by part, of all processes together and of each curve's fewest blocks; graphs,
    nodes and plans are the first process's, which prepares every slot.
    ``too_large`` are points whose operands alone do not fit."""

    gpu: str
    points: int
    slots: int
    blocks: int
    graphs: int
    nodes: int
    plans: int
    peak_gib: float
    memory_gib: int | None
    seconds: dict[str, float]
    too_large: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return self.memory_gib is None or self.peak_gib <= USABLE * self.memory_gib


def forecast(loads: Sequence[Load], sheet: Sheet, reuse_bytes: int, processes: int) -> Forecast:
    """What the curves would take on that GPU."""
    memory = sheet.memory_gib
    room = None if memory is None else USABLE * memory * 2**30
    held: dict[tuple[int, str], int] = {}
    seconds = dict.fromkeys(("start", "warm up", "plans", "traces", "captures", "blocks"), 0.0)
    cache = int(L2_FACTOR * sheet.values.get("l2_mib", ASSUMED_L2_BYTES >> 20)) << 20
    too_large: list[str] = []
    nodes = graphs = planned = output = flushed = 0
    for load in loads:
        us = [call_us(point, sheet) for point in load.points]
        calls, largest = calls_of_runs(us), max(load.points, key=_moved)
        cold = largest.flag.get("cache") == "cold"
        between = max(reuse_bytes, cache, calls * _moved(largest)) if cold else 0
        flushed = max(flushed, cache if cold else 0)
        _hold(held, largest, between)
        slots = len(load.points) + load.replicates
        share = slots / len(load.points)
        prepared = 1 + (processes - 1) * min(1.0, load.later / slots)
        for point in load.points:
            if room is not None and _moved(point) > room:
                too_large.append(str(point))
            output = max(output, _output_bytes(point))
        plans = sum(_planned(point, sheet.arch) for point in load.points)
        inside = ASSUMED_KERNELS * calls + OTHER_NODES
        planned, graphs, nodes = planned + plans, graphs + slots, nodes + slots * inside
        seconds["warm up"] += prepared * (slots * SLOT_S + share * sum(us) * _WARM / 1e6)
        seconds["plans"] += prepared * PLAN_S * plans
        seconds["captures"] += prepared * (GRAPH_S * slots + NODE_S * slots * inside)
        seconds["traces"] += TRACE_S
        seconds["blocks"] += load.blocks * share * sum(u * (calls + 1) for u in us) / 1e6
    seconds["start"] = START_S * processes
    peak = sum(held.values()) + flushed + 2 * output + CONTEXT_BYTES + NODE_BYTES * nodes
    return Forecast(
        sheet.name, sum(len(load.points) for load in loads),
        sum(len(load.points) + load.replicates for load in loads),
        sum(load.blocks for load in loads), graphs, nodes, planned, round(peak / 2**30, 2),
        memory,
        {part: round(s, 1) for part, s in seconds.items()}, tuple(too_large),
    )  # fmt: skip


_WARM = WARM_UP_CALLS + 2 * ROUGH_CALLS


def call_us(point: Point, sheet: Sheet) -> float:
    """About how long a call takes, by the data sheet."""
    roof = Roof(sheet.rates, sheet.values.get("gb_s", ASSUMED_GB_S))
    return max(SHORTEST_US, roof.call_us(point))


def _moved(point: Point) -> int:
    return operators.get(point.operator).bytes_moved(point)


def _planned(point: Point, arch: str) -> bool:
    """Whether cuDNN serves it: first of the backends from Hopper on, 16-bit types, no mask, head
    dims in multiples of 8 (ATen/native/transformers/cuda/sdp_utils.cpp)."""
    if point.operator != "attention" or point.dim["head_dim"] % 8 or point.dtype == "float32":
        return False
    asked, mask = point.flag["backend"], point.flag["mask"]
    return mask == "none" and (asked == "cudnn" or (asked == "auto" and arch in CUDNN_FIRST))


def _hold(held: dict[tuple[int, str], int], point: Point, between: int) -> None:
    """The arenas as the curve's largest point leaves them; ``between`` two uses of a weight's
    memory lie so many bytes."""
    import torch

    operator = operators.get(point.operator)
    asked: list[tuple[int, str]] = []

    def sized(shape: tuple[int, ...], dtype: torch.dtype, number: int) -> torch.Tensor:
        key = number, str(dtype)
        asked.append(key)
        held[key] = max(held.get(key, 0), prod(shape) * dtype.itemsize + between)
        return torch.empty(shape, dtype=dtype, device="meta")

    kind = "cuda" if operator.name.startswith("row_") else "meta"
    with operands_from(sized), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of backends that refuse tensors without memory
        try:
            operator.prepare(point, torch.device(kind))
        except Exception:  # what needs a device comes after the operands; some need Triton first
            if not asked:
                key = 1, point.dtype
                held[key] = max(held.get(key, 0), operator.bytes_moved(point) + between)


def _output_bytes(point: Point) -> int:
    """What a call allocates, at most: all that it moves beyond its operands is its result."""
    d = point.dim
    rows = d.get("M", d.get("tokens", d.get("q_len", 1) * d.get("heads", 1)))
    columns = d.get("N", d.get("head_dim", 1))
    return d.get("batch", 1) * rows * columns * max(4, itemsize(point))
