"""Stages ``disputes`` and ``counters``: what the papers disagree about, each settled here or said
to be open; Nsight Compute on the edges of the largest cliffs, and what it explains.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gacprof.cliffmap import CliffMap
from gacprof.core.files import write_json, write_text
from gacprof.core.points import Point
from gacprof.explain.annotate import annotate, edge_points
from gacprof.explain.disputes import DISPUTES, Verdict, settle, settle_on
from gacprof.kernels.ncu_collect import Evidence, collect, from_report
from gacprof.survey.setting import MAP, Setting
from gacprof.survey.state import DONE, SKIPPED, Outcome
from gacprof.sweeping.suite import Schedule

DISPUTES_FILE, DISPUTES_DATA, SAMPLES = "disputes.md", "disputes.json", "disputes"


def disputes(setting: Setting) -> Outcome:
    """Run the experiments on a GPU, those that need none anywhere; write the verdicts."""
    if setting.machine.is_gpu:
        with setting.machine.sweeper(Schedule().processes) as device:
            settled = settle_on(device, setting.folder / SAMPLES, progress=setting.advance)
        verdicts = settled.verdicts
    else:
        verdicts = settle()
    write_text(setting.folder / DISPUTES_FILE, markdown(setting, verdicts))
    write_json(setting.folder / DISPUTES_DATA, [verdict.as_dict() for verdict in verdicts])
    counts = Counter(verdict.status for verdict in verdicts)
    note = ", ".join(f"{count} {status}" for status, count in counts.items())
    return Outcome(artefacts=(DISPUTES_FILE, DISPUTES_DATA), notes=(note,))


def markdown(setting: Setting, verdicts: Sequence[Verdict]) -> str:
    claims = {dispute.number: dispute.claims for dispute in DISPUTES}
    where = setting.machine.device.environment
    lines = [
        "# What the papers disagree about",
        "",
        f"Looked into on {where.name} ({where.arch}).",
        "",
    ]
    for v in verdicts:
        basis = f" ({v.basis})" if v.basis else ""
        lines += [f"## {v.number}. {v.title}", "", f"**{v.status}**{basis}: {v.finding}", ""]
        lines += [f"- claim: {claim}" for claim in claims[v.number]]
        lines += [f"- evidence: {line}" for line in v.evidence]
        lines += [f"- to settle it: {v.needs}"] if v.needs else []
        lines.append("")
    return "\n".join(lines)


REPORT, COUNTERS_FILE = "evidence/edges.ncu-rep", "counters.json"
MOST_POINTS = 48
"""Profiling replays every kernel many times: about a second a point, and the report stays small."""

LONGEST_S = 900.0


def counters(setting: Setting) -> Outcome:
    """Counters for the edges, kept as ``.ncu-rep``, with the map's causes filled in from them."""
    cliff_map = setting.cliff_map()
    points = edges(cliff_map)
    if not setting.machine.is_gpu:
        return _without(setting, cliff_map, "counters are a GPU's: not measured on a CPU")
    if not points:
        return _without(setting, cliff_map, "the map has no cliffs to look into")
    evidence = _collected(setting, points)
    if not evidence.counters:
        return _without(setting, cliff_map, evidence.problem)
    known = {p: evidence.counters[p.id] for p in points if p.id in evidence.counters}
    annotate(cliff_map, known).save(setting.folder / MAP)
    report = evidence.report.name if evidence.report else None
    data = evidence.as_dict() | {"report": report, "points": {p.id: str(p) for p in points}}
    write_json(setting.folder / COUNTERS_FILE, data)
    notes = (f"{len(known)} of {len(points)} edge points have counters",)
    return Outcome(DONE, "", (REPORT, COUNTERS_FILE, MAP), notes, evidence.problem)


def edges(cliff_map: CliffMap) -> list[Point]:
    """The edges of the curves with the steepest cliffs first, no point twice."""

    def steepest(curve: object) -> float:
        return max(abs(c.jump) for c in curve.cliffs)  # type: ignore[attr-defined]

    curves = sorted((c for c in cliff_map.curves if c.cliffs), key=steepest, reverse=True)
    points = dict.fromkeys(point for curve in curves for point in edge_points(curve))
    return list(points)[:MOST_POINTS]


def _collected(setting: Setting, points: list[Point]) -> Evidence:
    """The report that is there, if it is of these points; else a new one."""
    path = setting.folder / REPORT
    if path.is_file() and _points_of(setting.folder / COUNTERS_FILE) == {p.id for p in points}:
        return from_report(points, path)
    left = setting.left_s()
    if left is not None and left < 1:
        return Evidence(problem="the time was up")
    longest_s = LONGEST_S if left is None else min(LONGEST_S, left)
    return collect(points, path, longest_s, setting.machine.index or 0)


def _points_of(path: Path) -> set[str]:
    try:
        return set(json.loads(path.read_text(encoding="utf-8"))["points"])
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _without(setting: Setting, cliff_map: CliffMap, reason: str) -> Outcome:
    """Causes from kernel names alone, which the map has already."""
    annotate(cliff_map).save(setting.folder / MAP)
    return Outcome(SKIPPED, reason)
