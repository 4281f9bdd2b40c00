"""Findings as sentences, for pages and the terminal: what is said, apart from how it looks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from gacprof.cliffmap.detect import label
from gacprof.cliffmap.storage import map_facts
from gacprof.core import formatting
from gacprof.core.formatting import at_least_time, bounded_time, counted
from gacprof.diagnosing.merging import Merge, merging
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
"""Curves that the page's words are about."""

MOST_WORST = 3
"""Groups of dims that a sentence names."""

MOST_REASONS = 3
"""Sentences below the headline; the rest is unfolded."""

BY_RULES = ", by rules, not measured"

Sections = dict[str, list[str]]


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
    facts = map_facts(cliff_map)
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
    return f"{view.curve.settings}. {_capital(words)}{mine if view.asked else ''}"


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


def diagnosed(diagnosis: Mapping[str, Any]) -> list[str]:
    """A diagnosis (``summary()`` or ``as_dict()``) in sentences: what gains most is the first, then
    what whole steps take, and what is open."""
    totals, times = diagnosis["totals"], diagnosis.get("times")
    merges = [Merge(**merge) for merge in diagnosis.get("merges") or ()]
    merged = sum(m.saved_us * diagnosis["tokens"].get(str(m.tokens), 0.0) for m in merges)
    levers = [verdict_of(diagnosis), f"{_capital(merging(merges))}." if merges else ""]
    if merged > (totals.get("recoverable_us") or 0.0):
        levers.reverse()
    steps = [_step(total) for total in times["totals"]] if times else [_no_time(diagnosis)]
    moved = _moved(times) if times and diagnosis["layout"] == "config" else ""
    return [sentence for sentence in (*levers, moved, *steps, left_open(diagnosis)) if sentence]


def verdict_of(diagnosis: Mapping[str, Any]) -> str:
    """What a diagnosis' totals come to, in one sentence."""
    totals, device, by_rules = diagnosis["totals"], diagnosis["device"], diagnosis.get("basis")
    how, misaligned = BY_RULES if by_rules else "", totals["misaligned"]
    if diagnosis["layout"] == "config":
        judged = totals["judged"]
        if misaligned:
            return f"{misaligned} of {judged} products have sizes that {device} serves worse{how}."
        return f"No size is known that {device} serves worse{how}, of {judged} products judged."
    weights, judged = totals["weights"], totals["judged"] - totals["fixed"]
    if weights and not totals["judged"]:
        return f"Not known: none of {weights} weights can be judged for {device}."
    if not misaligned:
        but = ", but attention does" if totals.get("heads_misaligned") else f", of {judged} judged"
        return f"No weight is known to lose time on {device}{how}{but}."
    if by_rules:
        return f"{misaligned} of {weights} weights have sizes that {device} serves worse{how}."
    part, whole = totals["recoverable_us"], totals.get("plannable_us")
    share = f" ({percent(part / whole)})" if part is not None and whole else ""
    return (
        f"{misaligned} of {weights} weights lose time on {device}: padding recovers "
        f"{microseconds(part)} of {microseconds(whole)}{share} in the weights that a plan can "
        f"change; all products take {microseconds(totals['predicted_us'])}."
    )


def _moved(times: Mapping[str, Any]) -> str:
    """The good sizes of a config's products."""
    moved = []
    for part in (part for part in times["parts"] if part["misaligned"]):
        now, good = part["need"]["shape"], part["good"]
        sizes = (f"{axis} {now[axis]} → {good[axis]}" for axis in now if now[axis] != good[axis])
        moved.append(f"{part['need']['name']} {', '.join(sizes)}")
    more = f"; and {len(moved) - MOST_WORST} more" if len(moved) > MOST_WORST else ""
    return f"Good sizes: {'; '.join(moved[:MOST_WORST])}{more}." if moved else ""


def _step(total: Mapping[str, Any]) -> str:
    """What a step takes by others' measurements, and what good sizes save of it."""
    step = f"By others' measurements a step of {counted(total['tokens'], 'token')}"
    saved, least = total["saved"], total["at_least"]
    if least is None:
        return f"{step} takes a time that is not known."
    takes = at_least_time(least) if total["good"] is None else bounded_time(**total["good"])
    save = "save" if saved["low"] > 0 else "may save"
    said = [f"takes {takes}"]
    if saved["value"]:
        said[0] += f" at good sizes, which {save} {bounded_time(**saved)}"
    if total["unknown"]:
        said.append(f"{counted(total['unknown'], 'part has', 'parts have')} no time")
    if total["open"]:
        said.append(f"what {counted(total['open'], 'part loses', 'parts lose')} is not known")
    return f"{step} {'; '.join(said)}."


def _no_time(diagnosis: Mapping[str, Any]) -> str:
    """Why there are no times where rules judge."""
    why = next((note for note in diagnosis.get("notes", ()) if note.startswith("no times: ")), "")
    lost = diagnosis.get("basis") and diagnosis["totals"]["misaligned"]
    return f"The time it costs is not known ({why.removeprefix('no times: ')})." if lost else ""


def worst(diagnosis: Mapping[str, Any]) -> list[str]:
    """Where most is lost, in a sentence; none where nothing is."""
    slow = [dim for dim in diagnosis["dims"] if dim["verdict"] == "misaligned"]
    alike = group(slow, lambda d: d["name"], lambda d: (d["size"], d["advice"]))
    alike.sort(key=lambda g: -sum(dim["lost_us"] or 0 for dim in g.members))
    most = [f"{g.name} {g.first['size']}: {g.first['advice']}" for g in alike[:MOST_WORST]]
    more = f"; and {len(alike) - MOST_WORST} more" if len(alike) > MOST_WORST else ""
    where = "Worst" if diagnosis.get("basis") else "Most is lost"
    return [f"{where} in {'; '.join(most)}{more}."] if most else []


def left_open(diagnosis: Mapping[str, Any]) -> str:
    """What the verdict does not hold for; empty where it holds for all."""
    totals = diagnosis["totals"]
    if diagnosis["layout"] == "config":
        return ""
    most, padded = totals["undecided_penalty_high"], totals.get("fixed_by_engines", 0)
    by = "" if most is None else f" (by at most {percent(most)})"
    counts = {
        f"undecided{by}": totals["undecided"],
        "not known": totals["unknown"],
        "not judged (no dim of theirs could be changed)": totals["fixed"] - padded,
        "not judged (engines pad the vocabulary before ranks share it)": padded,
    }
    listed = ", ".join(f"{count} {words}" for words, count in counts.items() if count)
    listed = listed if totals["judged"] else ""
    heads = ", ".join(map(str, totals.get("head_dims_undecided") or ()))
    busy = diagnosis.get("busy") and totals["undecided"]
    said = [
        f"Of the rest {listed}." if listed else "",
        f"Machine busy during the sweep: {diagnosis['busy']}." if busy else "",
        f"Attention's head_dim {heads} is undecided." if heads else "",
    ]
    return " ".join(filter(None, said))


def planned(plan: Mapping[str, Any]) -> str:
    """What a plan changes and gains, in a sentence."""
    changed = sum(choice["after"] != choice["before"] for choice in plan["choices"])
    if not changed:
        return f"The plan changes none of {len(plan['choices'])} dims."
    budget = plan["budget"]
    whole = [budget.get(f"checkpoint_{when}") for when in ("before", "after")]
    size = f", {_signed(whole[1] / whole[0] - 1)} parameters" if all(whole) else ""
    how = BY_RULES if plan.get("basis") else ""
    return f"The plan changes {changed} of {len(plan['choices'])} dims{size}{how}; {gained(plan)}."


def gained(plan: Mapping[str, Any]) -> str:
    """What a plan's products gain; no gain is claimed whose bounds hold zero."""
    before, after = plan["predicted_before_us"], plan["predicted_after_us"]
    if not before or not after:
        return "the time it gains is not known"
    if plan.get("saved_us") is None:
        return (
            f"the weights that it can change should take {microseconds(after)} instead of "
            f"{microseconds(before)} ({_signed(after / before - 1)})"
        )
    change = change_of(plan["saved_us"], before)
    return (
        f"by others' measurements, of {microseconds(before)} in the weights that it can change, "
        f"{change}"
    )


def change_of(saved_us: tuple[float, float, float], before_us: float) -> str:
    """A change of estimated times, with its bounds; it is not sure where these hold zero."""
    low, value, high = saved_us
    change = formatting.interval(-high / before_us, -value / before_us, -low / before_us)
    return f"{change}; whether time is gained is not sure" if low <= 0 <= high else change


def by_phase(plan: Mapping[str, Any]) -> str:
    """What a plan makes of each workload: of the whole step where that is known, else of the
    planned weights' products; empty where no time is known."""
    said, whole = [], True
    for phase in plan.get("phases") or ():
        steps = [s for s in phase["steps"] if s["against"] == plan["fingerprint"]]
        before, after = phase["before_us"], phase["after_us"]
        if steps:
            low, value, high = (steps[0][each] for each in ("low", "value", "high"))
            said.append(f"{phase['workload']} {formatting.interval(low, value, high)}")
        elif before and after:
            whole = False
            said.append(f"{phase['workload']} {_signed(after / before - 1)} of these weights")
    if not said:
        return ""
    of = "of the whole step" if whole else "a bench of the model (--bench) gives whole steps"
    return f"By workload, against the model given: {', '.join(said)}; {of}."


FASTER = {"faster", "slower"}


def measured(bench: Mapping[str, Any]) -> list[str]:
    """A sentence a model against the first, what is faster before what is not, the last one first:
    it is what the bench is about."""
    first, timings = bench["models"][0], bench["timings"]
    shown = {t["model"]: 1 - t["ratio"][1] for t in timings if t["verdict"] == "faster"}
    of_first = {t["workload"]: t for t in timings if t["model"] == first}
    sentences = []
    for model in sorted(bench["models"][:0:-1], key=lambda m: -shown.get(m, 0.0)):
        own = [t for t in timings if t["model"] == model]
        verdicts = {t["verdict"] for t in own}
        if verdicts == {"identical"}:
            sentences.append(f"{model} is identical to {first}, byte for byte.")
            continue
        if verdicts >= FASTER:
            found = f"{model} is faster than {first} somewhere, slower elsewhere:"
        elif verdicts & FASTER:
            found = f"{model} is {max(verdicts & FASTER)} than {first}:"
        elif "undecided" in verdicts or _is_busy(bench):
            found = f"{model} against {first} is not decided: {_why_open(bench)};"
        else:
            found = f"{model} gains nothing that can be shown over {first}:"
        parts = (f"{t['workload']} tokens {_change(t, of_first[t['workload']])}" for t in own)
        sentences.append(f"{found} {'; '.join(parts)}.")
    return sentences


def _is_busy(bench: Mapping[str, Any]) -> bool:
    return any("machine is busy" in note for note in bench["notes"])


def _why_open(bench: Mapping[str, Any]) -> str:
    """``machine busy, 5 of 12 rounds``: why a bench has no verdict, from its own notes."""
    notes = " ".join(bench["notes"])
    few = re.search(r"a verdict takes (\d+)", notes)
    said = ["machine busy"] * _is_busy(bench)
    said += ["the host limits the GPU"] * ("the host limits it" in notes)
    return ", ".join([*said, f"{bench['rounds']}{f' of {few[1]}' if few else ''} rounds"])


def _change(timing: Mapping[str, Any], of: Mapping[str, Any]) -> str:
    low, middle, high = (_signed(ratio - 1) for ratio in timing["ratio"])
    if timing["verdict"] in ("no difference shown", "undecided"):
        return f"{timing['verdict']} ({low} to {high})"
    took = f"{microseconds(timing['latency_us'])} instead of {microseconds(of['latency_us'])}"
    return f"{middle} ({low} to {high}; {took})"


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


def _capital(clause: str) -> str:
    return clause[:1].upper() + clause[1:]


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
    "signed": _signed,
    "count": lambda value: "–" if value is None else f"{value:,}",
    "between": between,
    "bound": bound,
    "error": error,
}
