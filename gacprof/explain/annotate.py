"""A map's cliffs, each with its cause where there is evidence for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.schema import Cliff, Curve
from gacprof.core.points import Point
from gacprof.explain.causes import Cause, Explanation, Where, explain_edge
from gacprof.explain.edges import points_of
from gacprof.kernels.ncu import KernelCounters

MOST = 2
"""Causes that a cliff names."""
LEAST = 0.2
"""Share of the difference that a cause must account for to be named."""
NO_REASON = ("unexplained", "residue")
"""Kinds that say that something is so, not why."""

Counters = Mapping[Point, Sequence[KernelCounters]]


def annotate(cliff_map: CliffMap, counters: Counters | None = None) -> CliffMap:
    """The same map with the causes of its cliffs filled in; nothing else changes.

    A cliff that the kernels, counters or rules do not explain keeps what it says. What only
    rules tell is marked ``(by rules)``.
    """
    file = cliff_map.file
    where = Where.of_map(file)
    curves = [_annotated(curve, where, counters or {}) for curve in file.curves]
    return CliffMap(file.model_copy(update={"curves": curves}))


def _annotated(curve: Curve, where: Where, counters: Counters) -> Curve:
    if not curve.cliffs:
        return curve
    known = {p.dim[curve.axis]: c for p in points_of(curve) if (c := counters.get(p))}
    cliffs = []
    for cliff in curve.cliffs:
        cause = _cause(curve, cliff, where, known)
        cliffs.append(cliff.model_copy(update={"cause": cause}) if cause else cliff)
    return curve.model_copy(update={"cliffs": cliffs})


def _cause(
    curve: Curve, cliff: Cliff, where: Where, counters: Mapping[int, Sequence[KernelCounters]]
) -> str | None:
    """What makes the slower side slower; where that is the smaller dim, it is named."""
    fast, slow = (cliff.before, cliff.after) if cliff.jump > 0 else (cliff.after, cliff.before)
    told = explain_edge(curve, fast, slow, where, counters)
    leading = [_words(cause) for cause in _leading(told)[:MOST]]
    if not leading:
        return None
    return ("" if cliff.jump > 0 else f"at {slow}: ") + "; ".join(leading)


def _leading(told: Explanation) -> list[Cause]:
    """The causes of a difference between two dims, largest first, one a kind.

    A kind that burdens both dims counts with what is left of it; rules cannot tell which of
    two burdens is the larger, so then they give no cause.
    """
    excess = 1 - told.reference_us / told.latency_us
    kept = []
    for kind in dict.fromkeys(cause.kind for cause in told.causes):
        causes = [cause for cause in told.causes if cause.kind == kind]
        shares = [cause.share for cause in causes if cause.share is not None]
        opposed = any(share < 0 for share in shares)
        if kind in NO_REASON or (opposed and any(c.basis == "rules" for c in causes)):
            continue
        if not shares or sum(shares) >= LEAST * excess:
            kept.append(causes[0])
    return kept


def _words(cause: Cause) -> str:
    return cause.sentence + (" (by rules)" if cause.basis == "rules" else "")
