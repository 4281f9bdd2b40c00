"""Architectures of GPUs: vendors and capabilities, and the alignment tiers of their kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from gacprof.core.dtypes import ITEMSIZE
from gacprof.core.errors import ConfigError
from gacprof.core.files import shipped_table

ARCHITECTURES = Path(__file__).with_name("architectures.toml")


class TierRow(TypedDict):
    """Kernels of one alignment: ``bytes`` that rows are a multiple of; all else is for people."""

    bytes: int
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
    tiers: dict[str, list[str]]
    unsplit: UnsplitRow
    virtual: dict[str, tuple[int, str]]


class ArchitectureTables(TypedDict):
    """``architectures.toml``; its words are explained there."""

    sure_bytes: int
    open_capabilities: list[int]
    sources: dict[str, str]
    required: dict[str, int]
    tiers: dict[str, TierRow]
    architectures: dict[str, ArchitectureRow]


ARCHITECTURE_TABLES = shipped_table(ARCHITECTURES, ArchitectureTables)


@dataclass(frozen=True)
class Architecture:
    """What kernels are compiled for.

    ``vendor`` is nvidia, amd, cpu or any (an open GPU), ``name`` as that vendor writes it.
    ``capability`` is NVIDIA's compute capability times ten; None for all others.
    """

    vendor: str
    name: str
    capability: int | None = None


def architecture_named(name: str) -> Architecture:
    """The architecture of a name: ``sm90``, ``sm90a`` (sm90), ``gfx942``, ``cpu-amx``, ``any``."""
    capability = re.fullmatch(r"sm(\d+)[af]?", name)
    if capability:
        return Architecture("nvidia", f"sm{capability[1]}", int(capability[1]))
    if name.startswith("gfx"):
        return Architecture("amd", name)
    return Architecture(name.partition("-")[0], name)


def architecture_of(chip: Any) -> Architecture:
    """The architecture of torch's properties of a device, or of anything with NVIDIA's ``major``
    and ``minor``."""
    return architecture_named(f"sm{chip.major}{chip.minor}")


@dataclass(frozen=True)
class Tier:
    """Kernels of one alignment: N and K must be a multiple of ``multiple``, in elements."""

    multiple: int
    load: str
    kernels: str

    def __str__(self) -> str:
        return f"{self.load} ({self.kernels})"


@dataclass(frozen=True)
class ArchitectureTiers:
    """The tiers of one architecture by dtype, the best first.

    ``sure`` is the multiple, in elements, from which a size of the best tier was published to be
    safe. In 16 bits a product of K from ``unsplit_k`` on with M·N·K below ``unsplit_work`` is
    several times slower, since K is not split; 0 where that isn't so.
    """

    arch: str
    tiers: Mapping[str, tuple[Tier, ...]]
    sure: Mapping[str, int]
    unsplit_k: int = 0
    unsplit_work: int = 0


@cache
def tiers_of(arch: str) -> ArchitectureTiers:
    """The tiers of ``sm80``, ``sm90a`` and so on. Raises :class:`ConfigError` for an architecture
    without any."""
    rows = ARCHITECTURE_TABLES["architectures"]
    name = architecture_named(arch).name
    if name not in rows:
        raise ConfigError(f"no tiers are known of '{arch}', of {', '.join(rows)} they are")
    row = rows[name]
    like = rows[row["like"]]["tiers"] if "like" in row else {}
    names_by_dtype = like | row.get("tiers", {})
    tiers = {}
    for dtype, names in names_by_dtype.items():
        tiers[dtype] = tuple(_tier(ARCHITECTURE_TABLES["tiers"][name], dtype) for name in names)
    sure = {dtype: ARCHITECTURE_TABLES["sure_bytes"] // ITEMSIZE[dtype] for dtype in tiers}
    unsplit = row.get("unsplit") or UnsplitRow(k=0, work=0, source="")
    return ArchitectureTiers(name, tiers, sure, unsplit["k"], unsplit["work"])


def _tier(row: TierRow, dtype: str) -> Tier:
    """A row of the table in elements of a dtype, which also may require a multiple by itself."""
    required = ARCHITECTURE_TABLES["required"].get(dtype, 1)
    return Tier(max(row["bytes"] // ITEMSIZE[dtype], required), row["load"], row["kernels"])
