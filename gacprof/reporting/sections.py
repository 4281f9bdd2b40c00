"""The one place that makes sentences and tables of results, for the terminal and the page alike."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import chain, compress
from math import isclose
from operator import itemgetter
from pathlib import Path
from shlex import quote
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import gacprof
from gacprof.checkpoint.inventory import Inventory
from gacprof.core.files import plain, shipped_table
from gacprof.core.formatting import (
    counted,
    microseconds,
    percent,
    percent_interval,
    sizes_text,
    time_interval,
)
from gacprof.core.sizes import Estimate, Interval, SizeVerdict, Verdict
from gacprof.diagnosing.source import rows_text
from gacprof.kernels.dispatch import SCOPE
from gacprof.kernels.penalties import CUDA, MIN_ROWS, ONE_ROW, PADDED_TO
from gacprof.kernels.third_party import PACKAGE

if TYPE_CHECKING:
    from pandas import DataFrame

    from gacprof.diagnosing.slowdown import Slowdown
    from gacprof.lint.remedies import Remedy
    from gacprof.tracing.findings import MisalignedProduct
    from gacprof.virtual.ask import DispatchChange

CLIFFS_SHOWN = 4
MAX_GAPS = 8  # more of what was not accounted for is told by --json
# calls of attention that are shown, of 1024 keys and one sequence with 32 query heads
SDPA_CALLS: Mapping[str, Mapping[str, Any]] = {
    "head_dim, causal prefill": {"causal": True},
    "head_dim, prefill with a mask": {"mask": "float"},
    "head_dim, prefill, grouped queries": {"causal": True, "kv_heads": 8},
    "head_dim, decode": {"q_len": 1},
    "head_dim, decode, grouped queries": {"q_len": 1, "kv_heads": 8},
}
VERDICTS: tuple[Verdict, ...] = ("misaligned", "undecided", "unknown", "safe")  # in this order
OPERATORS = {"linear": 0, "quantised": 1, "attention": 2}  # the first of a table, in order
OTHER_KINDS = ("aligned", "no tiers", "attention", "other")
ALSO_WIDTH = 24  # letters of sizes that are good and no multiple
MAX_CHANGES = 40  # of two releases; --json has all
MAX_UNKNOWN = 3  # names of kernels
MAX_PRODUCTS = 20  # of a trace; --json has all
WORDS_FILE = Path(__file__).parent / "words.toml"
WORDS = shipped_table(WORDS_FILE, dict[str, dict[str, str]])
REMARKS = WORDS["remarks"]
PLACEHOLDERS = {"checkpoint": "MODEL", "plan": "plan.json", "other": "ALIGNED"}
PLACEHOLDERS |= dict.fromkeys(("run", "source"), "runs/own")
"""What stands in a step's command for what nobody named."""
Row = tuple[str, ...]  # the texts of a table's row, one for each column


@dataclass(frozen=True)
class Section:
    """A result as people read it: the answer first, then a table, then what else is to be known."""

    title: str
    headline: str
    columns: Sequence[str] = ()
    rows: Sequence[Row] = ()
    remarks: Sequence[str] = ()


def verdict_cells(verdict: SizeVerdict) -> Row:
    """A size, the verdict on it and its penalty with bounds, or what others' measurements say."""
    penalty = ""
    if verdict.penalty is not None:
        penalty = percent_interval(verdict.penalty)
    elif verdict.estimate is not None:
        penalty = f"×{verdict.estimate.low:.2g} to {verdict.estimate.high:.2g} est."
    return str(verdict.size), verdict.verdict, penalty


def first_of(names: Sequence[str], count: int = 1, word: str = " and ") -> str:
    """The first of some names, and how many more."""
    more = [f"{len(names) - count} more"] if len(names) > count else []
    return word.join([*names[:count], *more])


def grouped(
    rows: Iterable[Row], column: int = 0, join: Callable[[list[str]], str] = first_of
) -> list[Row]:
    """Rows that are equal but for a column, as one: its first cell, or those that are joined."""
    cells: dict[tuple[Row, Row], list[str]] = {}
    for row in rows:
        cells.setdefault((row[:column], row[column + 1 :]), []).append(row[column])
    return [(*before, join(names), *after) for (before, after), names in cells.items()]


def sentence(text: str) -> str:
    """A part of a sentence as one of its own."""
    return f"{text[:1].upper()}{text[1:]}."


def told(value: object, sentence: str) -> list[str]:
    """A sentence on a value; none where there is nothing to tell: none, 0 or empty."""
    return [sentence] if value else []


def total_text(label: str, total: Interval | None) -> list[str]:
    """A sentence on a time; none where it is not known."""
    return [] if total is None else [f"{label}: {time_interval(total)}."]


def groups_text(estimates: Iterable[Estimate | None]) -> str:
    """Who measured what estimates are made of: ``4 groups' measurements on A100 and H100``."""
    stated = [estimate for estimate in estimates if estimate is not None]
    numbers = sorted({str(estimate.groups) for estimate in stated})
    gpus = sorted(set().union(*(estimate.gpus for estimate in stated)))
    return f"{' or '.join(numbers)} groups' measurements on {' and '.join(gpus)}"


def estimates_text(verdicts: Iterable[SizeVerdict]) -> list[str]:
    """What the estimates are made of; nothing where there is none."""
    estimates = {verdict.estimate for verdict in verdicts if verdict.estimate is not None}
    if not estimates:
        return []
    numbers = {"padded_to": PADDED_TO, "rows": MIN_ROWS, "cuda": CUDA, "one_row": ONE_ROW}
    text = REMARKS["estimates"].format(groups=groups_text(estimates), **numbers)
    if any(estimate.basis == "rate" for estimate in estimates):
        text += f" Where {PACKAGE} timed the padded product: by the kernel's rate."
    return [text]


def slowdown_text(cost: Slowdown) -> str:
    """What a model's misaligned products may cost, beside the padded and the dense model."""
    shares = f"{percent(cost.odd, 0)} odd, {percent(cost.even, 0)} even"
    if cost.unknown:
        shares += f", {percent(cost.unknown, 0)} misaligned of unknown cost and counted as padded"
    counted_by, amount, unit = "arithmetic", "×{}", 1.0
    if cost.padded_us is not None:
        counted_by, amount, unit = f"{PACKAGE}'s padded times", "{} ms", cost.padded_us / 1e3
    models = ["padded " + amount.format(f"{unit:.2g}")]
    if cost.dense:
        models.append("dense (padded too) " + amount.format(f"{cost.dense * unit:.2g}"))
    bounds = f"{cost.low * unit:.2g} to {cost.high * unit:.2g}"
    models.append("as stored an estimated " + amount.format(bounds))
    without = "The host's time, attention"
    if cost.untimed:
        without += f", {percent(cost.untimed, 0)} of the arithmetic, which nobody timed,"
    return (
        f"Products at {' and '.join(map(str, cost.tokens))} tokens ({shares}, by {counted_by}): "
        f"{', '.join(models)}. {without} and all else are not in it."
    )


def diagnosis_section(diagnosis: gacprof.Diagnosis) -> Section:
    """The dims of a model by verdict, misaligned ones first."""
    products = f"Products in {diagnosis.dtype} at tp {diagnosis.tp}"
    headline = f"{diagnosis_text(diagnosis)} {products}, {diagnosis.provenance}."
    rows: list[Row] = []
    for finding in sorted(diagnosis.dims, key=lambda dim: VERDICTS.index(dim.now.verdict)):
        actions = {"pad": f"pad to {finding.target_size}", "merge": "multiply out"}
        action = actions.get(finding.action, finding.action)
        rows.append((finding.dim.name, *verdict_cells(finding.now), action, finding.now.reason))
    for fixed in diagnosis.fixed:
        name = f"{fixed.axis} of {first_of(fixed.places)}"
        if fixed.stored not in (None, fixed.now.size):
            name += f" (one rank's part of {fixed.stored})"
        action = f"{fixed.better.size} is {fixed.better.verdict}" if fixed.better else "keep"
        rows.append((name, *verdict_cells(fixed.now), action, fixed.now.reason))
    verdicts = [finding.now for finding in diagnosis.dims]
    remarks = estimates_text([*verdicts, *(fixed.now for fixed in diagnosis.fixed)])
    if diagnosis.slowdown is not None:
        remarks.append(slowdown_text(diagnosis.slowdown))
    if set(diagnosis.tokens) == {1} and diagnosis.latency_us is None:
        remarks.append(f"At one row at most ×{ONE_ROW} was seen (A100, H200).")
    calls = f"Products at {rows_text(diagnosis.tokens)}"
    remarks += total_text(f"{calls}, as they are", diagnosis.latency_us)
    remarks += total_text(f"{calls}, after every action", diagnosis.better_us)
    remarks += [*diagnosis.kernels, *diagnosis.warnings]
    columns = ("dim", "size", "verdict", "penalty", "do", "served by")
    title = f"Diagnosis of {diagnosis.checkpoint} by {diagnosis.source}"
    return Section(title, headline, columns, grouped(rows), remarks)


def diagnosis_text(diagnosis: gacprof.Diagnosis) -> str:
    """What is wrong with the sizes of a model, and what to do."""
    dims = diagnosis.dims
    by_verdict = [f"{diagnosis.counts[v]} {v}" for v in VERDICTS if diagnosis.counts[v]]
    actions = Counter(finding.action for finding in dims)
    merged = counted(actions["merge"], "factor pair")
    fixed = [finding.dim.why for finding in dims if not finding.dim.adjustable]
    unknown = [finding.dim.name for finding in dims if finding.now.verdict == "unknown"]
    sentences = [
        *told(
            diagnosis.gaps,
            f"Not recognised: {diagnosis.not_recognised}. Name factor pairs by --factors, such as "
            "'{module}.up.weight' '{module}.down.weight'. Of the rest:",
        ),
        f"{counted(len(dims), 'size')}: {', '.join(by_verdict) or 'none that may change'}.",
        *told(actions["pad"], f"Pad {actions['pad']}, or let gacprof plan choose."),
        *told(actions["merge"], f"Faster multiplied out: {merged}."),
        *told(fixed, f"{len(fixed)} may not change: {first_of([*dict.fromkeys(fixed)])}."),
        *told(unknown, unknown_text(diagnosis, unknown)),
    ]
    return " ".join(sentences)


def unknown_text(result: gacprof.Diagnosis | gacprof.Plan, unknown: Sequence[str]) -> str:
    """How sizes that a source does not know become known."""
    lack = f"{result.source} does not know {len(unknown)} ({first_of(unknown)})"
    command = f"gacprof sweep --model {quote(result.checkpoint)}"
    return f"{lack}: measure them by {command}, or ask a GPU's rules (--gpu, no times)."


def plan_section(plan: gacprof.Plan) -> Section:
    """The sizes that a plan changes, its limits and its certificate."""
    before, after = plan.parameters
    sizes = counted(len(plan.choices), "size")
    change = f"parameters {before:,} → {after:,} ({(after / before - 1) * 100:+.1f} %)"
    headline = f"{len(plan.sizes)} of {sizes} change; {change}."
    if not plan.sizes:
        headline = f"None of {sizes} changes; parameters stay {before:,}."
    unknown = [choice.dim for choice in plan.choices if choice.verdict == "unknown"]
    headline = " ".join([headline, *told(unknown, unknown_text(plan, unknown))])
    rows: list[Row] = []
    for choice in plan.choices:
        if choice.after != choice.before:
            after_text = "multiplied out" if choice.after is None else str(choice.after)
            rows.append((choice.dim, str(choice.before), after_text, choice.verdict))
    remarks = [certificate_text(plan), f"Sizes: {plan.provenance}."]
    undecided = {choice.dim for choice in plan.choices if choice.verdict == "undecided"}
    open_question = "Undecided sizes: whether they are safe only a measurement tells."
    remarks += told(undecided & plan.sizes.keys(), open_question)
    if plan.latency_us is not None:
        calls = f"Products at {rows_text(plan.tokens)}"
        remarks += total_text(f"{calls}, as they are", plan.latency_us[0])
        remarks += total_text(f"{calls}, after the plan", plan.latency_us[1])
    remarks += [f"Limit on {name}: {most:,.0f}." for name, most in plan.limits.items()]
    missing = counted(plan.not_compared, "joint size")
    remarks += told(plan.not_compared, f"Not compared: {missing} of dims that others meet.")
    not_priced = sum(choice.loss is None for choice in plan.choices)
    pinned = counted(not_priced, "pinned cut")
    remarks += told(not_priced, f"What {pinned} loses is not known, nor counted.")
    required = {choice.required for choice in plan.choices if choice.required.row}
    rows_needed = sorted(required, key=lambda need: need.row)
    remarks += [f"Multiples of {need.multiple}: {need.row}." for need in rows_needed]
    remarks += told(plan.engine, f"{plan.engine}, with the planned sizes: {plan.outcome}.")
    remarks += [f"Not mended: {line}." for line in plan.unmended]
    remarks += [f"Tried: {remedy_text(remedy)}." for remedy in plan.alternatives]
    columns = ("dim", "now", "planned", "verdict")
    title = f"Plan for {plan.checkpoint}, objective {plan.objective}"
    return Section(title, headline, columns, grouped(rows), remarks)


def certificate_text(plan: gacprof.Plan) -> str:
    """What a plan gives up, and how far from the best of the compared choices it may be."""
    gains = {
        "quality": "Nothing is cut" if plan.value == 0 else f"Loss {-plan.value:.4g}",
        "pad": f"{-plan.value:,.0f} parameters",
        "gac": f"Weighted sum {plan.value:.6g}",
    }
    if isclose(plan.value, plan.bound, rel_tol=1e-9, abs_tol=1e-12):
        best = "proved best of all compared choices within the limits"
    else:
        best = f"at most {plan.bound - plan.value:.3g} from the best within the limits (proved)"
    return f"{gains[plan.objective]}: {best}."


def map_section(cliff_map: gacprof.CliffMap) -> Section:
    """The curves of a map: multiples, safe sizes, cliffs; a virtual GPU's: kernels."""
    curves = cliff_map.curves
    cliffs = counted(sum(len(curve.cliffs) for curve in curves), "cliff")
    sizes = chain.from_iterable(curve.sizes for curve in curves)
    verdicts = Counter(verdict.verdict for verdict in sizes)
    by_verdict = ", ".join(f"{number} {name}" for name, number in sorted(verdicts.items()))
    headline = f"{counted(verdicts.total(), 'size')} on {counted(len(curves), 'curve')}: "
    headline += f"{by_verdict}; {cliffs}. {sentence(cliff_map.provenance)}"
    title = f"Map {cliff_map.name}"
    warnings = [warning.message for warning in cliff_map.warnings]
    rows: list[Row] = []
    if cliff_map.environment.kind == "virtual":
        remark = "A virtual GPU has kernels and no latencies: no size is safe or misaligned by it."
        for curve in curves:
            kernels = {verdict.size: verdict.kernel or verdict.reason for verdict in curve.sizes}
            rows += kernel_rows(curve.label, kernels)
        return Section(title, headline, ("curve", "sizes", "served by"), rows, [*warnings, remark])
    for curve in curves:
        highest = sorted(curve.cliffs, key=lambda cliff: -abs(cliff.jump.value))
        shown = [f"{c.before}→{c.after} {percent(c.jump.value)}" for c in highest]
        cliffs_text = first_of(shown, CLIFFS_SHOWN, ", ")
        safe = sizes_text(curve.with_verdict("safe"))
        numbers = [str(len(curve.with_verdict(name))) for name in ("misaligned", "undecided")]
        multiple = str(curve.round_to or "")
        rows.append((curve.label, multiple, safe, *numbers, cliffs_text))
    if cliff_map.noise_floor is not None:
        warnings.insert(0, f"Noise floor (A/A, 95 %): {percent(cliff_map.noise_floor)}.")
    remark = REMARKS["undecided"].format(tolerance=percent(cliff_map.tolerance))
    columns = ("curve", "multiple", "safe", "misaligned", "undecided", "cliffs")
    return Section(title, headline, columns, rows, [*warnings, remark])


def kernel_rows(name: str, kernels: Mapping[int, str]) -> list[Row]:
    """A row a kernel: a name, the sizes that it serves, and the kernel."""
    return [(name, sizes_text(sizes), kernel) for kernel, sizes in sizes_by(kernels).items()]


def sizes_by(kernels: Mapping[int, str]) -> dict[str, list[int]]:
    """The sizes that each kernel serves."""
    sizes_of: dict[str, list[int]] = {}
    for size, kernel in kernels.items():
        sizes_of.setdefault(kernel, []).append(size)
    return sizes_of


def dispatch_section(table: gacprof.DispatchTable) -> Section:
    """Attention, rows and products that refuse sizes, each by the sizes that a kernel serves."""

    def range_of(section: str) -> range:
        return range(1, table.sections[section].range[1] + 1)

    rows: list[Row] = []
    for name, call in SDPA_CALLS.items():
        answers = {d: table.sdpa(d, batch=1, heads=32, **call) for d in range_of("sdpa")}
        rows += kernel_rows(name, {d: str(answer) for d, answer in answers.items()})
    for operator in ("rms_norm", "layer_norm", "softmax"):
        kernels = {n: str(table.rows(operator, n)) for n in range_of("rows")}
        rows += kernel_rows(f"{operator} over", kernels)
    sums = {n: table.stream("row_sum", n) for n in range_of("stream")}
    rows += kernel_rows("row_sum by Triton over", sums)
    for operator, axis in table.sections["products"].keys:
        kernels = {n: str(table.product(operator, axis, n)) for n in range_of("products")}
        rows += kernel_rows(f"{operator}, {axis}", kernels)
    headline = f"{table.device}, bfloat16: {table.provenance}."
    remarks = [REMARKS["calls"], SCOPE, REMARKS["other_calls"]]
    return Section(f"Dispatch on {table.gpu}", headline, ("size", "is", "kernel"), rows, remarks)


def changes_section(result: gacprof.DispatchChanges) -> Section:
    """What two releases of PyTorch answer differently, by question."""
    releases = f"PyTorch {result.before} and {result.after}"
    what = f"the same kernels on {result.gpu}: nothing changed"
    if result.changes:
        what = f"different kernels on {result.gpu} at the sizes below; all else is the same"
    scope = f"{counted(result.questions, 'question')} {result.provenance}"
    headline = f"{releases} take {what} ({scope})."
    rows: list[Row] = []
    for change in result.changes[:MAX_CHANGES]:
        name = WORDS["dispatch"][change.section]
        answers = changed_answers(change)
        rows.append((name, questions_text(change), sizes_text(change.sizes), *answers))
    more = len(result.changes[MAX_CHANGES:])
    remarks = told(rows, f"{REMARKS['queries']} {SCOPE}")
    remarks += told(more, f"{more} more changes: --json.")
    remarks.append(f"All of one: gacprof dispatch {result.gpu} --release {result.after}.")
    columns = ("what", "where", "sizes", f"PyTorch {result.before}", f"PyTorch {result.after}")
    return Section(f"Changes of dispatch on {result.gpu}", headline, columns, rows, remarks)


def questions_text(change: DispatchChange) -> str:
    """The questions of a change: ``bfloat16, float16; mask none; not causal``."""
    parts = []
    for name, values in change.questions.items():
        word = WORDS["questions"].get(name, "")
        if isinstance(values[0], bool):
            parts.append(word if values[0] else f"not {word}")
        else:
            parts.append(f"{word} {', '.join(map(str, values))}".strip())
    return "; ".join(parts)


def changed_answers(change: DispatchChange) -> tuple[str, str]:
    """The two answers of a change; of those in several parts the parts that differ."""
    before, after = change.before, change.after
    if isinstance(before, dict) and isinstance(after, dict):
        parts = [name for name in after if before.get(name) != after[name]]
        before, after = ({name: answer.get(name) for name in parts} for answer in (before, after))
    texts = []
    for answer in (before, after):
        if isinstance(answer, dict):
            answer = ", ".join(f"{name} {value}" for name, value in answer.items())
        texts.append("not asked" if answer is None else str(answer))
    return texts[0], texts[1]


def table_section(frame: DataFrame) -> Section:
    """The table of constraints: of one source with its kernels, of several side by side."""
    records = json_of(frame)
    sources = [*dict.fromkeys(record["source"] for record in records)]
    rows: list[Row] = []
    names_of = itemgetter("operator", "dtype", "dim")
    columns = ["operator", "dtype", "dim", *sources]
    if len(sources) == 1:
        columns[3:] = ["calls", "round up to", "odd sizes take", "even ones take"]
        columns += ["multiples served by", "other sizes by"]
        for record in records:
            costs = cost_text(record, "odd"), cost_text(record, "even")
            kernels = (record["served_by"] or "", record["others"] or "")
            loads = (re.sub(r" \([^)]*\)", "", text) for text in kernels)  # without their names
            calls = (calls_text(record), multiple_text(record), *costs, *loads)
            rows.append((*names_of(record), *calls))
    else:
        cells: dict[Row, dict[str, str]] = {}
        for record in records:
            cells.setdefault(names_of(record), {})[record["source"]] = side_by_side_cell(record)
        rows = [(*names, *(cell.get(s, "") for s in sources)) for names, cell in cells.items()]
    rows = grouped(rows, 1, ", ".join)  # those that differ in dtype alone
    rows.sort(key=lambda row: (OPERATORS.get(row[0], len(OPERATORS)), row[0]))
    headline = REMARKS["table"].format(sources=", ".join(sources))
    remarks = table_remarks(records)
    name = quote(sources[0])
    more = f"gacprof table {name} or " if len(sources) > 1 else ""
    remarks.append(f"More columns: {more}--out FILE.csv.")
    remarks.append(REMARKS["table_next"].format(source=name))
    return Section("Sizes to round to", headline, columns, rows, remarks)


def side_by_side_cell(record: Mapping[str, Any]) -> str:
    """What one of several sources says, in a cell."""
    costs = []
    for parity in ("odd", "even"):
        cost = cost_text(record, parity)
        costs += [f"{parity} {cost}"] if cost else []
    text = "; ".join(filter(None, (multiple_text(record), ", ".join(costs))))
    return f"{text} ({calls_text(record)})" if text and record["safe"] is not None else text


def calls_text(record: Mapping[str, Any]) -> str:
    """The calls of a row; of a map's curve also its first and last size, which bound its costs."""
    calls = str(record["curve"] or "")
    if record["safe"] is None:
        return calls
    return f"{calls}, {int(record['first'])} … {int(record['last'])}"


def multiple_text(record: Mapping[str, Any]) -> str:
    """``8, 16 is mostly faster``; ``64; also 32, 96``."""
    multiple, mostly, also = record["multiple"], record["mostly"], record["also_good"]
    if multiple is None:
        return ""
    text = "no multiple helps" if multiple == 1 else str(multiple)
    if multiple > 1 and record["slow_multiples"]:
        slow, all_multiples = int(record["slow_multiples"]), int(record["multiples"])
        text += f" ({slow} of {all_multiples} still slow)"
    if mostly:
        text += f", {mostly} is mostly faster"
    return f"{text}; also {shorten(also, ALSO_WIDTH, placeholder=' …')}" if also else text


def cost_text(record: Mapping[str, Any], parity: str) -> str:
    """How many times as long sizes of a parity take; empty where it is not known."""
    if record[parity] is not None:
        return f"×{record[parity]:.3g}"
    low, high = record[f"{parity}_low"], record[f"{parity}_high"]
    return "" if low is None else f"×{low:.2g} to {high:.2g} est."


def table_remarks(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Who says what in a table of constraints, and what its estimates are made of."""
    operators: dict[tuple[str, str], list[str]] = {}
    for record in records:
        operators.setdefault((record["source"], record["by"]), []).append(record["operator"])
    by_source = [source for source, _ in operators]
    remarks = []
    for (source, by), names in operators.items():
        scope = f" {', '.join(dict.fromkeys(names))}" if by_source.count(source) > 1 else ""
        remarks.append(f"{source}{scope}: {by}.")
    for source in dict.fromkeys(by_source):
        if all(r["multiple"] is None for r in records if r["source"] == source):
            remarks.append(f"{source} tells no multiple, kernels alone: gacprof table {source}.")
    remarks.append("N and K: outputs and inputs of a product, y[M, N] = x[M, K] · W[N, K]ᵀ.")
    norms = [record for record in records if record["dim"] == "row length"]
    timed = [record for record in records if record["odd"] is not None]
    remarks += told(norms, REMARKS["norms"])
    remarks += told(timed, REMARKS["timed"])
    estimates = {record["cost_by"] for record in records if record["odd_low"] is not None}
    for text in sorted(estimates):
        remarks.append(f"est.: {text}; four of five further groups should fall within.")
    return remarks


def candidates_section(verdicts: Sequence[SizeVerdict]) -> Section:
    """Sizes that may be chosen."""
    headline = "Each may be chosen: safe, or undecided without a known better size."
    rows = [(*verdict_cells(verdict), verdict.reason) for verdict in verdicts]
    return Section("Candidates", headline, ("size", "verdict", "penalty", "served by"), rows)


def explanation_section(explanation: gacprof.Explanation) -> Section:
    """A size beside the next better one."""
    now, better = explanation.now, explanation.better
    dim, _, call = explanation.question.partition(" ")
    headline = f"{dim} {now.size} is {now.verdict}"
    if better is not None and now.verdict == "misaligned":
        headline += f": take {better.size}"
    elif now.verdict == "misaligned":
        headline += ", and no size within reach is known to be better"
    headline += f". {sentence(explanation.provenance)}"
    rows: list[Row] = []
    for verdict in filter(None, (now, better)):
        time = microseconds(verdict.latency_us.value) if verdict.latency_us else ""
        rows.append((*verdict_cells(verdict), time, verdict.reason))
    columns = ("size", "verdict", "penalty", "latency", "served by")
    remarks = [f"Asked: {dim} {call}.", *explanation.warnings, *estimates_text([now])]
    title = f"Size {now.size} on {explanation.source}"
    return Section(title, headline, columns, rows, remarks)


def verification_section(result: gacprof.Verification) -> Section:
    """What two checkpoints have in common, and how far their logits lie apart."""
    parts = {
        "tensors are equal": result.equal,
        "are equal but for padding": result.padded,
        "layers' factors are multiplied out": result.merged,
    }
    logits = f"the logits of {result.positions} tokens"
    parts[f"tensors and settings are judged by {logits}"] = len(result.differing)
    said = ", ".join(f"{number} {words}" for words, number in parts.items() if number)
    headline = f"{result.checkpoint} and {result.other} {WORDS['verified'][result.verdict]}. "
    headline += said or "They have no tensor"
    if result.verdict == "undecided":
        headline += f", which do not vouch for {first_of(result.differing)}"
    if not result.positions:
        reason = result.not_run or "these models do not read and write text"
        headline += f" (nothing was run: {reason})"
    numbers = {words: getattr(result, name) for name, words in WORDS["numbers"].items()}
    rows = [(name, f"{number:.3g}") for name, number in numbers.items() if number is not None]
    remarks = [REMARKS["verified"].format(dtype=result.dtype, device=result.device)]
    remarks += told(result.verdict == "different", REMARKS["different"])
    return Section("The same function?", f"{headline}.", ("quantity", "value"), rows, remarks)


def bench_section(result: gacprof.BenchResult) -> Section:
    """Models by workload, each beside the first one; on a GPU how much of the time it worked."""
    decided = [t for t in result.timings if t.verdict in ("faster", "slower")]
    said = [f"{t.model} is {t.verdict} than {result.models[0]} in {t.workload}" for t in decided]
    nothing = "No difference is sure" if len(result.models) > 1 else "One model alone"
    headline = f"{'; '.join(said) or nothing}, on {result.environment.name}."
    rows: list[Row] = []
    for timing in (*result.timings, *result.replicates):
        model = "the first again (A/A)" if timing in result.replicates else timing.model
        change = ""
        if timing.verdict != "reference":
            change = percent_interval(timing.ratio + Interval(-1.0, -1.0, -1.0))
        time = time_interval(timing.latency_us)
        rows.append((timing.workload, model, time, change, timing.verdict))
    remarks = [
        f"{result.dtype}, {result.rounds} rounds, models interleaved: a change is of pairs in one "
        "round, not of medians."
    ]
    for timing in result.timings:
        if timing.busy_share is not None:
            busy = f"the device was busy {percent(timing.busy_share, 0)} of the time"
            remarks.append(f"{timing.workload}, {timing.model}: {busy}.")
    lack = f"Decoding was not captured in a CUDA graph: {result.not_captured}."
    remarks += told(result.not_captured, lack)
    columns = ("workload", "model", "latency", "time against the first", "verdict")
    return Section("Measured side by side", headline, columns, rows, remarks)


def perplexity_section(result: gacprof.Perplexities) -> Section:
    """Models on one text, each beside the first one."""
    rows: list[Row] = []
    for model in result.models:
        change = percent_interval(model.change) if model.change else ""
        rows.append((model.model, f"{model.value:.4g}", change))
    values = "; ".join(f"{name} {value}" for name, value, _ in rows)
    headline = f"Perplexity, lower is better: {values}."
    remark = (
        f"{result.tokens:,} tokens of {result.text}, windows of {result.window} by "
        f"{result.stride}, {result.dtype} on {result.device}."
    )
    columns = ("model", "perplexity", "against the first")
    return Section("Perplexity", headline, columns, rows, [remark])


def sweep_section(summary: gacprof.SweepSummary) -> Section:
    """The counts of a sweep, and the verb that follows."""
    if summary.folder is None:
        headline = f"{counted(summary.points, 'point')} on {counted(summary.curves, 'curve')}."
        remarks = ["Nothing was measured."]
        needs = summary.preparation
        if needs:
            remarks.append(
                f"Each process captures {counted(needs.captures, 'CUDA graph')}, makes up to "
                f"{counted(needs.cudnn_plans, 'cuDNN plan')} and holds up to "
                f"{needs.memory_bytes / 2**30:.2g} GiB of operands."
            )
        return Section("A dry run", headline, remarks=remarks)
    headline = f"{counted(summary.calls, 'call')} of {counted(summary.points, 'point')} in "
    headline += f"{counted(summary.blocks, 'block')}, {summary.seconds:.0f} s; "
    headline += f"{summary.failed} failed."
    written = f"Wrote {quote(str(summary.folder))}. {next_step(summary.schema, run=summary.folder)}"
    return Section(f"Sweep in {summary.folder}", headline, remarks=[written])


def lint_section(report: gacprof.LintReport) -> Section:
    """The products of a rank by what an engine does with them, and what makes them better."""
    ranks = f"tp {report.tp}, {ranks_text(report)}"
    where = f"{report.engine} {report.version} on {report.gpu}, {ranks}, {report.quantisation}"
    where += f", weights of a rank {report.weights}" if report.weights else ""
    rows: list[Row] = []
    sources = set()
    reason = ""
    for row in report.products:
        lengths = (str(row.N or "–"), str(row.K or "–"))
        why = row.reason or row.kernel
        if row.reason and row.reason == reason:
            why = "as above"
        reason = row.reason
        rows.append((row.product, *lengths, row.verdict, row.launches, why))
        if row.reason and row.source:
            since = f", since {row.since}" if row.since else ""
            sure = "" if row.sure == "high" else f" ({row.sure} confidence)"
            sources.add(f"Source of {row.requirement}: {row.source}{since}{sure}.")
    remarks = told(report.engine_says, report.engine_says)
    remarks += [f"{gap.grade.capitalize()}: {gap.why}." for gap in report.gaps[:MAX_GAPS]]
    remarks += told(report.accepted, f"Accepted: {', '.join(report.accepted)}.")
    remarks += told(report.ok, serve_text(report))
    kernels = {row.launches for row in report.products}
    for remedy in report.remedies:
        who = "to serve" if remedy.is_of_serving else "to store"
        remarks.append(f"Tried, and better {who}: {remedy_text(remedy, kernels)}.")
    remarks += [*report.kernels, *sorted(sources)]
    columns = ("product", "N", "K", "verdict", "kernel", "why")
    headline = f"{report.model}: {report.summary} ({where}): {report.account}."
    return Section("What an engine does", headline, columns, rows, remarks)


def lint_grid_section(grid: gacprof.LintGrid) -> Section:
    """A deployment a row, the best first: what it does, what a rank holds, and what is better."""
    rows = []
    for report in grid.reports:
        better = "".join([r.change for r in report.remedies if r.kind == "ep"][:1])
        why = report.account if not report.ok else ""
        where = (f"{report.engine} {report.version}", report.gpu, str(report.tp))
        rows.append((*where, report.summary, report.weights, why, better))
    fine, first = sum(report.ok for report in grid.reports), grid.reports[0]
    what = f"{first.model} ({ranks_text(first)}, {first.quantisation})"
    headline = (
        f"{what}: {fine or 'none'} of {len(rows)} deployments {'is' if fine < 2 else 'are'} ok."
    )
    columns = ("engine", "gpu", "tp", "verdict", "weights of a rank", "why", "tried, and better")
    ok = sorted((report for report in grid.reports if report.ok), key=lambda report: -report.tp)
    fewest = {(report.engine, report.gpu): report for report in ok}
    remarks = [*map(serve_text, fewest.values())]
    remarks.append("One engine, one GPU and one --tp alone print every product, with sources.")
    return Section("What engines do", headline, columns, rows, remarks)


def serve_text(report: gacprof.LintReport) -> str:
    """The command that serves a model that an engine serves well, and what else has to fit."""
    from gacprof.kernels.requirements import load_engine

    degrees = {"tp": report.tp, "dp": report.dp, "ep": report.ep}
    command = load_engine(report.engine).serve_command(**degrees)
    where = f"{report.tp * report.dp} × {report.gpu}"
    return f"Serve it on {where}: {command} (KV cache and activations have to fit as well)"


def ranks_text(report: gacprof.LintReport) -> str:
    """The ranks beside tensor-parallel ones."""
    return f"ep {report.ep}" + (f", dp {report.dp}" if report.dp > 1 else "")


def trace_section(report: gacprof.TraceReport) -> Section:
    """The share of the GPU's time in misaligned products, their sizes, and what could be won."""
    title = f"Trace {report.trace}"
    if not report.kernels:
        headline = f"No kernel of a GPU, {counted(report.operators, 'operator')} of a CPU."
        return Section(title, f"{headline} {REMARKS['cpu']}")
    shares: dict[str, str] = defaultdict(lambda: "0 %")
    shares |= {kind: percent(share) for kind, share in report.shares.items()}
    dark = report.shares.get("not judged", 0.0) + report.shares.get("unknown", 0.0)
    causes = sorted(report.causes, key=lambda cause: -report.causes[cause])
    by_cause = ", ".join(f"{cause} {percent(report.causes[cause])}" for cause in causes)
    headline = f"{report.gpu or 'A GPU without a name'}: {counted(report.kernels, 'kernel')}, "
    headline += f"{microseconds(report.us)}. "
    if dark:
        headline += (
            f"{percent(dark)} of the time cannot be judged: kernels that tell no alignment "
            f"{shares['not judged']}, of unknown name {shares['unknown']}. "
        )
    headline += f"{shares['misaligned']} surely ran in misaligned kernels"
    headline += f" ({by_cause})" if by_cause else ""
    headline += f"; aligned ones in their place would save at most {percent(report.gain_at_most)}"
    if report.gain_like_aligned is not None:
        headline += f", {percent(report.gain_like_aligned)} at the rates of aligned ones here"
    rows = [trace_row(product) for product in report.products[:MAX_PRODUCTS]]
    more = len(report.products[MAX_PRODUCTS:])
    remarks = told(more, f"{more} more products: --json.")
    remarks += [WORDS["causes"][cause] for cause in causes if cause in WORDS["causes"]]
    if any(product.dims for product in report.products):
        model, gpu = quote(report.checkpoint), report.data_sheet or "GPU"
        remarks.append(f"Weights: gacprof plan {model} --gpu {gpu} --objective pad.")
    elif "weight" in causes and not report.checkpoint:
        remarks.append("Weights: --checkpoint MODEL names them.")
    remarks += told(report.products and not report.data_sheet, REMARKS["no_floor"])
    parts = [f"{kind} {shares[kind]}" for kind in OTHER_KINDS if kind in shares]
    remarks.append(f"The rest of the time: {', '.join(parts) or 'none'}.")
    names = first_of(report.unknown, MAX_UNKNOWN, ", ")
    share = percent(report.in_graphs)
    matched = f"{report.matched} of {report.weight_products} products of a matrix and a weight"
    remarks += told(report.unknown, f"Unknown names: {names}.")
    remarks += told(report.shares.get("gemv"), REMARKS["gemv"].format(share=shares["gemv"]))
    remarks += told(
        report.in_graphs, f"In CUDA graphs, whose kernels have no shapes: {share} of the time."
    )
    is_matched = report.matched is not None and report.weight_products
    remarks += told(is_matched, f"{matched} have lengths of {report.checkpoint}.")
    columns = ("cause", "lengths", "product", "kernel", "runs", "time", "floor", "as aligned", "in")
    return Section(title, f"{headline}.", columns, rows, remarks)


def trace_row(product: MisalignedProduct) -> Row:
    """A misaligned product: its cause, sizes and kernel, and its times."""
    lengths = ", ".join(f"{dim}={length}" for dim, length in product.at_fault.items())
    times = [microseconds(us) if us else "" for us in (product.floor_us, product.like_aligned_us)]
    where = first_of(product.dims or product.weights or (product.layer,))
    runs, time = str(product.count), microseconds(product.us)
    return (product.cause, lengths, product.product, product.kernel, runs, time, *times, where)


def remedy_text(remedy: Remedy, kernels: Collection[str] = ()) -> str:
    """A change, its outcome, what it costs, where it serves and who makes it. ``kernels`` are those
    that serve without it."""
    mended = f" ({', '.join(remedy.mended)})" if remedy.mended else ""
    parts = [f"{remedy.change}: {remedy.outcome}{mended}"]
    for kernel in dict.fromkeys(remedy.launches.values()):
        parts.append(f"still by {kernel}" if kernel in kernels else f"by {kernel}")
    if remedy.bytes:
        parts.append(f"{100 * remedy.bytes:+.1f} % bytes")
    if remedy.tps:
        parts.append(f"ok at tp {', '.join(map(str, remedy.tps))}")
    if remedy.command:
        parts.append(f"exact by {remedy.command}")
    return "; ".join(parts)


def inventory_section(inventory: Inventory) -> Section:
    """The dims of a checkpoint that may have other sizes, equal ones of all layers together."""
    headline = f"{inventory.path}: {inventory.parameters:,} parameters, layout {inventory.layout}; "
    headline += f"{counted(len(inventory.dims), 'size')} may change."
    rows = [(dim.name, dim.kind, str(dim.size), dim.why) for dim in inventory.dims]
    columns = ("dim", "kind", "size", "fixed because")
    return Section("A checkpoint", headline, columns, grouped(rows), inventory.warnings)


def compression_section(result: gacprof.Compression) -> Section:
    """A compressed model: what it weighs, the sizes of its layers, what they lose."""
    before, after = result.parameters
    change = f"{before / 1e6:.4g} → {after / 1e6:.4g} million parameters"
    headline = f"Wrote {quote(result.out)}: {change} ({100 * (after / before - 1):+.1f} %)."
    rows = [(name, str(size or "stays dense")) for name, size in result.sizes.items()]
    remarks = [
        f"{result.method}, ratio {result.ratio:g}, objective {result.objective}: loss "
        f"{result.loss:.4g}; no choice within the same parameters loses less than "
        f"{result.bound:.4g}."
    ]
    windows, length = result.calibration
    remarks += told(result.provenance, f"Sizes: {result.provenance}.")
    remarks += told(windows, f"Calibrated on {counted(windows, 'window')} of {length} tokens.")
    models = f"{quote(result.checkpoint)} {quote(result.out)}"
    remarks.append(f"Next: gacprof perplexity {models} --text TEXT")
    return Section("A compressed model", headline, ("layer", "size"), grouped(rows), remarks)


def export_section(result: gacprof.Exported) -> Section:
    """A folder for other programs: whether it computes the same, and how to load it."""
    checked = "not checked"
    if result.max_error is not None:
        checked = f"transformers' logits differ by at most {result.max_error:.2g} of the largest"
    headline = f"Wrote {quote(result.folder)}: {checked}."
    remarks = [f"{engine}: {line}" for engine, line in result.serve.items()]
    remarks.append(REMARKS["code"])
    return Section("A folder to serve", headline, remarks=remarks)


RESULTS: dict[str, tuple[str, Callable[[Any], Section]]] = {
    "BenchResult": ("BenchResult", bench_section),
    "Diagnosis": ("Diagnosis", diagnosis_section),
    "DispatchChanges": ("DispatchChanges", changes_section),
    "Explanation": ("Explanation", explanation_section),
    "Exported": ("Exported", export_section),
    "LintGrid": ("LintGrid", lint_grid_section),
    "LintReport": ("LintReport", lint_section),
    "Perplexities": ("Perplexities", perplexity_section),
    "SweepSummary": ("SweepSummary", sweep_section),
    "TraceReport": ("TraceReport", trace_section),
    "Verification": ("Verification", verification_section),
    "cliffmap": ("CliffMap", map_section),
    "compressed": ("Compression", compression_section),
    "dispatch": ("DispatchTable", dispatch_section),
    "plan": ("Plan", plan_section),
}
"""Public class and section of results, by the kind in their schema (``gacprof.KIND/VERSION``)."""


def kind_of(schema: str) -> str:
    """The part of a schema's name that :data:`RESULTS` knows."""
    return schema.removeprefix("gacprof.").partition("/")[0]


def steps_after(kind: str, **names: Any) -> list[tuple[str, str]]:
    """The purposes and commands of the steps behind a kind of result; all where it is none of
    theirs. What is not named has a placeholder."""
    steps = WORDS["steps"]
    first = [*steps].index(kind) + 1 if kind in steps else 0
    words = PLACEHOLDERS | {name: quote(str(value)) for name, value in names.items()}
    return [(WORDS["purposes"][k], steps[k].format(**words)) for k in [*steps][first:]]


def next_step(schema: str, **names: Any) -> str:
    """A sentence on the step behind a result."""
    return f"Next: {steps_after(kind_of(schema), **names)[0][1]}"


def json_of(result: Any) -> Any:
    """A result as JSON: a table's rows, else its fields behind the name of its schema."""
    if type(result).__name__ == "DataFrame":
        return result.astype(object).where(result.notna(), None).to_dict("records")
    if hasattr(result, "schema"):
        return {"schema": result.schema, **plain(result)}
    return plain(result)


def cell_text(value: Any) -> str:
    """A field as a cell: an interval by its value, what is not known as nothing."""
    if value is None:
        return ""
    if isinstance(value, Interval):
        return f"{value.value:.4g}"
    if isinstance(value, tuple):
        return ", ".join(map(cell_text, value))
    return str(value).translate(str.maketrans("", "", "(){}'"))


def section_of(result: Any) -> Section:
    """The section of a result, or of a table: a DataFrame, a list of dataclasses."""
    if hasattr(result, "schema"):
        _, section_maker = RESULTS[kind_of(result.schema)]
        section = section_maker(result)
    elif isinstance(result, Inventory):
        section = inventory_section(result)
    elif type(result).__name__ == "DataFrame" and {"multiple", "cost_by"} <= {*result.columns}:
        section = table_section(result)
    elif type(result).__name__ == "DataFrame":
        rows = [tuple(map(str, row)) for row in result.itertuples(index=False)]
        section = Section("", "", [*map(str, result.columns)], rows)
    elif isinstance(result, list) and result and isinstance(result[0], SizeVerdict):
        section = candidates_section(result)
    elif isinstance(result, list) and result and is_dataclass(result[0]):
        columns = [field.name for field in fields(result[0])]
        rows = [tuple(cell_text(getattr(item, name)) for name in columns) for item in result]
        section = Section("", "", columns, rows)
    else:
        return Section("", str(result))
    filled = [any(cells) for cells in zip(*section.rows, strict=True)]
    # a source without kernels or causes has columns of nothing
    rows = [tuple(compress(row, filled)) for row in section.rows]
    return replace(section, columns=[*compress(section.columns, filled)], rows=rows)
