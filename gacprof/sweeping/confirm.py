"""Edges confirmed by measuring their two sides in turns: A, B, A, B, …

In a sweep the sides of an edge are visited minutes apart, so that a drift of the clock can
pass for a cliff. In turns both see the same drift, and each pair's ratio is free of it. The
verdict rests on an order statistic of these ratios, as the median's interval does. The map
built from the run then holds only such edges as their pairs bear out (cliffmap/cliff.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gacprof import operators
from gacprof.cliffmap import CliffMap
from gacprof.measure.device import Device
from gacprof.measure.stats import median, median_interval
from gacprof.points import Point
from gacprof.sweeping.order import Visit
from gacprof.sweeping.resuming import check_same_device
from gacprof.sweeping.run import Progress, suite_of
from gacprof.sweeping.store import RunFolder, read_header
from gacprof.sweeping.suite import Timing
from gacprof.sweeping.to_map import build_map_of
from gacprof.sweeping.verdicts import Verdict, write_verdicts
from gacprof.sweeping.visiting import measure_visit

PAIRS = 6
"""The fewest pairs whose range covers the median ratio with at least 95 % (96.9 %)."""
MOST_PAIRS = 24
"""Of six pairs none may disagree, and one that was disturbed does: while a verdict is
ambiguous the pairs are doubled. Of 24 six may."""
AT_MOST = 64
"""Edges confirmed in one go, the largest jumps of each curve first."""


@dataclass(frozen=True)
class Edge:
    """Two neighbouring points of a curve, and the jump of latency from the first to the second."""

    before: Point
    after: Point
    jump: float


def confirm_run(
    folder: str | Path,
    device: Device,
    *,
    at_most: int = AT_MOST,
    progress: Progress | None = None,
) -> list[Verdict]:
    """Confirm the edges that a finished run shows, and store the verdicts beside its samples.

    Raises :class:`MeasurementError` where the folder was measured on another device or stack.
    """
    path = Path(folder)
    check_same_device(path, read_header(path), device.environment)
    found = edges_of(build_map_of(path), at_most)
    store = RunFolder(path)
    store.lock()
    try:
        device.burn_in()
        verdicts = []
        for number, edge in enumerate(found):
            if progress:
                progress(number, len(found), edge.after)
            verdicts.append(confirm(edge, device, suite_of(path).timing))
        write_verdicts(path, verdicts)
    finally:
        store.close()
    return verdicts


def edges_of(cliff_map: CliffMap, at_most: int) -> list[Edge]:
    """The jumps of all curves as pairs of points, the largest of each curve first.

    Those that pairs refuted earlier are among them: they are measured again, not forgotten.
    """
    by_rank: list[tuple[int, float, Edge]] = []
    for curve in cliff_map.curves:
        largest = sorted([*curve.cliffs, *curve.refuted], key=lambda cliff: -abs(cliff.jump))
        for rank, cliff in enumerate(largest):
            before, after = (
                operators.point(
                    curve.operator, {**curve.fixed, curve.axis: d}, curve.dtype, curve.flags
                )
                for d in (cliff.before, cliff.after)
            )
            by_rank.append((rank, -abs(cliff.jump), Edge(before, after, cliff.jump)))
    return [edge for _, _, edge in sorted(by_rank, key=lambda entry: entry[:2])[:at_most]]


def confirm(edge: Edge, device: Device, timing: Timing) -> Verdict:
    """Measure both sides in turns until the pairs agree or are too many; say which is faster."""
    measure = getattr(device, "measure_visit", None) or partial(measure_visit, device)
    ratios: list[float] = []
    for number in range(MOST_PAIRS):
        if len(ratios) in (PAIRS, 2 * PAIRS) and judge(ratios) != "ambiguous":
            break
        sides = [
            measure(Visit(point, number, False), (), timing) for point in (edge.before, edge.after)
        ]
        failed = [side for side in sides if side.status == "failed"]
        if failed:
            return _verdict(edge, "failed", ratios=(), reason=failed[0].reason)
        before, after = (median(side.timings_us) for side in sides)
        ratios.append(after / before)
    return _verdict(edge, judge(ratios), ratios)


def judge(ratios: Sequence[float]) -> str:
    """``slower`` or ``faster`` where the median ratio's 95 % interval lies on one side of 1."""
    low, _, high = median_interval(ratios)
    if len(ratios) < PAIRS:
        return "ambiguous"
    return "slower" if low > 1 else "faster" if high < 1 else "ambiguous"


def _verdict(edge: Edge, verdict: str, ratios: Iterable[float], reason: str = "") -> Verdict:
    taken = list(ratios)
    low, middle, high = median_interval(taken) if taken else (None, None, None)
    return Verdict(
        str(edge.before), str(edge.after), edge.jump, verdict, middle, low, high, len(taken), reason
    )
