"""A sweep's folder as a map whose tiers and cliffs are named by the evidence in the folder."""

from __future__ import annotations

from pathlib import Path

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.build import mechanism_of_kernels
from gacprof.core.points import Sample
from gacprof.explain.annotate import annotate
from gacprof.kernels.beside import read_counters, read_implementations
from gacprof.sweeping import build_map_of


def build_explained(samples: Path, name: str | None = None) -> CliffMap:
    """The map of a sweep's folder (or of ``samples.parquet`` in it), with causes.

    A point's mechanism is told by its kernels, else by what a CPU's libraries reported of it.
    Raises :class:`MeasurementError` for a folder that is none or garbled evidence,
    :class:`MapError` for samples that make no map.
    """
    folder = samples if samples.is_dir() else samples.parent
    reported = read_implementations(folder)

    def mechanism_of(sample: Sample) -> str | None:
        told = mechanism_of_kernels(sample)
        if told is None and sample.point in reported:
            told = reported[sample.point].mechanism
        return told

    return annotate(build_map_of(samples, name, mechanism_of), read_counters(folder))
