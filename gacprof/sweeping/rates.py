"""What a sample's time means as work: TFLOPS, GB/s, and the share of the device's roof."""

from __future__ import annotations

from statistics import median

from gacprof import operators
from gacprof.core.points import Environment, Sample
from gacprof.devices.roof import ROOFS


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
