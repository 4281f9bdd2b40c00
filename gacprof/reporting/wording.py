"""Results as sentences, for the terminal and pages: what a diagnosis, a plan and a bench say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gacprof.core import formatting
from gacprof.core.formatting import bounded_time, counted
from gacprof.diagnosing.findings import HEAD_VERDICTS
from gacprof.diagnosing.merging import Merge, merging
from gacprof.reporting.grouping import group

MOST_WORST = 3
"""Groups of dims that a sentence names."""

MOST_NAMES = 5
"""Names that a sentence lists."""

MOST_REASONS = 3
"""Sentences below the headline; the rest is unfolded."""


def diagnosed(diagnosis: Mapping[str, Any]) -> list[str]:
    """A diagnosis (``summary()`` or ``as_dict()``) in sentences: what gains most is the first, then
    what whole steps take, and what is open."""
    totals, times = diagnosis["totals"], diagnosis.get("times")
    merges = [Merge(**merge) for merge in diagnosis.get("merges") or ()]
    if times and (refused := _refused(diagnosis)):
        return [refused]
    merged = sum(m.saved_us * diagnosis["tokens"].get(str(m.tokens), 0.0) for m in merges)
    levers = [verdict_of(diagnosis), f"{capital(merging(merges))}." if merges else ""]
    if merged > (totals.get("recoverable_us") or 0.0):
        levers.reverse()
    steps = _steps(diagnosis, times) if times else []
    steps = steps or [_no_time(diagnosis)]
    large = diagnosis.get("too_large")
    room = f"On {diagnosis['device']} the model {large}." if large else ""
    return [sentence for sentence in (room, *levers, *steps, left_open(diagnosis)) if sentence]


def _refused(diagnosis: Mapping[str, Any]) -> str:
    """That no engine starts so many ranks; empty where they share all parts of the step."""
    names = listed(diagnosis["totals"].get("refused") or ())
    tp = diagnosis.get("tp", 1)
    lint = "; 'gacprof lint' names the degrees that start"
    return f"Refused: {tp} ranks cannot share out {names}{lint}." if names else ""


def by_tier(judged: Mapping[str, Any]) -> bool:
    """Whether a diagnosis or a plan judged sizes by tiers, no penalty being known."""
    return judged.get("tolerance") is None


def _clause(basis: str | None) -> str:
    return f", {basis}" if basis else ""


def verdict_of(diagnosis: Mapping[str, Any]) -> str:
    """What a diagnosis' totals come to, in one sentence."""
    totals, device = diagnosis["totals"], diagnosis["device"]
    how, misaligned = _clause(diagnosis.get("basis")), totals["misaligned"]
    if diagnosis["layout"] == "config":
        return _of_config(diagnosis, how)
    weights, judged = totals["weights"], totals["judged"] - totals["fixed"]
    if weights and not totals["judged"]:
        return f"Not known: none of {weights} weights can be judged for {device}."
    if not misaligned:
        heads, unknown = totals.get("heads_misaligned"), totals["unknown"]
        if unknown:
            but = ", but attention does" if heads else ""
            return (
                f"{judged} of {weights} weights judged, none known to lose time on {device}{how}"
                f"{but}; {unknown} not known."
            )
        but = ", but attention does" if heads else f", of {judged} judged"
        return f"No weight is known to lose time on {device}{how}{but}."
    if by_tier(diagnosis):
        return f"{misaligned} of {weights} weights have sizes that {device} serves worse{how}."
    part, whole = totals["recoverable_us"], totals.get("plannable_us")
    share = f" ({percent(part / whole)})" if part is not None and whole else ""
    return (
        f"{misaligned} of {weights} weights lose time on {device}: padding recovers "
        f"{microseconds(part)} of {microseconds(whole)}{share} in the weights that a plan can "
        f"change; all products take {microseconds(totals['predicted_us'])}."
    )


def _of_config(diagnosis: Mapping[str, Any], how: str) -> str:
    """How many of a config's products are judged, how many are served worse, and the sizes that
    are not."""
    totals, device = diagnosis["totals"], diagnosis["device"]
    misaligned, judged, beyond = totals["misaligned"], totals["judged"], totals.get("not_judged")
    odd = "attention's head_dim " + ", ".join(map(str, totals["head_dims_misaligned"]))
    is_odd = bool(totals["head_dims_misaligned"])
    known = any(totals[f"head_dims_{verdict}"] for verdict in HEAD_VERDICTS)
    beyond_all = [*(beyond or ()), *([] if known else ["attention's head_dim"])]
    but = f"; {listed(beyond_all)} not judged" if beyond_all else ""
    of = f"{judged} of {counted(totals['products'], 'product')}" if beyond else ""
    if misaligned:
        moved = _moved(diagnosis["times"], diagnosis.get("tp", 1))
        return (
            f"{misaligned} of {counted(judged, 'product')}{' judged' if beyond else ''} have sizes "
            f"that {device} serves worse: {moved}{f'; so is {odd}' if is_odd else ''}{how}{but}."
        )
    if is_odd:
        rest = f"none of {counted(judged, 'product')} judged is known to be"
        return f"{capital(odd)} is one that {device} serves worse{how}; {rest}{but}."
    if not judged:
        return f"Not known: none of {counted(totals.get('products', 0), 'product')} can be judged."
    if beyond:
        return f"{of} judged, none known to be served worse by {device}{how}{but}."
    all_judged = f"of {counted(judged, 'product')} judged"
    return f"No size is known that {device} serves worse{how}, {all_judged}{but}."


def _moved(times: Mapping[str, Any], tp: int) -> str:
    """The good sizes of a config's products, as one rank holds them: of a field of the config
    once, whatever products it sizes."""
    moved: dict[str, tuple[int, int]] = {}
    for part in (part for part in times["parts"] if part["misaligned"]):
        need, good = part["need"], part["good"]
        for axis, now in need["shape"].items():
            if now != good[axis]:
                name = need.get("fields", {}).get(axis) or f"{need['name']} {axis}"
                moved[name] = min(moved.get(name, (now, good[axis])), (now, good[axis]))
    sizes = [f"{name} {now} → {good}" for name, (now, good) in moved.items()]
    more = f" and {len(sizes) - MOST_WORST} more" if len(sizes) > MOST_WORST else ""
    return f"{', '.join(sizes[:MOST_WORST])}{more}{' a rank' if tp > 1 else ''}"


def _steps(diagnosis: Mapping[str, Any], times: Mapping[str, Any]) -> list[str]:
    """What steps take by others' measurements, and once what the sums are of."""
    held = "as engines fuse them" if diagnosis["layout"] == "config" else "as stored"
    engines = list(dict.fromkeys(source.split(" ")[0] for source in times["sources"]))
    by = f"{'median of ' * (len(engines) > 1)}{', '.join(engines)}"
    of = f" (products {held}, {by})"
    return [_step(times, i, "" if i else of) for i in range(len(times["totals"]))]


def _step(times: Mapping[str, Any], i: int, of: str) -> str:
    """What a step takes by others' measurements, and what good sizes save of it."""
    total = times["totals"][i]
    step = f"By others' measurements a step of {counted(total['tokens'], 'token')}"
    saved, timed = total["saved"], total["timed"]
    if timed is None:
        return f"{step} takes a time that is not known."
    said = f"{step} takes {bounded_time(**timed)}"
    value = saved["value"] if saved else 0.0
    if value or total["open"]:
        said += " at good sizes"
    said += f"{_without(times, i)}{of}"
    if value:
        save = "save" if saved["low"] > 0 else "may save"
        least = "at least " if total["open"] else ""
        said += f", which {save} {bounded_time(**saved)}"
        end = "low" if total["open"] else "value"  # the whole has no bounds: those of sums are open
        whole = [timed[end] + max(saved[end], 0.0)] * 3
        said += f" of {least}{bounded_time(*whole).partition(' (')[0]}"
    if total["open"]:
        said += f"; as it is, not known ({counted(total['open'], 'part')} open)"
    return f"{said}."


def _without(times: Mapping[str, Any], i: int) -> str:
    """Names the parts that have no time, or counts them where they are many."""
    unknown = times["totals"][i]["unknown"]
    if not unknown:
        return ""
    parts = [(part["need"]["name"], part["costs"][i]["good"]) for part in times["parts"]]
    priced = {name for name, _ in parts}
    refused = (one.partition(":")[0] for one in times["left_out"])
    names = dict.fromkeys(name for name, time in parts if time is None)
    names |= dict.fromkeys(name for name in refused if name not in priced)
    few = ", ".join(names) if 0 < len(names) <= MOST_WORST else counted(unknown, "part")
    return f" without {few}"


def _no_time(diagnosis: Mapping[str, Any]) -> str:
    """Why there are no times where rules judge."""
    why = next((note for note in diagnosis.get("notes", ()) if note.startswith("no times: ")), "")
    lost = by_tier(diagnosis) and diagnosis["totals"]["misaligned"]
    return f"The time it costs is not known ({why.removeprefix('no times: ')})." if lost else ""


def worst(diagnosis: Mapping[str, Any]) -> list[str]:
    """Where most is lost, in a sentence; none where nothing is."""
    slow = [dim for dim in diagnosis["dims"] if dim["verdict"] == "misaligned"]
    alike = group(slow, lambda d: d["name"], lambda d: (d["size"], d["advice"]))
    alike.sort(key=lambda g: -sum(dim["lost_us"] or 0 for dim in g.members))
    most = [f"{g.name} {g.first['size']}: {g.first['advice']}" for g in alike[:MOST_WORST]]
    more = f"; and {len(alike) - MOST_WORST} more" if len(alike) > MOST_WORST else ""
    where = "Worst" if by_tier(diagnosis) else "Most is lost"
    return [f"{where} in {'; '.join(most)}{more}."] if most else []


def left_open(diagnosis: Mapping[str, Any]) -> str:
    """What the verdict does not hold for; empty where it holds for all."""
    totals = diagnosis["totals"]
    heads = ", ".join(map(str, totals.get("head_dims_undecided") or ()))
    undecided = f"Attention's head_dim {heads} is undecided." if heads else ""
    if diagnosis["layout"] == "config":
        return undecided
    most, padded = totals["undecided_penalty_high"], totals.get("fixed_by_engines", 0)
    by = "" if most is None else f" (by at most {percent(most)})"
    counts = {
        f"undecided{by}": totals["undecided"],
        "not known": totals["unknown"] if totals["misaligned"] else 0,  # else said in the verdict
        "not judged (no dim of theirs could be changed)": totals["fixed"] - padded,
        "not judged (engines pad the vocabulary before ranks share it)": padded,
    }
    rest = ", ".join(f"{count} {words}" for words, count in counts.items() if count)
    rest = rest if totals["judged"] else ""
    busy = diagnosis.get("busy") and totals["undecided"]
    said = [
        f"Of the rest {rest}." if rest else "",
        f"Machine busy during the sweep: {diagnosis['busy']}." if busy else "",
        undecided,
    ]
    return " ".join(filter(None, said))


def planned(plan: Mapping[str, Any]) -> str:
    """What a plan changes and gains, in a sentence."""
    changed = sum(choice["after"] != choice["before"] for choice in plan["choices"])
    if not changed:
        return f"The plan changes none of {len(plan['choices'])} dims."
    budget = plan["budget"]
    whole = [budget.get(f"checkpoint_{when}") for when in ("before", "after")]
    size = f", {signed(whole[1] / whole[0] - 1)} parameters" if all(whole) else ""
    dims = f"{changed} of {len(plan['choices'])} dims"
    return f"The plan changes {dims}{size}{_clause(plan.get('basis'))}; {gained(plan)}."


def gained(plan: Mapping[str, Any]) -> str:
    """What a plan's products gain; no gain is claimed whose bounds hold zero."""
    before, after = plan["predicted_before_us"], plan["predicted_after_us"]
    if not before or not after:
        parts = [_in_part(part) for part in plan.get("saved_in_part") or ()]
        if parts:
            return f"it {'; '.join(parts)}"
        return "the time it gains is not known"
    if plan.get("saved_us") is None:
        return (
            f"the weights that it can change should take {microseconds(after)} instead of "
            f"{microseconds(before)} ({signed(after / before - 1)})"
        )
    change = change_of(plan["saved_us"], before)
    return f"of {microseconds(before)} in the weights that it can change, {change}"


def _in_part(part: Mapping[str, Any]) -> str:
    """What a plan saves at one token count in the products whose times are known."""
    save = "saves" if part["low"] > 0 else "may save"
    saved = bounded_time(*(part[each] for each in ("low", "value", "high")))
    at, known = counted(part["tokens"], "token"), ", ".join(part["roles"])
    lacks = f" ({', '.join(part['open'])}: not known)" if part["open"] else ""
    return f"{save} {saved} of {known} at {at}{lacks}"


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
            said.append(f"{phase['workload']} {signed(after / before - 1)} of these weights")
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
    low, middle, high = (signed(ratio - 1) for ratio in timing["ratio"])
    if timing["verdict"] in ("no difference shown", "undecided"):
        return f"{timing['verdict']} ({low} to {high})"
    took = f"{microseconds(timing['latency_us'])} instead of {microseconds(of['latency_us'])}"
    return f"{middle} ({low} to {high}; {took})"


def microseconds(value: float | None) -> str:
    return formatting.microseconds(value) or "unknown"


def percent(value: float | None) -> str:
    return formatting.percent(value) or "–"


def signed(value: float | None) -> str:
    return (formatting.percent(value, signed=True) or "–").replace("-", "−")


def listed(names: Sequence[str]) -> str:
    """``a, b and c``; the first of many."""
    if len(names) > MOST_NAMES:
        names = [*names[: MOST_NAMES - 1], f"{len(names) - MOST_NAMES + 1} more"]
    return " and ".join([*filter(None, [", ".join(names[:-1])]), *names[-1:]])


def capital(clause: str) -> str:
    return clause[:1].upper() + clause[1:]
