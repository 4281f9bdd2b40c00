"""Verbs about checkpoints: ``diagnose``, ``realign``, ``verify``, ``bench``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from gacprof.cli.elsewhere import print_times
from gacprof.cli.options import Output, Reasons, from_requests
from gacprof.cli.printing import (
    MOST_ROWS,
    emit,
    labelled,
    print_table,
    progress,
    say,
    say_notes,
)
from gacprof.core import formatting
from gacprof.core.errors import MeasurementError
from gacprof.core.formatting import at_most, interval, microseconds, percent
from gacprof.core.request import option
from gacprof.diagnosing.request import DiagnoseRequest
from gacprof.evaluation.request import (
    BenchRequest,
    EngineBenchRequest,
    OnEngine,
    VerifyRequest,
)
from gacprof.reporting.grouping import Group, group
from gacprof.reporting.wording import MOST_REASONS, diagnosed, measured
from gacprof.resizing.request import RealignRequest

if TYPE_CHECKING:
    from gacprof.diagnosing import Diagnosis
    from gacprof.diagnosing.findings import DimFinding
    from gacprof.evaluation.summary import BenchResult
    from gacprof.evaluation.verification import Verification
    from gacprof.resizing import RealignResult


@from_requests
def diagnose(asked: DiagnoseRequest, output: Reasons) -> None:
    """Say what each size of a model costs on a GPU.

    It goes by a map (--map), or by the rules of a GPU (--gpu). With --gpu and the extra
    "elsewhere", also what the model's products take there, from others' measurements; a
    config.json alone is enough for that.

    Exit code 1 if any is misaligned, sizes that no plan changes too, or if too little is known to
    judge any. What is undecided or has no time is no finding: it is listed, and the exit code is
    0.
    """
    import gacprof

    found = gacprof.diagnose(asked)
    emit(found, output.as_json, print_diagnosis, output.every, output.why)
    refused = found.totals().get("refused")
    if refused or found.misaligned or found.findings or not found.knows_any:
        raise typer.Exit(1)


@from_requests
def realign(asked: RealignRequest, output: Output) -> None:
    """Write the checkpoint anew with a plan's sizes.

    The input is never changed."""
    import gacprof

    with progress("realign") as advance:
        result = gacprof.realign(replace(asked, progress=advance))
    emit(result, output.as_json, print_realigned, asked.base)


@from_requests
def verify(asked: VerifyRequest, output: Output) -> None:
    """Say whether two models are the same function.

    Both run on the same inputs. Exit code 1 where the error is above the tolerance."""
    import gacprof

    check = gacprof.verify(asked)
    emit(check, output.as_json, print_verification)
    if not check.passed:
        raise typer.Exit(1)


class InEngine(OnEngine):
    """Which engine times the models, and how it is run."""

    engine: str | None = option(default=None, like=EngineBenchRequest)


@from_requests
def bench(asked: BenchRequest, within: InEngine, output: Output) -> None:
    """Time prefill and decoding of models, interleaved."""
    import gacprof

    if within.engine is None and within != InEngine():
        raise MeasurementError("--engine-python, --threads, --trust-remote-code go with --engine")
    if within.engine is not None and (asked.batch > 1 or asked.device is not None):
        raise MeasurementError("with --engine the batch is 1 and the device is the engine's own")
    with progress("bench") as advance:
        if within.engine is None:
            timed = gacprof.bench(replace(asked, progress=advance))
        else:
            made = EngineBenchRequest.joined(asked, within)
            timed = gacprof.bench_engine(replace(made, progress=advance))
    emit(timed, output.as_json, print_timings)


def print_realigned(result: RealignResult, base: str | None) -> None:
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
    say_notes(result.notes)
    say(f"checkpoint: {result.out}")


def print_verification(check: Verification) -> None:
    from gacprof.evaluation.models import distinct_names

    def shown(value: float | None) -> str:
        return "not finite" if value is None else f"{value:.3g}"

    rows: list[tuple[str, str | None]] = [
        ("largest absolute error", shown(check.max_abs_error)),
        ("over the largest logit", f"{shown(check.max_rel_error)} (≤ {check.tolerance:g})"),
        ("root mean square, relative", shown(check.rms_rel_error)),
        ("KL divergence, mean / max (nats)", f"{shown(check.mean_kl)} / {shown(check.max_kl)}"),
        ("same most likely token", percent(check.argmax_agreement)),
    ]
    a, b = distinct_names([check.a, check.b])
    say(_verdict(check, a, b))
    for which, ppl in ((a, check.perplexity_a), (b, check.perplexity_b)):
        if ppl is not None:
            value = "not finite" if ppl.value is None else f"{ppl.value:.4f}"
            rows.append((f"perplexity of {which}, {ppl.tokens:,} tokens", value))
    print_table("", ("quantity", "value"), rows)
    say(f"{b} against {a}")
    say(f"{check.inputs}, {check.positions} positions, in {check.dtype} on {check.device}")
    if check.merged:
        say(f"the tolerance includes rounding the products of {check.merged} merged weights")


def _verdict(check: Verification, a: str, b: str) -> str:
    if check.passed:
        return "passed: the same function within tolerance"
    broken = [name for name, ok in ((a, check.finite_a), (b, check.finite_b)) if not ok]
    if broken:
        whose = "both models" if len(broken) == 2 else broken[0]
        return f"failed: outputs of {whose} are not finite (NaN or infinity), nothing to compare"
    return "failed: the functions differ by more than rounding does"


def print_timings(timed: BenchResult) -> None:
    from gacprof.evaluation.predictions import predictions

    for sentence in measured(timed.as_dict()):
        say(sentence)
    label = dict(zip(timed.models, labelled(timed.models), strict=True))
    rows = [
        (
            t.workload, label[t.model], microseconds(t.latency_us), _rate(timed.tokens_per_s(t)[1]),
            _change(t.ratio) if t.ratio else None, t.verdict,
        )
        for t in sorted(timed.timings, key=lambda t: (t.kind, t.tokens))
    ]  # fmt: skip
    columns = ("workload", "model", "latency", "tokens/s", "against first (95 %)", "verdict")
    print_table("", columns, rows)
    for sentence in predictions(timed):
        say(sentence)
    first = timed.models[0]
    for replicate in timed.replicates:
        say(
            f"A/A spread of {replicate.workload}: {percent(replicate.spread)} ({first} against "
            f"itself: {_change(replicate.ratio)}); no smaller difference is claimed"
        )
    for name, share in timed.busy.items():
        say(f"the GPU computes {percent(share)} of a decode step of {name}")
    say(
        f"{timed.engine + ' on ' if timed.engine else ''}{timed.environment.name}, {timed.dtype}, "
        f"batch {timed.batch}, {timed.rounds} rounds, "
        f"models interleaved, {timed.timer}; the models' intervals hold "
        "for all verdicts together"
    )
    say_notes(timed.notes)


def _rate(tokens_per_s: float) -> str:
    """One decimal below a hundred."""
    return f"{tokens_per_s:,.{0 if tokens_per_s >= 100 else 1}f}"


def _change(ratio: tuple[float, float, float]) -> str:
    """``-2.7 % (-4.2 to -1.1)``, of (low, ratio, high)."""
    low, middle, high = (value - 1 for value in ratio)
    return interval(low, middle, high)


FEW_ROWS = 8
"""Rows of the dims that lose most, below the verdict; ``--why`` has more."""

SECTIONS = {
    "misaligned": "misaligned: the time is surely lost",
    "undecided": "undecided: the map's errors leave it open",
    "unknown": "not in this map",
    "safe": "safe",
}


def print_diagnosis(found: Diagnosis, every: bool, why: bool) -> None:
    """The verdict, at most three reasons, and what to do with the dims that lose most; ``why`` adds
    the rest, ``every`` shows each dim on its own."""
    headline, *reasons = diagnosed(found.summary())
    say(headline)
    full = why or every
    for reason in reasons if full else reasons[:MOST_REASONS]:
        say(reason)
    dims = {verdict: [d for d in found.dims if d.verdict == verdict] for verdict in SECTIONS}
    for advice in [d.advice for d in dims["unknown"][:1]]:
        say(f"the first unknown dim: {advice}")
    if not full:
        if dims["misaligned"]:
            _print_section("", dims["misaligned"], every, FEW_ROWS)
        if not found.misaligned or found.layout == "config":
            say_notes(found.notes)  # how to have it judged, or why this may not hold elsewhere
        say("--why prints the rest: other dims, parts of steps, how sizes were judged, notes")
        return
    for verdict, members in dims.items():
        if members and (every or verdict != "safe"):
            by_tier = found.tolerance is None
            title = f"{verdict}, {found.basis}" if by_tier else SECTIONS[verdict]
            _print_section(title, members, every, MOST_ROWS)
    if found.layout != "config":
        _print_totals(found)
    if found.times is not None:
        print_times(found.times, every)
    shown = found.times.notes if found.times is not None else ()
    say_notes(note for note in found.notes if note not in shown)


def _print_section(title: str, dims: Sequence[DimFinding], every: bool, most: int) -> None:
    """A table of dims of one verdict, at most that many rows unless ``every`` is shown."""
    verdict = dims[0].verdict
    shown: Callable[[DimFinding], Hashable] = (lambda d: d.name) if every else _shown
    rows = group(dims, lambda d: d.name.removesuffix(f":{d.kind}"), shown)
    rows.sort(key=lambda row: -_lost(row))
    few = rows if every else rows[:most]
    table = [{"dims": row.name} | _cells(row, verdict) for row in few]
    print_table(title, list(table[0]), [list(cells.values()) for cells in table])
    left = rows[len(few) :]
    if left:
        count = sum(len(row.members) for row in left)
        lost = sum(_lost(row) for row in left)
        recover = f", {microseconds(lost)} to recover" if lost else ""
        say(f"… and {count} more {verdict} dims{recover} (--all shows each)")
    for line in _reasons(dims):
        say(line)


def _shown(dim: DimFinding) -> Hashable:
    """All that a row shows of a dim, as it is shown: equal rows become one."""
    return (
        dim.kind, dim.size, _todo(dim), percent(dim.penalty), at_most(dim.penalty_high),
        microseconds(dim.latency_us), microseconds(dim.lost_us),
    )  # fmt: skip


def _lost(row: Group[DimFinding]) -> float:
    return sum(dim.lost_us or 0.0 for dim in row.members)


def _cells(row: Group[DimFinding], verdict: str) -> dict[str, Any]:
    """What stands beside a row's name, by column."""
    dim, lost = row.first, _lost(row)
    times = f" ×{len(row.members)}" if len(row.members) > 1 else ""
    size = {"size": f"{dim.kind} {dim.size}{times}"}
    if dim.tolerance is None:  # judged by tiers
        cost = None if dim.relative is None else f"×{dim.relative:g} †"
        return size | {"do": _todo(dim), "published": cost, "served by": dim.tier}
    if verdict == "unknown":
        return size
    penalty = {"penalty": percent(dim.penalty), "at most": at_most(dim.penalty_high)}
    if verdict == "misaligned":
        recovers = microseconds(lost) if lost else None
        return size | {"do": _todo(dim)} | penalty | {"recovers": recovers}
    return size | penalty | {"takes": microseconds(dim.latency_us)}


def _todo(dim: DimFinding) -> str:
    """The advice in a cell; a mark or its first word where there is more to say."""
    advice, _, more = dim.advice.partition(", once ")
    return f"{advice} *" if more else advice.partition(":")[0]


def _reasons(dims: Sequence[DimFinding]) -> Iterator[str]:
    """What the cells leave out of the advice, and where a cost was measured, once each."""
    for where in dict.fromkeys(d.relative_from for d in dims if d.relative is not None):
        yield f"† beside the best tier, {where}: not of these sizes"
    if any(", once " in dim.advice for dim in dims):
        yield "* once the dims beside it in its product are aligned"
    for advice in dict.fromkeys(d.advice for d in dims if d.verdict == "misaligned"):
        if ":" in advice:
            yield advice


def _print_totals(found: Diagnosis) -> None:
    totals = found.totals()
    say(
        f"{found.checkpoint}: {found.layout}, {found.parameters:,} parameters, "
        f"judged in {found.dtype} for {found.device} (map {found.map})"
        f"{f', on one of {found.tp} ranks' if found.tp > 1 else ''}"
    )
    odd = f"{totals['not_divisible_by_8']} ({percent(totals['not_divisible_by_8_share'])})"
    say(f"{odd} of {totals['weights']} weights have a dim that is no multiple of 8")
    if found.tolerance is None:
        return
    say(
        f"tolerance {percent(found.tolerance)}: safe is a penalty of at most that, misaligned one "
        "surely above, undecided one that the map's errors leave open"
    )
    lost = microseconds(totals["lost_us"]) or "unknown"
    say(f"times are sums over {formatting.workload(found.tokens)}; lost to penalties {lost}")
