"""Models of the shipped tables of GPUs and of virtual ones: every word that they may hold."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

Sourced = tuple[float, str]
"""A number and the key of its source."""


class GpuRow(TypedDict, total=False):
    """A GPU; the words are explained in ``gpus.toml``."""

    like: str
    name: str
    arch: str
    drivers: list[str]
    memory_gib: Sourced
    sms: Sourced
    l2_mib: Sourced
    gb_s: Sourced
    float16: Sourced
    bfloat16: Sourced
    tf32: Sourced
    float32: Sourced
    int8: Sourced
    float8_e4m3: Sourced
    virtual: dict[str, tuple[int, str]]


class GpuTables(TypedDict):
    """``gpus.toml``; ``no_sheet`` are architectures of GPUs of which nothing else is said."""

    sources: dict[str, str]
    gpus: dict[str, GpuRow]
    no_sheet: dict[str, str]
    attributes: dict[str, int]


class TierRow(TypedDict):
    """Kernels of one alignment: ``bytes`` that rows are a multiple of, those of results another
    number by ``n_bytes``."""

    bytes: int
    n_bytes: NotRequired[int]
    mostly: NotRequired[bool]
    load: str
    kernels: str
    why: str
    source: str


class UnsplitRow(TypedDict):
    """Products that cuBLAS does not split: K from ``k`` on, below ``work`` = M·N·K."""

    k: int
    work: int
    source: str


class ArchitectureRow(TypedDict, total=False):
    """An architecture: names of tiers by dtype, the widest first; ``like`` has those not said."""

    like: str
    one_row: str
    tiers: dict[str, list[str]]
    unsplit: UnsplitRow
    virtual: dict[str, tuple[int, str]]


class ArchitectureTables(TypedDict):
    """``architectures.toml``; its words are explained there."""

    open_capabilities: list[int]
    sources: dict[str, str]
    required: dict[str, int]
    tiers: dict[str, TierRow]
    architectures: dict[str, ArchitectureRow]


class LibraryRow(TypedDict):
    """A stand-in library of ``libraries.toml``; its words are explained there."""

    sources: list[str]
    libraries: list[str]
    headers: list[str]
    names: str
    not_supported: int
    succeed: NotRequired[list[str]]
    forwards: NotRequired[dict[str, str]]
