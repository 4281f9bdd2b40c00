"""The one place that makes sentences and tables of results, for the terminal and the page alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from gacprof.core.formatting import (
    counted,
    microseconds,
    percent,
    percent_interval,
    sizes,
    time_interval,
)
from gacprof.core.points import Axis
from gacprof.core.sizes import Interval, SizeVerdict

if TYPE_CHECKING:
    from gacprof.check.bench import BenchResult
    from gacprof.check.perplexity import Perplexities
    from gacprof.check.verify import Verification
    from gacprof.cliffmap.cliffmap import CliffMap, Curve
    from gacprof.diagnosing.diagnosis import Diagnosis
    from gacprof.diagnosing.explain import Explanation
    from gacprof.kernels.dispatch import DispatchTable
    from gacprof.planning.plan import Plan
    from gacprof.sweeping.sweep import SweepSummary


USUAL_FLAGS = (False, 0, "cold", "tn", "auto", "none")
"""Values of flags that are left out where an axis is named: a model's own way of calling."""


@dataclass(frozen=True)
class Section:
    """A result as people read it: the answer first, then a table, then what else is to be known.

    ``rows`` are of texts, one for each of ``columns``; equal rows stand once, their number last.
    """

    title: str
    headline: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    remarks: tuple[str, ...] = ()


def penalty_text(verdict: SizeVerdict) -> str:
    return percent(verdict.penalty.value) if verdict.penalty else ""


def grouped(names: Sequence[str], rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Rows that are equal but for their names as one, named by the first and how many more."""
    members: dict[tuple[str, ...], list[str]] = {}
    for name, row in zip(names, rows, strict=True):
        members.setdefault(row, []).append(name)
    return [(first_of(names), *row) for row, names in members.items()]


def first_of(names: Sequence[str]) -> str:
    """The first of some names, and how many more."""
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


def total_text(label: str, total: Interval | None) -> list[str]:
    """A sentence on a time; none where it is not known."""
    return [] if total is None else [f"{label}: {time_interval(total)}."]


def diagnosis_section(diagnosis: Diagnosis) -> Section:
    """The dims of a model by verdict, the ones that lose most first."""
    counts = diagnosis.counts
    total = len(diagnosis.dims)
    headline = (
        f"{counts['misaligned']} of {counted(total, 'size')} that may change are misaligned, "
        f"{counts['undecided']} undecided, {counts['unknown']} unknown; "
        f"products in {diagnosis.dtype} at tp {diagnosis.tp}, {diagnosis.provenance}."
    )
    order = ("misaligned", "undecided", "unknown", "safe")
    dims = sorted(diagnosis.dims, key=lambda finding: order.index(finding.now.verdict))
    rows = []
    for finding in dims:
        action = {"pad": f"pad to {finding.target_size}", "merge": "multiply out"}
        text = action.get(finding.action, finding.action)
        now = finding.now
        rows.append((str(now.size), now.verdict, penalty_text(now), text, now.reason))
    for fixed in diagnosis.fixed:
        better = f"{fixed.better.size} is {fixed.better.verdict}" if fixed.better else "keep"
        now = fixed.now
        rows.append((str(now.size), now.verdict, penalty_text(now), better, now.reason))
    names = [finding.dim.name for finding in dims]
    names += [f"{fixed.axis} of {first_of(fixed.places)}" for fixed in diagnosis.fixed]
    remarks = [
        *total_text("Products as they are", diagnosis.latency_us),
        *total_text("Products after every action", diagnosis.better_us),
    ]
    columns = ("dim", "size", "verdict", "penalty", "do", "served by")
    return Section(
        f"Diagnosis of {diagnosis.checkpoint}",
        headline,
        columns,
        tuple(grouped(names, rows)),
        (*remarks, *diagnosis.kernels, *diagnosis.warnings),
    )


def plan_section(plan: Plan) -> Section:
    """The sizes that a plan changes, its limits and its certificate."""
    before, after = plan.parameters
    headline = (
        f"{len(plan.sizes)} of {counted(len(plan.choices), 'size')} change; parameters "
        f"{before:,} → {after:,} ({(after / before - 1) * 100:+.1f} %); {plan.source} knows "
        f"nothing of {sum(choice.verdict == 'unknown' for choice in plan.choices)}."
    )
    changed = [choice for choice in plan.choices if choice.after != choice.before]
    rows = [
        (str(c.before), "multiplied out" if c.after is None else str(c.after), c.verdict)
        for c in changed
    ]
    remarks = [f"Sizes: {plan.provenance}."]
    if plan.latency_us is not None:
        remarks += total_text("Products that dims feed, before", plan.latency_us[0])
        remarks += total_text("Products that dims feed, after", plan.latency_us[1])
    remarks += [f"Limit on {name}: {most:,.0f}." for name, most in plan.limits.items()]
    remarks.append(
        f"Certificate: value {plan.value:.6g}; no compared choice within the limits has more than "
        f"{plan.bound:.6g}."
    )
    if plan.not_compared:
        remarks.append(
            f"Not compared: {counted(plan.not_compared, 'joint size')} of dims that others meet."
        )
    unknown = sum(choice.loss is None for choice in plan.choices)
    if unknown:
        remarks.append(f"What {counted(unknown, 'pinned cut')} loses is not known, nor counted.")
    names = [choice.dim for choice in changed]
    columns = ("dim", "now", "planned", "verdict")
    title = f"Plan for {plan.checkpoint}, objective {plan.objective}"
    return Section(title, headline, columns, tuple(grouped(names, rows)), tuple(remarks))


def axis_text(axis: Axis) -> str:
    """An axis without the flags that are off or usual: ``linear K M=1 N=1024 bfloat16``."""
    flags = {name: value for name, value in axis.flags.items() if value not in USUAL_FLAGS}
    return replace(axis, flags=flags).key


def map_section(cliff_map: CliffMap) -> Section:
    """The curves of a map: multiples, safe sizes, cliffs; a virtual GPU's: kernels."""
    curves = cliff_map.curves
    points = sum(len(curve.sizes) for curve in curves)
    cliffs = sum(len(curve.cliffs) for curve in curves)
    headline = (
        f"{counted(len(curves), 'curve')}, {counted(points, 'size')}, {counted(cliffs, 'cliff')}; "
        f"{cliff_map.provenance}."
    )
    if cliff_map.environment.kind == "virtual":
        remark = "A virtual GPU has kernels and no latencies: no size is safe or misaligned by it."
        return Section(
            f"Map {cliff_map.name}",
            headline,
            ("curve", "sizes", "served by"),
            tuple(kernel_rows(curves)),
            (*(warning.message for warning in cliff_map.warnings), remark),
        )
    rows = []
    for curve in curves:
        jumps = [f"{c.before}→{c.after} {percent(c.jump.value, 0)}" for c in curve.cliffs[:4]]
        rows.append(
            (
                axis_text(curve.axis),
                str(curve.multiple or ""),
                sizes(curve.with_verdict("safe")),
                f"{len(curve.with_verdict('misaligned'))}",
                f"{len(curve.with_verdict('undecided'))}",
                ", ".join(jumps) + (" …" if len(curve.cliffs) > 4 else ""),
            )
        )
    remarks = [warning.message for warning in cliff_map.warnings]
    if cliff_map.noise_floor is not None:
        remarks.insert(0, f"Noise floor (A/A, 95 %): {percent(cliff_map.noise_floor)}.")
    remarks.append(
        "Undecided: noise spreads the penalty over the tolerance of "
        f"{percent(cliff_map.tolerance)}, or the sizes to pad to were not all measured."
    )
    columns = ("curve", "multiple", "safe", "misaligned", "undecided", "cliffs")
    return Section(f"Map {cliff_map.name}", headline, columns, tuple(rows), tuple(remarks))


def kernel_rows(curves: Sequence[Curve]) -> Iterator[tuple[str, str, str]]:
    """By curve and kernel: the sizes that it serves."""
    for curve in curves:
        kernels = {verdict.size: verdict.kernel or verdict.reason for verdict in curve.sizes}
        yield from served(axis_text(curve.axis), kernels)


def served(name: str, kernels: Mapping[int, str]) -> Iterator[tuple[str, str, str]]:
    """A row a kernel: a name, the sizes that it serves, and the kernel."""
    sizes_of: dict[str, list[int]] = {}
    for size, kernel in kernels.items():
        sizes_of.setdefault(kernel, []).append(size)
    for kernel, served_sizes in sizes_of.items():
        yield name, sizes(served_sizes), kernel


SDPA_CALLS: Mapping[str, Mapping[str, Any]] = {
    "head_dim, causal prefill": {"causal": True},
    "head_dim, prefill with a mask": {"mask": "float"},
    "head_dim, prefill, grouped queries": {"causal": True, "gqa": True},
    "head_dim, decode": {"q_len": 1},
    "head_dim, decode, grouped queries": {"q_len": 1, "gqa": True},
}
"""Calls of attention that are shown, of 1024 keys."""


def dispatch_section(table: DispatchTable) -> Section:
    """Attention, rows and products that refuse sizes, each by the sizes that a kernel serves."""
    rows: list[tuple[str, str, str]] = []
    for name, call in SDPA_CALLS.items():
        head_dims = range(1, table.sections["sdpa"].range[1] + 1)
        rows += served(name, {d: str(table.sdpa(d, **call)) for d in head_dims})
    lengths = range(1, table.sections["rows"].range[1] + 1)
    for operator in ("rms_norm", "layer_norm", "softmax"):
        rows += served(f"{operator} over", {n: str(table.rows(operator, n)) for n in lengths})
    lengths = range(1, table.sections["stream"].range[1] + 1)
    rows += served("row_sum by Triton over", {n: table.stream("row_sum", n) for n in lengths})
    last = table.sections["products"].range[1]
    for operator, axis in table.sections["products"].keys:
        answers = {n: str(table.product(operator, axis, n)) for n in range(1, last + 1)}
        rows += served(f"{operator}, {axis}", answers)
    headline = f"{table.device}, bfloat16: {table.provenance}."
    remark = (
        "Other types, chunks, splits, grids, embedding, cat and sort: --out FILE, or in Python "
        "gacprof.kernels.dispatch.load_table."
    )
    return Section(
        f"Dispatch on {table.gpu}", headline, ("size", "is", "kernel"), tuple(rows), (remark,)
    )


def explanation_section(explanation: Explanation) -> Section:
    """A size beside the next better one."""
    now, better = explanation.now, explanation.better
    headline = f"{now.size} is {now.verdict}, {explanation.provenance}."
    if better is not None and explanation.slower is not None:
        headline += f" Its time over that of {better.size}: {percent_interval(explanation.slower)}."
    rows = []
    for verdict in filter(None, (now, better)):
        time = microseconds(verdict.latency_us.value) if verdict.latency_us else ""
        rows.append(
            (str(verdict.size), verdict.verdict, penalty_text(verdict), time, verdict.reason)
        )
    columns = ("size", "verdict", "penalty", "latency", "served by")
    return Section(f"Size {now.size} on {explanation.source}", headline, columns, tuple(rows))


def verification_section(result: Verification) -> Section:
    """What two checkpoints have in common, and how far their logits lie apart."""
    answers = {
        "same": "are the same function",
        "different": "are NOT the same function",
        "undecided": "may or may not be the same function",
    }
    headline = (
        f"{result.checkpoint} and {result.other} {answers[result.verdict]}: {result.equal} tensors "
        f"are equal, {result.padded} but for added zeros; {result.merged} layers' factors are "
        f"multiplied out; {len(result.differing)} other tensors and settings are left to the "
        f"logits of {result.positions} tokens"
    )
    if result.verdict == "undecided":
        headline += f", which do not vouch for {first_of(result.unreached)}"
    if not result.positions:
        headline += " (nothing was run: these models do not read and write text)"
    numbers = {
        "largest error of a logit, over the largest logit": result.max_error,
        "tolerance: both models' own rounding errors": result.tolerance,
        "root mean square error": result.rms_error,
        "mean KL divergence of next tokens, nats": result.mean_kl,
        "share of tokens with the same most likely successor": result.same_argmax,
    }
    rows = [(name, f"{number:.3g}") for name, number in numbers.items() if number is not None]
    remarks = (
        f"Computed in {result.dtype} on {result.device}; only float32 tells small differences of "
        "weights. Tokenizers, generation settings and longer texts were not compared.",
    )
    return Section(
        "The same function?", f"{headline}.", ("quantity", "value"), tuple(rows), remarks
    )


def bench_section(result: BenchResult) -> Section:
    """Models by workload, each beside the first one; on a GPU how much of the time it worked."""
    decided = [t for t in result.timings if t.verdict in ("faster", "slower")]
    said = [f"{t.model} is {t.verdict} than {result.models[0]} in {t.workload}" for t in decided]
    headline = ("; ".join(said) or "No difference is sure") + "."
    rows = []
    for timing in result.timings:
        change = Interval(timing.ratio.low - 1, timing.ratio.value - 1, timing.ratio.high - 1)
        text = "" if timing.verdict == "reference" else percent_interval(change)
        rows.append(
            (timing.workload, timing.model, time_interval(timing.latency_us), text, timing.verdict)
        )
    for replicate in result.replicates:
        ratio = replicate.ratio
        change = Interval(ratio.low - 1, ratio.value - 1, ratio.high - 1)
        row = (replicate.workload, "the first again (A/A)", time_interval(replicate.latency_us))
        rows.append((*row, percent_interval(change), replicate.verdict))
    remarks = [
        f"{result.environment.name}, {result.dtype}, {result.rounds} rounds, models interleaved."
    ]
    for timing in result.timings:
        if timing.busy_share is not None:
            share = percent(timing.busy_share, 0)
            remarks.append(
                f"{timing.workload}, {timing.model}: the device was busy {share} of the time."
            )
    if result.not_captured:
        remarks.append(f"Decoding was not captured in a CUDA graph: {result.not_captured}.")
    columns = ("workload", "model", "latency", "time against the first", "verdict")
    return Section("Measured side by side", headline, columns, tuple(rows), tuple(remarks))


def perplexity_section(result: Perplexities) -> Section:
    """Models on one text, each beside the first one."""
    rows = tuple(
        (m.model, f"{m.value:.4g}", percent_interval(m.change) if m.change else "")
        for m in result.models
    )
    headline = "; ".join(f"{m.model} {m.value:.4g}" for m in result.models) + "."
    remark = (
        f"{result.tokens:,} tokens of {result.text}, windows of {result.window} by "
        f"{result.stride}, {result.dtype} on {result.device}."
    )
    columns = ("model", "perplexity", "against the first")
    return Section("Perplexity", headline, columns, rows, (remark,))


def sweep_section(summary: SweepSummary) -> Section:
    """The counts of a sweep, and the verb that follows."""
    if summary.folder is None:
        headline = f"{counted(summary.points, 'point')} on {counted(summary.curves, 'curve')}."
        remarks = ["Nothing was measured."]
        if summary.preparation:
            needs = summary.preparation
            remarks.append(
                f"Each process captures {counted(needs.captures, 'CUDA graph')}, makes up to "
                f"{counted(needs.cudnn_plans, 'cuDNN plan')} and holds up to "
                f"{needs.memory_bytes / 2**30:.2g} GiB of operands."
            )
        return Section("A dry run", headline, remarks=tuple(remarks))
    headline = (
        f"{counted(summary.calls, 'call')} of {counted(summary.points, 'point')} in "
        f"{counted(summary.blocks, 'block')}, {summary.seconds:.0f} s; {summary.failed} failed."
    )
    return Section(
        f"Sweep in {summary.folder}", headline, remarks=(f"gacprof map build {summary.folder}",)
    )


SECTIONS: dict[str, Callable[[Any], Section]] = {
    "BenchResult": bench_section,
    "CliffMap": map_section,
    "Diagnosis": diagnosis_section,
    "DispatchTable": dispatch_section,
    "Explanation": explanation_section,
    "Perplexities": perplexity_section,
    "Plan": plan_section,
    "SweepSummary": sweep_section,
    "Verification": verification_section,
}
"""By the name of the result's class, so that nothing heavy is imported to print a light one."""


def cell_text(value: Any) -> str:
    """A field as a cell: an interval by its value, what is not known as nothing."""
    if value is None:
        return ""
    if isinstance(value, Interval):
        return f"{value.value:.4g}"
    return str(value).translate(str.maketrans("", "", "(){}'"))


def section_of(result: Any) -> Section:
    """The section of a result: its own, a table's, or a dataclass's plain fields."""
    name = type(result).__name__
    if name in SECTIONS:
        return SECTIONS[name](result)
    if name == "DataFrame":
        rows = tuple(tuple(map(str, row)) for row in result.itertuples(index=False))
        return Section("", "", tuple(map(str, result.columns)), rows)
    if isinstance(result, list) and result and is_dataclass(result[0]):
        columns = tuple(field.name for field in fields(result[0]))
        rows = tuple(tuple(cell_text(getattr(item, c)) for c in columns) for item in result)
        return Section("", "", columns, rows)
    if is_dataclass(result):
        pairs = [(field.name, str(getattr(result, field.name))) for field in fields(result)]
        return Section(name, "", ("field", "value"), tuple(pairs))
    return Section("", str(result))
