"""What is measured: points, the axes they stand on, blocks of timings, and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

MAX_DIM = 2**31 - 1  # cuBLAS and oneDNN take dims as 32-bit signed integers

Flag = str | int | bool


def _text(operator: str, dims: Mapping[str, int], dtype: str, flags: Mapping[str, Flag]) -> str:
    sizes = [f"{name}={size}" for name, size in sorted(dims.items())]
    options = [f"{name}={value}" for name, value in sorted(flags.items())]
    return " ".join([operator, *sizes, dtype, *options])


@dataclass(frozen=True)
class Point:
    """One thing to time: an operator at given dims, in a dtype, under given flags.

    ``dims`` are positive integers by their field name (``M``, ``N``, ``K``, ``head_dim``);
    ``flags`` are everything else that selects a code path (``bias``, ``causal``, ``cache``).
    """

    operator: str
    dims: Mapping[str, int]
    dtype: str
    flags: Mapping[str, Flag] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """``linear K=96 M=1 N=1024 bfloat16 bias=False``: equal for equal points."""
        return _text(self.operator, self.dims, self.dtype, self.flags)

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return self.key


@dataclass(frozen=True)
class Axis:
    """A line of points: one ``dim`` of an operator takes ``sizes`` (ascending), the ``fixed`` dims
    stay."""

    operator: str
    dim: str
    sizes: tuple[int, ...]
    fixed: Mapping[str, int]
    dtype: str
    flags: Mapping[str, Flag] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """``linear K M=1 N=1024 bfloat16 bias=False``: what names the axis, whatever its sizes."""
        return _text(f"{self.operator} {self.dim}", self.fixed, self.dtype, self.flags)

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return self.key

    def point(self, size: int) -> Point:
        return Point(self.operator, {**self.fixed, self.dim: size}, self.dtype, self.flags)


@dataclass(frozen=True)
class Block:
    """One timing of every size of an axis (by its key), in random order, in one process.

    A size that stands twice in ``order`` is an A/A replicate. ``times_us`` are nan where a call
    lost its core or the device was throttled. ``conditions`` are a GPU's: ``clock_mhz``, the SM
    clock at the start, ``calls`` of a graph, and ``constant_us``, taken off a graph's time.
    """

    axis: str
    process: int
    order: tuple[int, ...]
    times_us: tuple[float, ...]
    conditions: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class KernelRun:
    """A kernel, copy or memset of a call. ``us`` is its duration by the tracer, which leaves out
    what the device needs to start it; nan on a virtual GPU."""

    name: str
    us: float


@dataclass(frozen=True)
class Environment:
    """A device and the software that drives it, ``stack``, by component.

    ``kind`` is ``cpu``, ``cuda`` or ``virtual``; ``name`` as the device calls itself; ``arch`` is
    ``sm90`` or a CPU's vector extension. ``facts`` are ``sms``, ``l2_bytes``, ``cores`` and so on.
    """

    kind: str
    name: str
    arch: str
    facts: Mapping[str, str | int | float] = field(default_factory=dict)
    stack: Mapping[str, str] = field(default_factory=dict)
