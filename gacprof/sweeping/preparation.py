"""Count what a GPU has to prepare for a sweep before the first block, for a dry run."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from gacprof import operators
from gacprof.core.errors import ConfigError
from gacprof.core.points import Axis, Environment, Point
from gacprof.devices.cuda import L2_FACTOR, MAX_CALLS, MAX_COLD_SHARE
from gacprof.devices.memory import REPLICATE_OFFSET, moves, weight_bytes
from gacprof.hardware.datasheet import gpu_facts
from gacprof.kernels.attention import AttentionCall, backend, release
from gacprof.sweeping.engine import CurveSchedule


@dataclass(frozen=True)
class Preparation:
    """What each process of a sweep prepares."""

    captures: int  # CUDA graphs
    cudnn_plans: int  # at most: attention calls that cuDNN plans (0.44 s on a B200, FunASR#3704)
    memory_bytes: int  # at most, of operands


def preparation(axes: Sequence[Axis], gpu: Environment) -> Preparation:
    """Count what a CUDA GPU prepares for axes."""
    points = [*chain.from_iterable(map(axis.point, axis.sizes) for axis in axes)]
    plans = sum(planned_by_cudnn(point, gpu) for point in points)
    captures = sum(len(CurveSchedule(axis).slots) for axis in axes)
    return Preparation(captures, plans, operand_bytes(points, gpu))


def planned_by_cudnn(point: Point, gpu: Environment) -> bool:
    """Return whether cuDNN may serve the point: true where PyTorch's choice is not known."""
    chosen = point.flags.get("backend", "none")  # only attention has one
    if chosen != "auto":
        return chosen == "cudnn"
    dims = {name: size for name, size in point.dims.items() if name != "batch"}
    try:
        key, torch = gpu_facts(gpu.name).key, release(gpu.stack["torch"])
    except ConfigError:
        return True
    mask, causal = point.flags["mask"] != "none", bool(point.flags["causal"])
    call = AttentionCall(key, gpu.arch, torch, point.dtype, mask=mask, causal=causal, **dims)
    return backend(call) == "cudnn"


def operand_bytes(points: Sequence[Point], gpu: Environment) -> int:
    """Return the most memory that all operands take, in arenas as devices.memory has them."""
    most_cold = MAX_COLD_SHARE * int(gpu.facts["memory_bytes"])
    flushed = L2_FACTOR * int(gpu.facts["l2_bytes"])
    arenas: dict[tuple[int, str], int] = {}
    for point in points:
        reuse = max(flushed, int(min(most_cold, MAX_CALLS * weight_bytes(point))))
        for place, operand in enumerate(operators.get(point.operator).operands(point)):
            nbytes = operand.nbytes + REPLICATE_OFFSET + (reuse if moves(point, operand) else 0)
            key = place, operand.dtype
            arenas[key] = max(arenas.get(key, 0), nbytes)
    return sum(arenas.values())
