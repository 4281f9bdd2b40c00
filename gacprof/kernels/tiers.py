"""Alignment tiers of matrix products by GPU generation: ``tiers.toml`` as values.

A tier is a group of kernels that need rows of a multiple of so many bytes. The first tier of a
data type is the widest alignment and the best.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from gacprof.core.errors import ConfigError
from gacprof.core.points import BYTES_PER_ELEMENT


@dataclass(frozen=True)
class Tier:
    """Kernels of one alignment. ``multiple`` is what N and K must be a multiple of, in elements;
    the other fields are for people."""

    multiple: int
    load: str
    kernels: str
    why: str
    source: str

    def __str__(self) -> str:
        return f"{self.load} ({self.kernels})"


@dataclass(frozen=True)
class ArchitectureTiers:
    """The tiers of one architecture by dtype, the best first; ``sure`` is the multiple, in
    elements, from which a size of the best tier was published to be safe."""

    arch: str
    tiers: Mapping[str, tuple[Tier, ...]]
    sure: Mapping[str, int]


@cache
def _tables() -> Mapping[str, Any]:
    return tomllib.loads(files("gacprof.kernels").joinpath("tiers.toml").read_text("utf-8"))


@cache
def tiers_of(arch: str) -> ArchitectureTiers:
    """The tiers of ``sm80``, ``sm90a`` and so on. Raises :class:`ConfigError` for an architecture
    without any."""
    tables = _tables()
    architectures = tables["architectures"]
    plain = arch.rstrip("af")
    if plain not in architectures:
        raise ConfigError(f"no tiers are known of '{arch}', of {', '.join(architectures)} they are")
    row = architectures[plain]
    if "like" in row:
        row = {**architectures[row["like"]], **row}
        del row["like"]
    tiers = {dtype: tuple(_tier(name, dtype) for name in names) for dtype, names in row.items()}
    sure = {dtype: tables["sure_bytes"] // BYTES_PER_ELEMENT[dtype] for dtype in row}
    return ArchitectureTiers(plain, tiers, sure)


def _tier(name: str, dtype: str) -> Tier:
    """A row of the table in elements of a dtype, which also may require a multiple by itself."""
    tables = _tables()
    row = tables["tiers"][name]
    multiple = max(1, row["bytes"] // BYTES_PER_ELEMENT[dtype])
    multiple = max(multiple, tables["required"].get(dtype, 1))
    source = tables["sources"][row["source"]]
    return Tier(multiple, row["load"], row["kernels"], row["why"], source)
