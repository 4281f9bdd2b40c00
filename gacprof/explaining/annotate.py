"""A map's cliffs, each with its cause where there is evidence for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.build import mechanism_of_kernels
from gacprof.cliffmap.schema import Cliff, Curve
from gacprof.core.points import Point, Sample
from gacprof.explaining.case import by_dim, points_of
from gacprof.explaining.causes import Cause, Explanation, Where, explain_edge
from gacprof.kernels.evidence import Counters, KernelCounters, read_counters, read_implementations

MOST = 2
"""Causes that a cliff names."""
LEAST = 0.2
"""Share of the difference that a cause must account for to be named."""
NO_REASON = ("unexplained", "residue")
"""Kinds that say that something is so, not why."""


def build_explained(samples: Path, name: str | None = None) -> CliffMap:
    """The map of a sweep's folder (or of ``samples.parquet`` in it), with causes.

    A point's mechanism comes from its kernels, else from what a CPU's libraries reported.
    Raises :class:`MeasurementError` for a folder that is none or garbled evidence,
    :class:`MapError` for samples that make no map.
    """
    from gacprof.sweeping import build_map_of

    folder = samples if samples.is_dir() else samples.parent
    reported = read_implementations(folder)

    def mechanism_of(sample: Sample) -> str | None:
        mechanism = mechanism_of_kernels(sample)
        if mechanism is None and sample.point in reported:
            mechanism = reported[sample.point].mechanism
        return mechanism

    return annotate(build_map_of(samples, name, mechanism_of), read_counters(folder))


def annotate(cliff_map: CliffMap, counters: Counters | None = None) -> CliffMap:
    """The same map with the causes of its cliffs filled in; nothing else changes.

    A cliff that the kernels, counters or rules do not explain keeps what it says. What only
    rules explain is marked ``(by rules)``.
    """
    file = cliff_map.file
    where = Where.of_map(file)
    curves = [
        _annotated(curve, where, counters or {}) if curve.cliffs else curve for curve in file.curves
    ]
    return CliffMap(file.model_copy(update={"curves": curves}))


def edge_points(curve: Curve) -> list[Point]:
    """The points that deserve counters: both sides of every cliff, and the dims next to them."""
    dims, points = curve.points.d, points_of(curve)
    chosen: set[int] = set()
    for cliff in curve.cliffs:
        for edge in (cliff.before, cliff.after):
            at = dims.index(edge)
            chosen.update(range(max(0, at - 1), min(len(dims), at + 2)))
    return [points[i] for i in sorted(chosen)]


def _annotated(curve: Curve, where: Where, counters: Counters) -> Curve:
    known = by_dim(curve, counters)
    causes = [(cliff, _cause(curve, cliff, where, known)) for cliff in curve.cliffs]
    cliffs = [c.model_copy(update={"cause": cause}) if cause else c for c, cause in causes]
    return curve.model_copy(update={"cliffs": cliffs})


def _cause(
    curve: Curve, cliff: Cliff, where: Where, counters: Mapping[int, Sequence[KernelCounters]]
) -> str | None:
    """What makes the slower side slower; where that is the smaller dim, it is named."""
    fast, slow = (cliff.before, cliff.after) if cliff.jump > 0 else (cliff.after, cliff.before)
    leading = _leading(explain_edge(curve, fast, slow, where, counters))[:MOST]
    if not leading:
        return None
    sentences = (c.sentence + (" (by rules)" if c.basis == "rules" else "") for c in leading)
    return ("" if cliff.jump > 0 else f"at {slow}: ") + "; ".join(sentences)


def _leading(explanation: Explanation) -> list[Cause]:
    """The causes of a difference between two dims, largest first, one a kind.

    A kind that burdens both dims counts with what is left of it; rules cannot tell which of
    two burdens is the larger, so then they give no cause.
    """
    excess = 1 - explanation.reference_us / explanation.latency_us
    kept = []
    for kind in dict.fromkeys(cause.kind for cause in explanation.causes):
        causes = [cause for cause in explanation.causes if cause.kind == kind]
        shares = [cause.share for cause in causes if cause.share is not None]
        opposed = any(share < 0 for share in shares)
        if kind in NO_REASON or (opposed and any(c.basis == "rules" for c in causes)):
            continue
        if not shares or sum(shares) >= LEAST * excess:
            kept.append(causes[0])
    return kept
