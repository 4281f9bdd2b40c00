"""What a sweep of a planted device leaves: blocks of one curve, each in an order of its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from math import exp

from gacprof.core.points import Block, Call, Point, PointNote


def linear(axis: str, dims: Iterable[int], dtype: str = "float16", **fixed: int) -> list[Point]:
    """Points of a product over one axis; M=64, N=512, K=512 beside it unless told otherwise."""
    sizes = {"M": 64, "N": 512, "K": 512} | fixed
    return [Point.of("linear", {**sizes, axis: d}, dtype, {"bias": False}) for d in dims]


def planted(
    points: Iterable[Point],
    axis: str,
    latency: Callable[[int], float],
    *,
    count: int = 6,
    processes: int = 2,
    replicates: Collection[int] = (),
    spread: float = 0.0,
    level: float = 0.0,
    seed: int = 0,
    timer: str = "recorded",
) -> list[Block]:
    """``count`` blocks in which each point takes ``latency(d)`` µs.

    Each call is off by a factor of its own (log-normal, ``spread``), each block by one that all
    its calls share (``level``). Dims of ``replicates`` have a hidden A/A replicate.
    """
    draw = random.Random(seed)
    slots = [(point, False) for point in points]
    slots += [(point, True) for point, _ in slots if point.dim[axis] in replicates]
    found = []
    for number in range(count):
        draw.shuffle(slots)
        block = draw.gauss(0, level)
        calls = tuple(
            Call(p, again, latency(p.dim[axis]) * exp(block + draw.gauss(0, spread)))
            for p, again in slots
        )
        process = number * processes // count
        found.append(Block(number, process, axis, timer, calls, taken_at=float(number)))
    return found


def numbered(*several: Iterable[Block]) -> list[Block]:
    """The blocks of several curves, as if one sweep had made them in turns."""
    lists = [list(blocks) for blocks in several]
    longest = max(map(len, lists))
    turns = [blocks[i] for i in range(longest) for blocks in lists if i < len(blocks)]
    return [replace(block, number=number) for number, block in enumerate(turns)]


def notes(points: Iterable[Point], kernel: Callable[[Point], str]) -> dict[Point, PointNote]:
    """One kernel for each point."""
    return {point: PointNote(point, (kernel(point),)) for point in points}
