"""Published facts of GPUs, each with its source in ``datasheet.toml``. A value that no source was
found for is missing, not guessed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from gacprof.core.errors import ConfigError
from gacprof.core.points import DTYPES


@dataclass(frozen=True)
class GpuFacts:
    """A GPU of the data sheet. ``drivers`` are the names that a driver gives the chip; ``tflops``
    are dense rates by compute dtype (TOPS for int8). None where no source agrees."""

    key: str
    name: str
    arch: str
    drivers: tuple[str, ...]
    memory_gib: float
    sms: int | None
    l2_mib: float | None
    gb_s: float | None
    tflops: Mapping[str, float]


def _read() -> dict[str, GpuFacts]:
    text = resources.files("gacprof.devices").joinpath("datasheet.toml").read_text("utf-8")
    tables = tomllib.loads(text)
    return {key: _facts(key, tables) for key, table in tables.items() if "name" in table}


def _facts(key: str, tables: Mapping[str, Any]) -> GpuFacts:
    table = dict(tables[key])
    if "like" in table:
        table = tables[table["like"]] | table
    numbers = {name: value[0] for name, value in table.items() if isinstance(value, list)}
    return GpuFacts(
        key,
        table["name"],
        table["arch"],
        drivers=tuple(table["drivers"]),
        memory_gib=numbers["memory_gib"],
        sms=numbers.get("sms"),
        l2_mib=numbers.get("l2_mib"),
        gb_s=numbers.get("gb_s"),
        tflops={name: numbers[name] for name in DTYPES if name in numbers},
    )


GPUS: Mapping[str, GpuFacts] = _read()
"""The GPUs of the data sheet by short name."""


def gpu_facts(name: str) -> GpuFacts:
    """The GPU of that name: ``h100-pcie``, ``H100 PCIe``, or the driver's name of the chip.

    Raises
    ------
    ConfigError
        For a GPU that the data sheet lacks; lists those it has.
    """
    plain_name = _plain(name)
    for facts in GPUS.values():
        if plain_name in [_plain(n) for n in (facts.key, facts.name, *facts.drivers)]:
            return facts
    raise ConfigError(f"no GPU '{name}' is known: use one of {', '.join(GPUS)}")


def _plain(name: str) -> str:
    short = name.lower().replace("nvidia", "").replace("geforce", "").replace("sxm", "")
    return "".join(letter for letter in short if letter.isalnum())
