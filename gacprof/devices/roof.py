"""A time as work done: TFLOPS, GB/s, and the share of what the chip could do at best.

Peak rates and memory bandwidths are published figures (:mod:`gacprof.devices.datasheet`). A share
of the roof is missing for other chips.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from gacprof import operators
from gacprof.core.points import Environment, Sample
from gacprof.devices.datasheet import sheets


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
