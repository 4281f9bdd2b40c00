"""Points, blocks, samples, environments: the plain values that the whole package uses.

A *point* is one thing to measure. A *block* calls the points of a curve once each, in random
order. A *sample* is all that a run knows of a point. An *environment* is the device and software
stack that it was measured on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from gacprof.core.files import Record

DTYPES = ("float32", "tf32", "bfloat16", "float16", "float8_e4m3", "int8")
"""Compute types a point may ask for. ``tf32`` is float32 storage with TF32 tensor cores."""

BYTES_PER_ELEMENT = {
    "float64": 8,
    "float32": 4,
    "tf32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3": 1,
    "int8": 1,
}

MAX_DIM = 2**31 - 1
"""cuBLAS and oneDNN take dims as 32-bit signed integers."""

Flag = str | int | bool


TOKENS = ("M", "q_len", "tokens", "rows")
"""Dims that count tokens, whatever the operator."""


@dataclass(frozen=True)
class Point:
    """One thing to measure: an operator at given dims, in a dtype, under given flags.

    ``dims`` are positive integers by their field name (``M``, ``N``, ``K``, ``head_dim`` …);
    ``flags`` are everything else that selects a code path (``bias``, ``causal``, ``mask``,
    ``cache``). Both are kept sorted by name so that equal points are equal values.
    """

    operator: str
    dims: tuple[tuple[str, int], ...]
    dtype: str
    flags: tuple[tuple[str, Flag], ...] = ()

    @classmethod
    def of(
        cls,
        operator: str,
        dims: Mapping[str, int],
        dtype: str,
        flags: Mapping[str, Flag] | None = None,
    ) -> Point:
        return cls(
            operator, tuple(sorted(dims.items())), dtype, tuple(sorted((flags or {}).items()))
        )

    @cached_property
    def dim(self) -> dict[str, int]:
        return dict(self.dims)

    @cached_property
    def flag(self) -> dict[str, Flag]:
        return dict(self.flags)

    @cached_property
    def id(self) -> str:
        """Sixteen hex digits, stable across processes and versions."""
        text = json.dumps([self.operator, self.dims, self.dtype, self.flags])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def tokens(self) -> int:
        """How many tokens it works on, by the dim that says so: 1 is a decode step's. 0 where none
        does."""
        return next((self.dim[name] for name in TOKENS if name in self.dim), 0)

    def with_dim(self, axis: str, size: int) -> Point:
        return Point.of(self.operator, self.dim | {axis: size}, self.dtype, self.flag)

    def __str__(self) -> str:
        dims = " ".join(f"{name}={size}" for name, size in self.dims)
        flags = " ".join(f"{name}={value}" for name, value in self.flags)
        return f"{self.operator} {dims} {self.dtype} {flags}".strip()


def curve_key(point: Point, axis: str) -> str:
    """The key of the curve over ``axis`` that a point stands on."""
    fixed = " ".join(f"{name}={size}" for name, size in point.dims if name != axis)
    flags = " ".join(f"{name}={value}" for name, value in point.flags)
    return f"{point.operator} {axis} {fixed} {point.dtype} {flags}".strip()


class Slot(NamedTuple):
    """One entry of a curve's blocks. A ``replicate`` is a hidden A/A replicate: the same point
    again, at another address."""

    point: Point
    replicate: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One timed call of a slot (µs). A ``disturbed`` one waited for a core meanwhile, which other
    work had."""

    point: Point
    replicate: bool
    us: float
    disturbed: bool = False

    @property
    def slot(self) -> Slot:
        return Slot(self.point, self.replicate)


LEVEL = ""
"""The ``axis`` of a level block."""


@dataclass(frozen=True)
class Block:
    """Calls of one curve's points, in the order made: the raw data of a sweep. A *level block*
    holds one call of each of several curves at the same number of tokens: how they compare when
    they are called in turn, as in one step of a model.

    ``number`` counts the run's blocks, ``process`` the fresh processes that they ran in.
    ``axis`` is the swept axis of the curve that the block belongs to, or :data:`LEVEL`. Clocks,
    temperature and power are read at the block's end; None where they cannot be read.
    ``throttled`` says why the device ran below its clock; empty if it did not. ``device`` names
    one of several equal devices; empty where there is one only.
    """

    number: int
    process: int
    axis: str
    timer: str
    calls: tuple[Call, ...]
    taken_at: float = 0.0
    throttled: str = ""
    sm_clock_mhz: int | None = None
    mem_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    device: str = ""


@dataclass(frozen=True)
class Sample:
    """All that a run knows of one point: the times of its undisturbed calls, replicates among
    them, in the order made (µs).

    ``status`` is ``ok``, ``throttled``, or ``failed`` where there is no time; ``reason`` says
    why. ``axes`` are the swept axes that it stands on, ``kernels`` what one call launches.
    """

    point: Point
    axes: tuple[str, ...]
    timings_us: tuple[float, ...]
    timer: str
    status: str = "ok"
    reason: str = ""
    kernels: tuple[str, ...] = ()
    sm_clock_mhz: int | None = None
    mem_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None


@dataclass(frozen=True)
class PointNote:
    """What a run knows of a point beside its times: kernels that one call launches, why it failed
    if it did, and what a reader should know of how it was timed."""

    point: Point
    kernels: tuple[str, ...] = ()
    failed: str = ""
    remark: str = ""


@dataclass(frozen=True)
class Environment(Record):
    """A device and the software stack that drives it, as plain strings.

    ``device`` identifies the chip (``kind``, ``name``, ``arch``, sizes in its ``facts``);
    ``stack`` holds versions by component name, ``None`` where a component is absent.
    """

    kind: str
    name: str
    arch: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    stack: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Environment:
        """Of :meth:`as_dict`. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything
        else."""
        kind, name, arch = (data[key] for key in ("kind", "name", "arch"))
        facts, stack = dict(data.get("facts", {})), dict(data.get("stack", {}))
        texts = [kind, name, arch, *facts, *stack, *(v for v in stack.values() if v is not None)]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("kind, name, arch and versions are texts")
        return cls(kind, name, arch, facts, stack)
