"""Architectures of GPUs: vendors and capabilities, and the alignment tiers of their kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gacprof.core.dtypes import ITEMSIZE, RESULTS
from gacprof.core.errors import ConfigError
from gacprof.core.files import shipped_table

ARCHITECTURES = Path(__file__).with_name("architectures.toml")
ARCHITECTURE_TABLES = shipped_table(ARCHITECTURES, dict[str, Any])


@dataclass(frozen=True)
class Architecture:
    """What kernels are compiled for. ``vendor`` is nvidia, amd, cpu or any (an open GPU), ``name``
    as that vendor writes it. ``capability`` is NVIDIA's compute capability times ten; None for all
    others."""

    vendor: str
    name: str
    capability: int | None = None


def architecture_named(name: str) -> Architecture:
    """Return the architecture of a name: ``sm90``, ``sm90a`` (sm90), ``gfx942``, ``cpu-amx``,
    ``any``."""
    capability = re.fullmatch(r"sm(\d+)[af]?", name)
    if capability:
        return Architecture("nvidia", f"sm{capability[1]}", int(capability[1]))
    if name.startswith("gfx"):
        return Architecture("amd", name)
    return Architecture(name.partition("-")[0], name)


@dataclass(frozen=True)
class Tier:
    """Kernels of one alignment: what N and K must be multiples of, in elements. ``mostly``: a size
    of a better tier is mostly, not surely, faster."""

    N: int
    K: int
    load: str
    kernels: str
    mostly: bool = False

    def __str__(self) -> str:
        return f"{self.load} ({self.kernels})"


@dataclass(frozen=True, eq=False)
class ArchitectureTiers:
    """The tiers of one architecture by dtype, the best first. In 16 bits a product of K from
    ``unsplit_k`` on with M·N·K below ``unsplit_work`` is several times slower, since K is not
    split; 0 where that isn't so. ``one_row`` are the kernels of products of one row."""

    tiers: Mapping[str, tuple[Tier, ...]]
    unsplit_k: int
    unsplit_work: int
    one_row: str


@cache
def tiers_of(arch: str) -> ArchitectureTiers:
    """Return the tiers of ``sm80``, ``sm90a`` …; raises :class:`ConfigError` where none are
    known."""
    rows = ARCHITECTURE_TABLES["architectures"]
    name = architecture_named(arch).name
    if name not in rows:
        raise ConfigError(f"no kernels' tiers are known for {name}, only for {', '.join(rows)}")
    row = rows[name]
    like = rows.get(row.get("like"), {})
    tiers: dict[str, tuple[Tier, ...]] = {}
    for dtype, names in (like.get("tiers", {}) | row.get("tiers", {})).items():
        required = ARCHITECTURE_TABLES["required"].get(dtype, 1)
        for name in names:
            kernel = ARCHITECTURE_TABLES["tiers"][name]
            n = kernel.get("n_bytes", kernel["bytes"]) // ITEMSIZE[RESULTS[dtype]]
            k = kernel["bytes"] // ITEMSIZE[dtype]
            sides = max(n, required), max(k, required)
            tier = Tier(*sides, kernel["load"], kernel["kernels"], kernel.get("mostly", False))
            tiers[dtype] = (*tiers.get(dtype, ()), tier)
    unsplit = row.get("unsplit", {})
    one_row = row.get("one_row", "gemv")
    return ArchitectureTiers(tiers, unsplit.get("k", 0), unsplit.get("work", 0), one_row)
