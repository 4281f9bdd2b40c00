"""What is published of GPUs: SMs, memory, rates; and a time as a share of what they could do.

The numbers, all published figures, stand in ``datasheet.toml``. What no source was found for is
missing, not guessed; so is a share of the roof where a chip has none.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from statistics import median
from typing import Any

from gacprof import operators
from gacprof.core.errors import MapError
from gacprof.core.points import DTYPES, Environment, Point, Sample

REACHED = 0.4
"""The share of the roof that a call is taken to reach."""


@dataclass(frozen=True)
class Sheet:
    """One GPU. ``values`` are by key: ``sms``, ``l2_mib``, ``gb_s``, ``memory_gib``, and
    dense TFLOPS by dtype. ``drivers`` are the names that a driver gives the chip."""

    key: str
    name: str
    arch: str
    drivers: tuple[str, ...]
    values: Mapping[str, float] = field(compare=False)

    @property
    def sms(self) -> int | None:
        """Streaming multiprocessors; None where no source agrees."""
        return int(self.values["sms"]) if "sms" in self.values else None

    @property
    def memory_gib(self) -> int | None:
        return int(self.values["memory_gib"]) if "memory_gib" in self.values else None

    @property
    def rates(self) -> dict[str, float]:
        """Dense TFLOPS (TOPS for int8) by compute dtype."""
        return {name: rate for name, rate in self.values.items() if name in DTYPES}


@cache
def _tables() -> Mapping[str, Any]:
    text = (resources.files("gacprof.devices") / "datasheet.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def sheets() -> Mapping[str, Sheet]:
    """Every GPU of the table that has a sheet, by its short name."""
    data = {key: table for key, table in _tables().items() if "name" in table}
    return {key: _sheet(key, _inherited(data, key)) for key in data}


@cache
def chips() -> Mapping[str, tuple[str, int | None]]:
    """Architecture and GiB of memory of every GPU of the table, by its short name; those without a
    sheet too."""
    found = {key: (one.arch, one.memory_gib) for key, one in sheets().items()}
    return found | {key: (arch, gib) for key, (arch, gib) in _tables()["no-sheet"].items()}


def sheet(name: str) -> Sheet:
    """The GPU of that short name (``h100-pcie``; ``H100 PCIe`` and the driver's name do too).

    Raises :class:`MapError` naming those that there are.
    """
    plain = _plain(name)
    for known in sheets().values():
        if plain in {_plain(each) for each in (known.key, known.name, *known.drivers)}:
            return known
    raise MapError(f"no GPU '{name}' is known: there are {', '.join(sheets())}")


def _plain(name: str) -> str:
    short = name.lower().removeprefix("nvidia").replace("geforce", "").removesuffix("sxm")
    return "".join(c for c in short if c.isalnum()).removesuffix("sxm")


def _inherited(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    own = dict(data[key])
    like = own.pop("like", None)
    return own if like is None else _inherited(data, like) | own


def _sheet(key: str, table: dict[str, Any]) -> Sheet:
    name, arch, drivers = (table.pop(known) for known in ("name", "arch", "drivers"))
    values = {number: value for number, (value, _source) in table.items()}
    return Sheet(key, name, arch, tuple(drivers), values)


@dataclass(frozen=True)
class Roof:
    """``tflops`` (or TOPS) by compute dtype, without sparsity; ``gb_s`` of device memory."""

    tflops: Mapping[str, float]
    gb_s: float

    def least_us(self, flops: int, moved_bytes: int, dtype: str) -> float | None:
        """The time that the slower of arithmetic and memory takes; None for an unknown dtype."""
        if dtype not in self.tflops:
            return None
        return max(flops / self.tflops[dtype] / 1e6, moved_bytes / self.gb_s / 1e3)

    def call_us(self, point: Point) -> float:
        """About how long a call takes: at :data:`REACHED` of the roof, that of the fastest dtype
        for one that is not known."""
        fastest = max(self.tflops, key=self.tflops.__getitem__)
        dtype = point.dtype if point.dtype in self.tflops else fastest
        operator = operators.get(point.operator)
        least = self.least_us(operator.flops(point), operator.bytes_moved(point), dtype)
        return (least or 0.0) / REACHED


ROOFS: Mapping[str, Roof] = {
    driver: Roof(sheet.rates, sheet.values["gb_s"])
    for sheet in sheets().values()
    for driver in sheet.drivers
    if "gb_s" in sheet.values
}
"""Where the data sheet has a bandwidth; by the name that the driver gives the chip."""


def rates(sample: Sample, environment: Environment) -> dict[str, float | None]:
    """``median_us``, ``tflops`` (TOPS for int8), ``gb_s``, ``roof_share``; None where unknown.

    Bytes are what a call must at least move: a warm working set inside the cache may well
    exceed the memory's bandwidth and so the roof.
    """
    names = ("median_us", "tflops", "gb_s", "roof_share")
    operator = operators.OPERATORS.get(sample.point.operator)
    if not sample.timings_us or operator is None:
        return dict.fromkeys(names)
    latency = median(sample.timings_us)
    flops, moved = operator.flops(sample.point), operator.bytes_moved(sample.point)
    roof = ROOFS.get(environment.name)
    least = roof.least_us(flops, moved, sample.point.dtype) if roof else None
    share = None if least is None else least / latency
    values = (latency, flops / latency / 1e6, moved / latency / 1e3, share)
    return dict(zip(names, values, strict=True))
