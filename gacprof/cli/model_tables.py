"""What the verbs about checkpoints print: tables, and what has to be said under them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gacprof.cli.printing import at_most, microseconds, percent, print_table, say


def print_realigned(result: Any, base: str | None) -> None:
    """What realigning did; ``base`` is where original weights came from."""
    more = result.parameters_after / result.parameters_before - 1
    fused = f", {len(result.fused)} modules fused" if result.fused else ""
    say(
        f"{len(result.resized)} dims resized{fused}, {result.parameters_before:,} → "
        f"{result.parameters_after:,} parameters ({percent(more, signed=True)})"
    )
    say(result.meaning)
    if result.informed:
        before, after = result.residuals
        say(
            f"{len(result.informed)} ranks filled from {base}: ‖W − u·v‖ / ‖W‖ falls from "
            f"{before:.4f} to {after:.4f} (root mean square over them)"
        )
    for note in result.notes:
        say(f"note: {note}")
    say(f"checkpoint: {result.out}")


def print_timings(timed: Any) -> None:
    rows = [
        (
            t.workload,
            t.model,
            microseconds(t.latency_us),
            *(_change(t.ratio) if t.ratio else (None, None)),
            t.verdict,
        )
        for t in sorted(timed.timings, key=lambda t: (t.kind, t.tokens))
    ]
    columns = ("workload", "model", "latency", "against first", "95 % interval", "verdict")
    print_table("", columns, rows)
    first = timed.models[0]
    for replicate in timed.replicates:
        middle, interval = _change(replicate.ratio)
        say(
            f"A/A spread of {replicate.workload}: {percent(replicate.spread)} ({first} against "
            f"itself {middle}, {interval}); no smaller difference is claimed"
        )
    for name, share in timed.busy.items():
        say(f"the GPU computes {percent(share)} of a decode step of {name}")
    say(
        f"{timed.environment.name}, {timed.dtype}, batch {timed.batch}, {timed.rounds} rounds, "
        f"models interleaved, {timed.timer}; the models' intervals hold "
        "for all verdicts together"
    )
    for note in timed.notes:
        say(f"note: {note}")


def _change(ratio: tuple[float, float, float]) -> tuple[str | None, str]:
    """(difference, interval) in percent."""
    low, middle, high = (percent(value - 1, signed=True) for value in ratio)
    return middle, f"{low} to {high}"


def print_verification(check: Any) -> None:
    def shown(value: float | None) -> str:
        return "not finite" if value is None else f"{value:.3g}"

    rows = [
        ("largest absolute error", shown(check.max_abs_error)),
        ("over the largest logit", f"{shown(check.max_rel_error)} (≤ {check.tolerance:g})"),
        ("root mean square, relative", shown(check.rms_rel_error)),
        ("KL divergence, mean / max (nats)", f"{shown(check.mean_kl)} / {shown(check.max_kl)}"),
        ("same most likely token", percent(check.argmax_agreement)),
    ]
    from gacprof.evaluation import distinct_names

    a, b = distinct_names([check.a, check.b])
    for which, ppl in ((a, check.perplexity_a), (b, check.perplexity_b)):
        if ppl is not None:
            value = "not finite" if ppl.value is None else f"{ppl.value:.4f}"
            rows.append((f"perplexity of {which}, {ppl.tokens:,} tokens", value))
    print_table("", ("quantity", "value"), rows)
    say(f"{b} against {a}")
    say(f"{check.inputs}, {check.positions} positions, in {check.dtype} on {check.device}")
    say(_verdict(check, a, b))


def _verdict(check: Any, a: str, b: str) -> str:
    if check.passed:
        return "passed: the same function within tolerance"
    broken = [name for name, ok in ((a, check.finite_a), (b, check.finite_b)) if not ok]
    if broken:
        whose = "both models" if len(broken) == 2 else broken[0]
        return f"failed: outputs of {whose} are not finite (NaN or infinity), nothing to compare"
    return "failed: the functions differ by more than rounding does"


def _short(dim: str) -> str:
    """``model.layers.3.self_attn.q_proj:rank`` → ``3.self_attn.q_proj:rank``."""
    return dim.removeprefix("model.layers.")


def _undecided(totals: Mapping[str, Any]) -> str:
    """``3 undecided (of at most 4.1 %)``."""
    bound = totals["undecided_penalty_high"]
    return f"{totals['undecided']} undecided" + ("" if bound is None else f" (≤ {percent(bound)})")


def print_diagnosis(found: Any, every: bool) -> None:
    totals = found.totals()
    rows = [
        (
            _short(d.name),
            d.size,
            d.verdict,
            percent(d.penalty),
            None if d.verdict == "unknown" else at_most(d.penalty_high),
            microseconds(d.latency_us),
            "not in this map" if d.verdict == "unknown" else d.advice,
            microseconds(d.lost_us) if d.lost_us else None,
        )
        for d in sorted(found.dims, key=lambda d: -d.lost_us)
        if every or d.verdict != "safe"
    ]
    columns = ("dim", "size", "verdict", "penalty", "at most", "now", "what to do", "recovers")
    if rows:
        print_table("", columns, rows)
    say(
        f"{found.checkpoint}: {found.layout}, {found.parameters:,} parameters, "
        f"judged in {found.dtype} for {found.device} (map {found.map})"
    )
    told = (
        f"{totals['misaligned']} of {totals['weights']} weights "
        f"({percent(totals['misaligned_share'])}), {_undecided(totals)}, "
        f"{totals['unknown']} unknown"
    )
    if totals["weights"] and not totals["judged"]:
        told = f"not known: this map knows none of the {totals['weights']} weights"
    say(
        f"misaligned by measurement: {told}; not a multiple of 8: {totals['not_divisible_by_8']} "
        f"({percent(totals['not_divisible_by_8_share'])})"
    )
    say(
        f"tolerance {percent(found.tolerance)}: safe is a penalty of at most that, misaligned one "
        "surely above, undecided one that the map's errors leave open"
    )
    when = ", ".join(f"{m} tokens × {w:g}" for m, w in found.tokens.items())
    predicted = microseconds(totals["predicted_us"]) or "unknown"
    say(
        f"predicted time in matrix products, {when}: {predicted}; lost to penalties "
        f"{microseconds(totals['lost_us']) or 'unknown'}, recoverable by padding "
        f"{microseconds(totals['recoverable_us']) or 'unknown'}"
    )
    missing = next((d.advice for d in found.dims if d.verdict == "unknown"), None)
    for note in (*found.notes, *([f"the first unknown dim: {missing}"] if missing else ())):
        say(f"note: {note}")
