"""What a page begins with, and what it says of curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from gacprof.cliffmap.detect import label
from gacprof.cliffmap.storage import map_facts
from gacprof.core import formatting
from gacprof.reporting.figures import View
from gacprof.reporting.tables import penalties
from gacprof.reporting.wording import (
    MOST_REASONS,
    capital,
    diagnosed,
    measured,
    microseconds,
    percent,
    planned,
    signed,
    worst,
)

if TYPE_CHECKING:
    from gacprof.cliffmap import CliffMap
    from gacprof.cliffmap.schema import Curve
    from gacprof.rules.table import RuleTable

MOST_FRONTIER = 8
"""Dims of a frontier that a sentence holds."""

MOST_CLIFFS = 2
"""Curves that the page's words are about."""

Sections = dict[str, list[str]]


@dataclass(frozen=True)
class Contents:
    """What goes on the page; all but the title may be missing. Mappings are ``as_dict()``s."""

    title: str
    cliff_map: CliffMap | None = None
    rules: RuleTable | None = None
    diagnosis: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] | None = None
    realigned: Mapping[str, Any] | None = None
    verification: Mapping[str, Any] | None = None
    bench: Mapping[str, Any] | None = None
    notes: Sequence[str] = ()


class Verdict(NamedTuple):
    """What a page begins with: one sentence, at most three that give its reasons, and the rest by
    what it is about."""

    headline: str
    reasons: list[str]
    rest: Sections


def verdict(contents: Contents, views: Sequence[View] = ()) -> Verdict:
    """What was measured comes first, then what was found, then what was planned: the first sentence
    of each, then the second. ``views`` are the curves that the page shows: the first of each axis
    has a sentence."""
    axes = {(v.curve.operator, v.curve.axis): v for v in reversed(views)}
    first = [v for v in views if v in axes.values()][:MOST_CLIFFS]
    diagnosis = contents.diagnosis
    main: Sections = {
        "Measured": measured(contents.bench) if contents.bench else [],
        "This model": [*diagnosed(diagnosis), *worst(diagnosis)] if diagnosis else [],
        "The plan": [planned(contents.plan)] if contents.plan else [],
        "The same function": [_function(contents.verification)] if contents.verification else [],
        "Cliffs": [f"{view.curve.shape}: {cliffs(view)}" for view in first],
    }
    if contents.cliff_map and not any(main[about] for about in ("Measured", "This model")):
        main["Cliffs"].insert(0, _of_map(contents.cliff_map))
    in_turn = [
        (about, sentence)
        for row in zip_longest(*main.values())
        for about, sentence in zip(main, row, strict=True)
        if sentence
    ]
    headline, *reasons = [sentence for _, sentence in in_turn[: 1 + MOST_REASONS]] or [""]
    rest: Sections = {}
    for about, sentence in in_turn[1 + MOST_REASONS :]:
        rest.setdefault(about, []).append(sentence)
    rest |= {"Device": _device(contents), "How sure": _sure(contents)}
    return Verdict(headline, reasons, {about: lines for about, lines in rest.items() if lines})


def _device(contents: Contents) -> list[str]:
    if contents.cliff_map is None:
        part = contents.diagnosis or contents.plan
        name = part["device"] if part else contents.bench and contents.bench["environment"]["name"]
        return [f"{name}."] if name else []
    file = contents.cliff_map.file
    dtypes = ", ".join(sorted({curve.dtype for curve in file.curves}))
    where = f"{file.device.name} ({file.device.arch})"
    return [f"{where}, {file.provenance.kind} {file.provenance.created[:10]} in {dtypes}."]


def _sure(contents: Contents) -> list[str]:
    said, cliff_map, bench = [], contents.cliff_map, contents.bench
    if cliff_map is not None:
        noise = cliff_map.file.noise
        said.append(
            f"The map's noise is not known: {noise.reason}."
            if noise.floor is None
            else f"{noise.pairs} points were measured twice: 95 % of them differ by less than "
            f"{percent(noise.floor)}, the A/A floor."
        )
        if cliff_map.too_noisy:
            said.append(f"Too noisy to judge by: {cliff_map.too_noisy}.")
    if bench and bench["replicates"]:
        spread = percent(max(r["spread"] for r in bench["replicates"]))
        said.append(f"The bench claims no difference below {spread}, its own A/A spread.")
    return said


def _of_map(cliff_map: CliffMap) -> str:
    facts = map_facts(cliff_map.file)
    slow, points = facts.misaligned, facts.points
    return f"{facts.device}: {slow:,} of {points:,} sizes are slower than a larger one."


def cliffs(view: View) -> str:
    """What a curve is like where it is shown: one sentence."""
    curve, (first, last) = view.curve, view.shown
    lost = {d: share for d, share in penalties(curve).items() if first <= d <= last}
    slow = [d for d in curve.misaligned if d in lost]
    left = [d for d in curve.undecided if d in lost]
    if not slow and not left:
        return f"measured and flat: all {len(lost)} sizes are safe."
    if not slow:
        highs = dict(zip(curve.points.d, curve.points.penalty_high, strict=True))
        known = [high for d in left if (high := highs[d]) is not None]
        most = f", off by at most {percent(max(known))}" if len(known) == len(left) else ""
        return f"of {len(lost)} sizes none is surely misaligned, {len(left)} are undecided{most}."
    slowest = max(slow, key=lost.__getitem__)
    best = [d for d in curve.frontier if d in lost]
    best = best if len(best) > 1 else []  # the last dim is always one: nothing larger is measured
    modulus, remainders = curve.classes[0]
    steps = f"best where {label(curve.axis, modulus, remainders)}; " if modulus > 1 else ""
    steps += f"its steps end at {_few(best)}; " if best else ""
    return (
        f"{steps}{len(slow)} of {len(lost)} sizes are misaligned, {curve.axis} = {slowest} costs "
        f"most: {percent(lost[slowest])} more than the best larger one."
    )


def _few(dims: Sequence[int]) -> str:
    more = f" and {len(dims) - MOST_FRONTIER} more" if len(dims) > MOST_FRONTIER else ""
    return ", ".join(map(str, dims[:MOST_FRONTIER])) + more


def caption(view: View) -> str:
    """What a curve's picture shows, in sentences."""
    words = cliffs(view)
    mine = f" Triangles mark the sizes of this model: {formatting.dims(view.asked)}."
    return f"{view.curve.settings}. {capital(words)}{mine if view.asked else ''}"


def point_words(curve: Curve) -> dict[int, str]:
    """Of each measured dim its latency with interval, verdict and kernel."""
    p, said = curve.points, {}
    lost, cheapest = penalties(curve), len(p.d) - 1
    verdicts = dict.fromkeys(curve.safe, "safe") | dict.fromkeys(curve.misaligned, "misaligned")
    for i in reversed(range(len(p.d))):
        if p.latency_us[i] <= p.latency_us[cheapest]:
            cheapest = i
        low, high = microseconds(p.low_us[i]), microseconds(p.high_us[i])
        interval = "" if p.low_us[i] is None or p.high_us[i] is None else f" ({low} to {high})"
        verdict = verdicts.get(p.d[i], "undecided")
        if lost[p.d[i]] > 0:
            verdict += f", {percent(lost[p.d[i]])} more than {p.d[cheapest]}"
        by = p.mechanism[i] if p.mechanism else None
        kernel = "" if by is None else f"; {curve.mechanisms[by]}"
        said[p.d[i]] = f"{microseconds(p.latency_us[i])}{interval}: {verdict}{kernel}"
    return said


def _function(check: Mapping[str, Any]) -> str:
    if check["max_rel_error"] is None:
        return "The two models could not be compared: their outputs are not finite."
    same = "computes the same function" if check["passed"] else "does not compute the same function"
    return (
        f"The realigned model {same} within tolerance: largest error "
        f"{error(check['max_rel_error'])} of the largest logit "
        f"(tolerance {check['tolerance']:.0e}), "
        f"the same most likely token at {percent(check['argmax_agreement'])} of positions."
    )


def between(ends: Sequence[float]) -> str:
    """``2.0 % to 3.7 %``; one of them where both read the same."""
    return " to ".join(dict.fromkeys(map(percent, (ends[0], ends[-1])))) if ends else "unknown"


def bound(judged: Mapping[str, Any]) -> str:
    """The upper bound of a dim's penalty: none where it was not judged."""
    if judged.get("verdict") in (None, "unknown"):
        return "–"
    high = judged.get("penalty_high")
    return "open" if high is None else percent(high)


def error(value: float | None) -> str:
    """An error in powers of ten; 0 is none at all."""
    return "not finite" if value is None else "0" if value == 0 else f"{value:.2e}"


FILTERS: dict[str, Callable[..., str]] = {
    "us": microseconds,
    "percent": percent,
    "signed": signed,
    "count": lambda value: "–" if value is None else f"{value:,}",
    "between": between,
    "bound": bound,
    "error": error,
}
