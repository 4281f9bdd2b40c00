"""Findings as words: what the page says, kept apart from how it looks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gacprof.cliffmap.detect import label
from gacprof.cliffmap.storage import map_facts
from gacprof.core import formatting
from gacprof.report.figures import View
from gacprof.report.grouping import group
from gacprof.report.tables import penalties

if TYPE_CHECKING:
    from gacprof.cliffmap import CliffMap
    from gacprof.cliffmap.schema import Curve
    from gacprof.report.page import Contents

MOST_FRONTIER = 8
"""Dims of a frontier that a sentence holds."""

MOST_CLIFFS = 2
"""Curves that the page's words tell of."""

MOST_WORST = 3
"""Groups of dims that a sentence names."""

MOST_REASONS = 3
"""Sentences below the headline; the rest is unfolded."""

Sections = dict[str, list[str]]


class Verdict(NamedTuple):
    """What a page begins with: one sentence, at most three that give its reasons, and the rest by
    what it is about."""

    headline: str
    reasons: list[str]
    rest: Sections


def verdict(contents: Contents, views: Sequence[View] = ()) -> Verdict:
    """What was measured comes first, then what was found, then what was planned. No gain is said
    as such. ``views`` are the curves that the page shows: the first of each axis is told of."""
    axes = {(v.curve.operator, v.curve.axis): v for v in reversed(views)}
    first = [v for v in views if v in axes.values()][:MOST_CLIFFS]
    main: Sections = {
        "Measured": measured(contents.bench) if contents.bench else [],
        "This model": diagnosed(contents.diagnosis) if contents.diagnosis else [],
        "The plan": [planned(contents.plan)] if contents.plan else [],
        "The same function": [_function(contents.verification)] if contents.verification else [],
        "Cliffs": [f"{view.curve.shape}: {cliffs(view)}" for view in first],
    }
    if contents.cliff_map and not any(main[about] for about in ("Measured", "This model")):
        main["Cliffs"] = [_of_map(contents.cliff_map), *main["Cliffs"]]
    told = [
        (about, sentences[i])
        for i in range(max(map(len, main.values())))
        for about, sentences in main.items()
        if i < len(sentences)
    ]
    rest: Sections = {}
    for about, sentence in told[1 + MOST_REASONS :]:
        rest.setdefault(about, []).append(sentence)
    rest |= {"Device": _device(contents), "How sure": _sure(contents)}
    headline, *reasons = [sentence for _, sentence in told[: 1 + MOST_REASONS]] or [""]
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


def _of_map(cliff_map: CliffMap) -> str:
    facts = map_facts(cliff_map)
    slow, points = facts["misaligned"], facts["points"]
    return f"{facts['device']}: {slow:,} of {points:,} sizes are slower than a larger one."


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
    best = best if len(best) > 1 else []  # the last dim is always one: nothing larger is measured
    modulus, remainders = curve.classes[0]
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
    words = cliffs(view)
    mine = f" Triangles mark the sizes of this model: {formatting.dims(view.asked)}."
    return f"{view.curve.settings}. {words[0].upper()}{words[1:]}{mine if view.asked else ''}"


def point_words(curve: Curve) -> dict[int, str]:
    """Of each measured dim its latency with interval, verdict and kernel."""
    p, told = curve.points, {}
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
        told[p.d[i]] = f"{microseconds(p.latency_us[i])}{interval}: {verdict}{kernel}"
    return told


def diagnosed(diagnosis: Mapping[str, Any]) -> list[str]:
    """A diagnosis (``as_dict()``) in sentences: the verdict, where most is lost, what is open."""
    totals, basis = diagnosis["totals"], diagnosis.get("basis") or ""
    worst = [dim for dim in diagnosis["dims"] if dim["verdict"] == "misaligned"]
    alike = group(worst, lambda d: d["name"], lambda d: (d["size"], d["advice"]))
    alike.sort(key=lambda g: -sum(dim["lost_us"] or 0 for dim in g.members))
    most = [f"{g.name} {g.first['size']}: {g.first['advice']}" for g in alike[:MOST_WORST]]
    more = f"; and {len(alike) - MOST_WORST} more" if len(alike) > MOST_WORST else ""
    where = f"{'Worst' if basis else 'Most is lost'} in {'; '.join(most)}{more}." if most else ""
    timed = bool(diagnosis.get("times"))
    said = (verdict_of(totals, diagnosis["device"], basis, timed), where, left_open(totals))
    return [sentence for sentence in said if sentence]


def verdict_of(totals: Mapping[str, Any], device: str, basis: str = "", timed: bool = False) -> str:
    """What a diagnosis' totals come to, in one sentence; ``timed`` where whole steps are shown."""
    lost = f"{totals['misaligned']} of {totals['weights']} weights"
    if totals["weights"] and not totals["judged"]:
        return f"Not known: none of {totals['weights']} weights can be judged for {device}."
    how = f", {basis}" if basis else ""
    judged = totals["judged"] - totals["fixed"]
    heads = totals.get("heads_misaligned")
    if not totals["misaligned"] and heads:
        return f"No weight is known to lose time on {device}{how}, but attention does."
    if not totals["misaligned"]:
        return f"No weight is known to lose time on {device}{how}, of {judged} judged."
    if basis:
        served = f"{lost} have sizes that {device} serves worse, {basis}"
        return f"{served}." if timed else f"{served}; the time it costs is not known."
    recovers = _of(totals["recoverable_us"], totals["predicted_us"])
    return f"{lost} lose time on {device}: padding recovers {recovers} in matrix products."


def left_open(totals: Mapping[str, Any]) -> str:
    """What the verdict does not hold for; empty where it holds for all."""
    most = totals["undecided_penalty_high"]
    padded = totals.get("fixed_by_engines", 0)
    by = "" if most is None else f" (by at most {percent(most)})"
    counts = {
        f"undecided{by}": totals["undecided"],
        "not known": totals["unknown"],
        "not judged (no dim of theirs could be changed)": totals["fixed"] - padded,
        "not judged (engines pad the vocabulary before ranks share it)": padded,
    }
    listed = ", ".join(f"{count} {words}" for words, count in counts.items() if count)
    heads = ", ".join(map(str, totals.get("head_dims_undecided") or ()))
    told = [f"Of the rest {listed}." if listed else ""]
    told += [f"Attention's head_dim {heads} is undecided." if heads else ""]
    return " ".join(filter(None, told))


def _of(part: float | None, whole: float | None) -> str:
    """``2.11 ms of 19.64 ms (10.7 %)``: a time beside the whole that it is part of."""
    share = f" ({percent(part / whole)})" if part is not None and whole else ""
    return f"{microseconds(part)} of {microseconds(whole)}{share}"


def planned(plan: Mapping[str, Any]) -> str:
    changed = sum(choice["after"] != choice["before"] for choice in plan["choices"])
    if not changed:
        return f"The plan changes none of {len(plan['choices'])} dims."
    budget = plan["budget"]
    whole = [budget.get(f"checkpoint_{when}") for when in ("before", "after")]
    size = f", {_signed(whole[1] / whole[0] - 1)} parameters" if all(whole) else ""
    return f"The plan changes {changed} of {len(plan['choices'])} dims{size}; {gained(plan)}."


def gained(plan: Mapping[str, Any]) -> str:
    """What a plan's products gain; no gain is claimed whose bounds hold zero."""
    before, after = plan["predicted_before_us"], plan["predicted_after_us"]
    basis = f", {plan['basis']}" if plan.get("basis") else ""
    if not before or not after:
        return f"the time it gains is not known{basis}"
    if plan.get("saved_us") is None:
        return (
            f"their products should take {microseconds(after)} instead of {microseconds(before)} "
            f"({_signed(after / before - 1)}){basis}"
        )
    change = change_of(plan["saved_us"], before)
    return f"of their products' {microseconds(before)}, {change}{basis}"


def change_of(saved_us: tuple[float, float, float], before_us: float) -> str:
    """A change of estimated times, with its bounds; it is not sure where these hold zero."""
    low, value, high = saved_us
    change = formatting.interval(-high / before_us, -value / before_us, -low / before_us)
    return f"{change}; whether time is gained is not sure" if low <= 0 <= high else change


def by_phase(plan: Mapping[str, Any]) -> str:
    """What a plan makes of each workload: of the whole step where that is known, else of the
    planned weights' products; empty where no time is known."""
    told, whole = [], True
    for phase in plan.get("phases") or ():
        steps = [s for s in phase["steps"] if s["against"] == plan["fingerprint"]]
        before, after = phase["before_us"], phase["after_us"]
        if steps:
            low, value, high = (steps[0][each] for each in ("low", "value", "high"))
            told.append(f"{phase['workload']} {formatting.interval(low, value, high)}")
        elif before and after:
            whole = False
            told.append(f"{phase['workload']} {_signed(after / before - 1)} of the products")
    if not told:
        return ""
    of = "of the whole step" if whole else "a bench of the model (--bench) tells of whole steps"
    return f"By workload, against the model given: {', '.join(told)}; {of}."


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
    return told


def measured(bench: Mapping[str, Any]) -> list[str]:
    """A sentence a model against the first, what is faster before what is not, the last one first:
    it is what the bench is about."""
    first, sentences = bench["models"][0], []
    busy = any("machine is busy" in note for note in bench["notes"])
    shown = {t["model"]: 1 - t["ratio"][1] for t in bench["timings"] if t["verdict"] == "faster"}
    for model in sorted(bench["models"][:0:-1], key=lambda m: -shown.get(m, 0.0)):
        of_model = {t["workload"]: t for t in bench["timings"] if t["model"] == model}
        of_first = {t["workload"]: t for t in bench["timings"] if t["model"] == first}
        verdicts = {t["verdict"] for t in of_model.values()}
        parts = "; ".join(
            f"{name} tokens {_change(t, of_first[name])}" for name, t in of_model.items()
        )
        if verdicts == {"identical"}:
            sentences.append(f"{model} is identical to {first}, byte for byte.")
        elif {"faster", "slower"} <= verdicts:
            sentences.append(
                f"{model} is faster than {first} somewhere, slower elsewhere: {parts}."
            )
        elif "faster" in verdicts or "slower" in verdicts:
            sentences.append(f"{model} is {max(verdicts & FASTER)} than {first}: {parts}.")
        elif busy or "undecided" in verdicts:
            sentences.append(
                f"{model} against {first} is not decided: {_why_open(bench)}; {parts}."
            )
        else:
            sentences.append(f"{model} gains nothing that can be shown over {first}: {parts}.")
    return sentences


def _why_open(bench: Mapping[str, Any]) -> str:
    """``machine busy, 5 of 12 rounds``: why a bench has no verdict, from its own notes."""
    notes = " ".join(bench["notes"])
    few = re.search(r"a verdict takes (\d+)", notes)
    reasons = {
        "machine busy": "machine is busy" in notes,
        "the host limits the GPU": "the host limits it" in notes,
    }
    said = [reason for reason, holds in reasons.items() if holds]
    return ", ".join([*said, f"{bench['rounds']}{f' of {few[1]}' if few else ''} rounds"])


FASTER = {"faster", "slower"}


def _change(timing: Mapping[str, Any], of: Mapping[str, Any]) -> str:
    low, middle, high = timing["ratio"]
    if timing["verdict"] in ("no difference shown", "undecided"):
        return f"{timing['verdict']} ({_signed(low - 1)} to {_signed(high - 1)})"
    took = f"{microseconds(timing['latency_us'])} instead of {microseconds(of['latency_us'])}"
    return f"{_signed(middle - 1)} ({_signed(low - 1)} to {_signed(high - 1)}; {took})"


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
