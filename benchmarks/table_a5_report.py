"""Table A.5 from the cells that are there: rows, paired differences, and equal latency.

Against the tool's own rounding, paired: perplexity window by window, latency round by round. What a
cell lacks is a dash; what failed is told below the table with its reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from gacprof.core.files import write_json, write_text
from gacprof.evaluation.comparison import (
    LEVEL,
    Change,
    fit_workload,
    half_width,
    perplexity_change,
)

BASELINE = "rounded"
LABELS = {
    "dense": "dense",
    "unaligned": "unaligned",
    "rounded": "the tool's rounding to 8",
    "eq4": "ours, Eq. 4",
    "energy": "ours, energy",
    "latency": "ours, energy under a latency budget",
}
COLUMNS = (
    "method", "removed", "sizes", "safe", "÷ 8", "parameters", "perplexity", "against rounding",
    "prefill", "against rounding", "decode", "against rounding",
)  # fmt: skip

Row = dict[str, Any]


def write_table(
    out: Path, methods: Sequence[str], ratios: Sequence[float], variants: Sequence[str]
) -> str:
    """Write ``table.md`` and ``table.json``; the former is returned."""
    groups = [(method, ratio) for method in methods for ratio in ratios]
    rows = [_row(out, "", None, "dense", len(variants) - 1)]
    rows += [_row(out, m, r, v, len(variants) - 1) for m, r in groups for v in variants]
    told = [*_lines(rows), "", *_equal_latency(rows, methods, variants), "", *_failures(out)]
    text = "\n".join(told).rstrip() + "\n"
    write_text(out / "table.md", text)
    write_json(out / "table.json", {"rows": rows})
    return text


def _row(out: Path, method: str, ratio: float | None, variant: str, compared: int) -> Row:
    group = "" if ratio is None else f"{method}-{ratio * 100:g}"
    name = "dense" if ratio is None else f"{group}-{variant}"
    row: Row = {"method": method, "ratio": ratio, "variant": variant}
    level = LEVEL / compared
    quality, baseline = _read(out, "quality", name), _read(out, "quality", f"{group}-{BASELINE}")
    if "models" in quality:
        row |= _quality(quality, baseline if variant != BASELINE else {}, level)
    aligned = _read(out, "aligned", name)
    if aligned.get("dims"):
        row["safe"] = aligned["verdicts"].get("safe", 0) / aligned["dims"]
        row["by_8"] = aligned["by_8"] / aligned["dims"]
    timing = _read(out, "timing", group)
    if variant in timing.get("variants", ()):
        row |= _timing(timing, variant, level)
    return row


def _read(out: Path, kind: str, name: str) -> dict[str, Any]:
    path = out / kind / f"{name}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _quality(found: Mapping[str, Any], baseline: Mapping[str, Any], level: float) -> Row:
    model = found["models"][0]
    row: Row = {
        "parameters": model["parameters"],
        "perplexity": model["perplexity"]["value"],
        "tokens": model["perplexity"]["tokens"],
    }
    same = ("text", "tokens", "window", "stride", "dtype")
    if "models" in baseline and all(found[key] == baseline[key] for key in same):
        other = baseline["models"][0]
        tokens = np.array(found["window_tokens"], dtype=np.float64)
        nll, reference = (np.array(m["nll"], dtype=np.float64) for m in (model, other))
        row["perplexity_change"] = _as_dict(perplexity_change(nll, reference, tokens, level))
    return row


def _as_dict(change: Change | None) -> dict[str, Any] | None:
    return None if change is None else vars(change)


def _timing(timing: Mapping[str, Any], variant: str, level: float) -> Row:
    """Latency (µs) and what it differs by from the tool's rounding, of the same rounds."""
    bench, index = timing["bench"], timing["variants"].index(variant)
    row: Row = {}
    for workload in dict.fromkeys(t["workload"] for t in bench["timings"]):
        kind = workload.split()[0]
        times = [t for t in bench["timings"] if t["workload"] == workload]
        row[kind] = {k: times[index][k] for k in ("low_us", "latency_us", "high_us", "verdict")}
        if BASELINE in timing["variants"] and variant != BASELINE:
            base = timing["variants"].index(BASELINE)
            row[kind] |= _ratio(times, base, index, bench["rounds"], level)
    return row


def _ratio(
    times: Sequence[Mapping[str, Any]], base: int, index: int, rounds: int, level: float
) -> dict[str, float]:
    """(low, value, high) − 1 of a variant over the baseline."""
    us = np.array([t["timings_us"] for t in times], dtype=np.float64).T
    order = [base, *(i for i in range(us.shape[1]) if i != base)]
    fit = fit_workload(us[:, order], np.arange(len(us)) * rounds // len(us))
    at = order.index(index)
    half = half_width(fit.error[at], fit.rounds, level)
    middle = float(fit.log_ratio[at])
    low, value, high = (exp(x) - 1 for x in (middle - half, middle, middle + half))
    return {"low": low, "value": value, "high": high}


def _lines(rows: Sequence[Row]) -> list[str]:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for row in rows:
        cells = (
            row["method"], _percent(row["ratio"]), LABELS[row["variant"]],
            _percent(row.get("safe")), _percent(row.get("by_8")), _count(row.get("parameters")),
            _number(row.get("perplexity")), _interval(row.get("perplexity_change")),
            _latency(row.get("prefill")), _interval(row.get("prefill")),
            _latency(row.get("decode")), _interval(row.get("decode")),
        )  # fmt: skip
        lines.append("| " + " | ".join("–" if cell is None else cell for cell in cells) + " |")
    return lines


def _percent(value: float | None, decimals: int = 0) -> str | None:
    return None if value is None else f"{value * 100:.{decimals}f} %"


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def _latency(found: Mapping[str, Any] | None) -> str | None:
    return None if not found else f"{found['latency_us'] / 1e3:.2f} ms"


def _interval(change: Mapping[str, Any] | None) -> str | None:
    if not change or "value" not in change:
        return None
    low, value, high = (f"{change[key] * 100:+.1f}" for key in ("low", "value", "high"))
    return f"{value} % ({low} to {high})"


def _equal_latency(
    rows: Sequence[Row], methods: Sequence[str], variants: Sequence[str]
) -> list[str]:
    """At one latency, whose perplexity is lowest? Between the measured ratios log perplexity is
    taken as linear in the latency of a prefill."""
    lines = []
    for method in methods:
        curves = {v: _curve(rows, method, v) for v in variants}
        known = {v: c for v, c in curves.items() if len(c) > 1}
        if len(known) < 2:
            continue
        low = max(min(x for x, _ in c) for c in known.values())
        high = min(max(x for x, _ in c) for c in known.values())
        if low > high:
            lines.append(f"{method}: no latency is within the measured range of all.")
            continue
        at = (low + high) / 2
        values = {v: exp(float(np.interp(at, *zip(*c, strict=True)))) for v, c in known.items()}
        ranked = sorted(values, key=lambda v: values[v])
        listed = ", ".join(f"{LABELS[v]} {values[v]:.2f}" for v in ranked)
        lines.append(
            f"{method}: at a prefill of {at / 1e3:.2f} ms the perplexities are {listed}; "
            f"latencies are known to within {_uncertainty(rows, method)} %."
        )
    return ["**At equal latency**", "", *lines] if lines else []


def _uncertainty(rows: Sequence[Row], method: str) -> str:
    """The widest interval of a prefill's latency, as half a share: what "equal" is good for."""
    found = [row["prefill"] for row in rows if row["method"] == method and row.get("prefill")]
    return f"{max((f['high_us'] / f['low_us'] - 1) / 2 for f in found) * 100:.0f}"


def _curve(rows: Sequence[Row], method: str, variant: str) -> list[tuple[float, float]]:
    """(µs of a prefill, log perplexity) by ascending latency."""
    return sorted(
        (row["prefill"]["latency_us"], log(row["perplexity"]))
        for row in rows
        if (row["method"], row["variant"]) == (method, variant)
        and row.get("prefill")
        and row.get("perplexity")
    )


def _failures(out: Path) -> list[str]:
    lines = []
    for path in sorted(out.glob("*/*.json")):
        if path.parent.name in ("compressed", "quality", "timing", "aligned"):
            failed = json.loads(path.read_text(encoding="utf-8")).get("failed")
            if failed:
                lines.append(f"- {path.parent.name} of {path.stem}: {failed}")
    return ["**What could not be computed**", "", *lines] if lines else []
