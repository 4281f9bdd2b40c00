"""Findings as words: what the page says, kept apart from how it looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gacprof.cliffmap.detect import label
from gacprof.core import formatting
from gacprof.report.figures import View, classes_of
from gacprof.report.tables import penalties

if TYPE_CHECKING:
    from gacprof.cliffmap.schema import Curve
    from gacprof.report.page import Contents

MOST_FRONTIER = 8
"""Dims of a frontier that a sentence holds."""

MOST_CLIFFS = 2
"""Curves that the summary tells of."""


def summary(contents: Contents, views: Sequence[View] = ()) -> list[tuple[str, list[str]]]:
    """(what it is about, sentences) in the order of the chain. No gain is said as such.

    ``views`` are the curves that the page shows: the first of each axis is told of.
    """
    axes = {(v.curve.operator, v.curve.axis): v for v in reversed(views)}
    first = [v for v in views if v in axes.values()][:MOST_CLIFFS]
    told = {
        "Device": _device(contents),
        "Its cliffs": [f"{view.curve.shape}: {cliffs(view)}" for view in first],
        "This model": [_dims(contents.diagnosis)] if contents.diagnosis else [],
        "The plan": [_plan(contents.plan)] if contents.plan else [],
        "Measured": _measured(contents.bench) if contents.bench else [],
        "How sure": _sure(contents),
    }
    return [(about, sentences) for about, sentences in told.items() if sentences]


def _device(contents: Contents) -> list[str]:
    if contents.cliff_map is None:
        part = contents.diagnosis or contents.plan
        name = part["device"] if part else contents.bench and contents.bench["environment"]["name"]
        return [f"{name}."] if name else []
    file = contents.cliff_map.file
    dtypes = ", ".join(sorted({curve.dtype for curve in file.curves}))
    where = f"{file.device.name} ({file.device.arch})"
    return [f"{where}, {file.provenance.kind} {file.provenance.created[:10]} in {dtypes}."]


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
    worst = max(slow, key=lost.__getitem__)
    best = [d for d in curve.frontier if d in lost]
    modulus, remainders = classes_of(curve)[0]
    steps = f"best where {label(curve.axis, modulus, remainders)}; " if modulus > 1 else ""
    steps += f"its steps end at {_few(best)}; " if best else ""
    return (
        f"{steps}{len(slow)} of {len(lost)} sizes are misaligned, {curve.axis} = {worst} costs "
        f"most: {percent(lost[worst])} more than the best larger one."
    )


def _few(dims: Sequence[int]) -> str:
    more = f" and {len(dims) - MOST_FRONTIER} more" if len(dims) > MOST_FRONTIER else ""
    return ", ".join(map(str, dims[:MOST_FRONTIER])) + more


def caption(view: View) -> str:
    """What a curve's picture shows, in sentences."""
    curve, words = view.curve, cliffs(view)
    fixed = ", ".join(f"{name} = {size}" for name, size in curve.fixed.items())
    sizes = formatting.dims(view.asked)
    mine = f" Triangles mark the sizes of this model: {sizes}." if view.asked else ""
    return (
        f"Latency of {curve.operator} over {curve.axis} at {fixed}; {curve.settings}. "
        f"{words[0].upper()}{words[1:]}{mine}"
    )


def point_words(curve: Curve) -> dict[int, str]:
    """Of each measured dim its latency with interval, verdict and kernel."""
    p, told = curve.points, {}
    lost, cheapest = penalties(curve), len(p.d) - 1
    verdicts = dict.fromkeys(curve.safe, "safe") | dict.fromkeys(curve.misaligned, "misaligned")
    for i in reversed(range(len(p.d))):
        if p.median_us[i] <= p.median_us[cheapest]:
            cheapest = i
        low, high = microseconds(p.low_us[i]), microseconds(p.high_us[i])
        interval = "" if p.low_us[i] is None or p.high_us[i] is None else f" ({low} to {high})"
        verdict = verdicts.get(p.d[i], "undecided")
        if lost[p.d[i]] > 0:
            verdict += f", {percent(lost[p.d[i]])} more than {p.d[cheapest]}"
        by = p.mechanism[i] if p.mechanism else None
        kernel = "" if by is None else f"; {curve.mechanisms[by]}"
        told[p.d[i]] = f"{microseconds(p.median_us[i])}{interval}: {verdict}{kernel}"
    return told


def _plan(plan: Mapping[str, Any]) -> str:
    changed = sum(choice["after"] != choice["before"] for choice in plan["choices"])
    before, after = plan["predicted_before_us"], plan["predicted_after_us"]
    time = (
        f"their products should take {microseconds(after)} instead of {microseconds(before)} "
        f"({_signed(after / before - 1)})"
        if before and after
        else "the map cannot foretell the time of all new sizes together"
    )
    budget = plan["budget"]
    whole = [budget.get(f"checkpoint_{when}") for when in ("before", "after")]
    size = f", {_signed(whole[1] / whole[0] - 1)} parameters" if all(whole) else ""
    return f"{changed} of {len(plan['choices'])} dims change{size}; {time}."


def _sure(contents: Contents) -> list[str]:
    told = []
    if contents.cliff_map is not None:
        noise = contents.cliff_map.file.noise
        told.append(
            f"The map's noise is not known: {noise.reason}."
            if noise.floor is None
            else f"{noise.pairs} points were measured twice: 95 % of them differ by less than "
            f"{percent(noise.floor)}, the A/A floor."
        )
        if contents.cliff_map.too_noisy:
            told.append(f"Too noisy to judge by: {contents.cliff_map.too_noisy}.")
    if contents.bench and contents.bench["replicates"]:
        spread = max(r["spread"] for r in contents.bench["replicates"])
        told.append(f"The bench claims no difference below {percent(spread)}, its own A/A spread.")
    if contents.verification:
        told.append(_function(contents.verification))
    return told


def _measured(bench: Mapping[str, Any]) -> list[str]:
    first, sentences = bench["models"][0], []
    for model in bench["models"][1:]:
        of_model = [t for t in bench["timings"] if t["model"] == model]
        parts = [f"{t['workload']} tokens {_change(t)}" for t in of_model]
        gained = [t for t in of_model if t["verdict"] == "faster"]
        lost = [t for t in of_model if t["verdict"] == "slower"]
        if all(t["verdict"] == "identical" for t in of_model):
            sentences.append(f"{model} is identical to {first}, byte for byte.")
            continue
        verdict = (
            "is faster somewhere and slower elsewhere"
            if gained and lost
            else "is faster"
            if gained
            else "is slower"
            if lost
            else "gained nothing that can be shown"
        )
        sentences.append(f"{model} {verdict} against {first}: {'; '.join(parts)}.")
    return sentences


def _change(timing: Mapping[str, Any]) -> str:
    low, middle, high = timing["ratio"]
    if timing["verdict"] in ("no difference shown", "undecided"):
        return f"{timing['verdict']} ({_signed(low - 1)} to {_signed(high - 1)})"
    return f"{_signed(middle - 1)} ({_signed(low - 1)} to {_signed(high - 1)})"


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


def _dims(diagnosis: Mapping[str, Any]) -> str:
    totals = diagnosis["totals"]
    undecided = f", {totals['undecided']} undecided" if totals["undecided"] else ""
    if diagnosis.get("basis"):
        return (
            f"{totals['misaligned']} of {totals['weights']} weights are misaligned "
            f"{diagnosis['basis']}; what that costs is not known."
        )
    return (
        f"{totals['misaligned']} of {totals['weights']} weights are misaligned by measurement "
        f"by a tolerance of {between(diagnosis['tolerances'])}{undecided} "
        f"({totals['not_divisible_by_8']} by the rule d % 8); padding should recover "
        f"{microseconds(totals['recoverable_us'])} of {microseconds(totals['predicted_us'])} "
        "in matrix products."
    )


def microseconds(value: float | None) -> str:
    return formatting.microseconds(value) or "unknown"


def percent(value: float | None) -> str:
    return formatting.percent(value) or "–"


def _signed(value: float | None) -> str:
    return (formatting.percent(value, signed=True) or "–").replace("-", "−")


def between(ends: Sequence[float]) -> str:
    """``2.0 % to 3.7 %``; one of them where both read the same."""
    if not ends:
        return "unknown"
    first, last = percent(ends[0]), percent(ends[-1])
    return first if first == last else f"{first} to {last}"


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
    "signed": _signed,
    "count": lambda value: "–" if value is None else f"{value:,}",
    "between": between,
    "bound": bound,
    "error": error,
}
