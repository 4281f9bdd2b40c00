"""Edges confirmed by measuring their two sides in turns: A, B, A, B, …

In a sweep the sides of an edge are visited minutes apart, so that a drift of the clock can
pass for a cliff. In turns both see the same drift, and each pair's ratio is free of it. The
verdict rests on an order statistic of these ratios, as the median's interval does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gacprof import operators
from gacprof.cliffmap import CliffMap
from gacprof.errors import MeasurementError
from gacprof.files import write_json
from gacprof.measure.device import Device
from gacprof.measure.stats import median, median_interval
from gacprof.points import Point
from gacprof.sweeping.order import Visit
from gacprof.sweeping.run import Progress, check_same_device, measure_visit, suite_of
from gacprof.sweeping.store import RunFolder, read_header
from gacprof.sweeping.suite import Timing
from gacprof.sweeping.to_map import build_map_of

PAIRS = 6
"""The fewest pairs whose range covers the median ratio with at least 95 % (96.9 %)."""
AT_MOST = 64
"""Edges confirmed in one go, the largest jumps of each curve first."""

FILE = "confirmed.json"
SCHEMA = "gacprof.confirmed/1"


@dataclass(frozen=True)
class Edge:
    """Two neighbouring points of a curve, and the jump of latency from the first to the second."""

    before: Point
    after: Point
    jump: float


@dataclass(frozen=True)
class Verdict:
    """What the pairs say of ``after`` against ``before``: faster, slower, ambiguous or failed.

    ``ratio`` is the median of time(after) / time(before) over the pairs, between ``low`` and
    ``high`` with 95 % confidence; None where a side failed (``reason``).
    """

    before: str
    after: str
    swept_jump: float
    verdict: str
    ratio: float | None
    low: float | None
    high: float | None
    pairs: int
    reason: str = ""


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
        data = [asdict(verdict) for verdict in verdicts]
        write_json(path / FILE, {"schema": SCHEMA, "edges": data})
    finally:
        store.close()
    return verdicts


def read_verdicts(folder: str | Path) -> list[Verdict]:
    """The verdicts stored with a run; none if none were taken."""
    file = Path(folder) / FILE
    if not file.exists():
        return []
    try:
        data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']}")
        return [Verdict(**edge) for edge in data["edges"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MeasurementError(f"{file} holds no verdicts: {error!r}") from None


def edges_of(cliff_map: CliffMap, at_most: int) -> list[Edge]:
    """The cliffs of all curves as pairs of points, the largest jumps of each curve first."""
    by_rank: list[tuple[int, float, Edge]] = []
    for curve in cliff_map.curves:
        largest = sorted(curve.cliffs, key=lambda cliff: -abs(cliff.jump))
        for rank, cliff in enumerate(largest):
            before, after = (
                operators.point(
                    curve.operator, {**curve.fixed, curve.axis: d}, curve.dtype, curve.flags
                )
                for d in (cliff.before, cliff.after)
            )
            by_rank.append((rank, -abs(cliff.jump), Edge(before, after, cliff.jump)))
    return [edge for _, _, edge in sorted(by_rank, key=lambda entry: entry[:2])[:at_most]]


def confirm(edge: Edge, device: Device, timing: Timing, pairs: int = PAIRS) -> Verdict:
    """Measure both sides in turns, and say which is faster."""
    measure = getattr(device, "measure_visit", None) or partial(measure_visit, device)
    ratios: list[float] = []
    for number in range(pairs):
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
