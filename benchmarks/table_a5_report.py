"""Table A.5 from the cells that are there.

Compared, paired window by window and example by example, is every row with the rounding of the same
method and ratio; depth pruning, which has none, with our sizes by kfac-svd. Those intervals of a
column hold together with 95 %. Times are compared with the uncompressed model in the same bench.
What a cell lacks is a dash; what failed stands below the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gacprof.core.files import read_json, write_json, write_text
from gacprof.evaluation.comparison import FAMILYWISE_LEVEL, half_width, perplexity_change

ORDER = ("drop-layers", "kfac-svd", "svd-llm", "asvd", "palu", "llm-pruner")
VARIANTS = ("own", "rounded", "ours")
LABELS = {
    "own": "its own sizes",
    "rounded": "its own rounding to 8",
    "ours": "ours, by the second-order loss",
}
PHASES = ("prefill", "decode")

Row = dict[str, Any]


def write_table(out: Path) -> str:
    """Write ``table.md`` and ``table.json``; the former is returned."""
    names = sorted((path.stem for path in (out / "compressed").glob("*.json")), key=_place)
    level = FAMILYWISE_LEVEL / max(1, sum(_reference(name) in {*names} - {name} for name in names))
    rows = [_row(out, "dense", level), *(_row(out, name, level) for name in names)]
    text = "\n".join([*_lines(rows), "", *_failures(out)]).rstrip() + "\n"
    write_text(out / "table.md", text)
    write_json(out / "table.json", {"rows": rows, "level": level})
    return text


def _place(name: str) -> tuple[float, int, int]:
    method, ratio, variant = name.rsplit("-", 2)
    return float(ratio), ORDER.index(method), VARIANTS.index(variant)


def _reference(name: str) -> str:
    method, ratio, _ = name.rsplit("-", 2)
    return f"kfac-svd-{ratio}-ours" if method == "drop-layers" else f"{method}-{ratio}-rounded"


def _read(out: Path, kind: str, name: str) -> dict[str, Any]:
    path = out / kind / f"{name}.json"
    return dict(read_json(path)) if path.is_file() else {}


def _row(out: Path, name: str, level: float) -> Row:
    made, quality, tasks = (_read(out, k, name) for k in ("compressed", "quality", "tasks"))
    row: Row = {"name": name, "commit": made.get("commit")}
    other = "" if name == "dense" else _reference(name)
    if "sizes" in made:
        sizes = [size for size in made["sizes"].values() if size]
        row |= {
            "parameters": made["parameters"]["after"],
            "by_8": sum(size % 8 == 0 for size in sizes) / len(sizes) if sizes else None,
            "dense": made["left_dense"],
            "dims": made["dims"],
        }
    for text, found in quality.items():
        if isinstance(found, Mapping):
            model = found["models"][0]
            row.setdefault("parameters", model["parameters"])
            reference = _read(out, "quality", other).get(text) if other != name else None
            value = model["perplexity"]["value"]
            row[f"perplexity {text}"] = value, _perplexity(found, reference, level)
    examples = {score["task"]: score for score in tasks.get("scores", ())}
    references = {s["task"]: s for s in _read(out, "tasks", other).get("scores", ())}
    for task, score in examples.items():
        reference = references.get(task) if other != name else None
        row[task] = score["value"], _paired(score, reference, level)
    return row | _timing(out, name)


def _perplexity(found: Mapping[str, Any], other: Any, level: float) -> list[float] | None:
    """(low, value, high) of the ratio − 1."""
    same = ("tokens", "window", "stride", "dtype")
    if not other or any(found[key] != other[key] for key in same):
        return None
    tokens = np.array(found["window_tokens"], dtype=np.float64)
    nll, base = (np.array(f["models"][0]["nll"], dtype=np.float64) for f in (found, other))
    change = perplexity_change(nll, base, tokens, level)
    return None if change is None else [change.low, change.value, change.high]


def _paired(score: Mapping[str, Any], other: Any, level: float) -> list[float] | None:
    """(low, value, high) of the difference in the share of examples that are right."""
    if not other or len(score["examples"]) != len(other["examples"]):
        return None
    more = np.subtract(score["examples"], other["examples"])
    half = half_width(float(more.std(ddof=1)) / len(more) ** 0.5, len(more), level)
    value = float(more.mean())
    return [value - half, value, value + half]


def _timing(out: Path, name: str) -> Row:
    """Milliseconds, and their ratio − 1 to the uncompressed model's in the same bench."""
    if name == "dense":
        return {}
    group, _, variant = name.rpartition("-")
    timing = _read(out, "timing", group)
    if variant not in timing.get("variants", ()):
        return {}
    index, found = timing["variants"].index(variant), timing["bench"]["timings"]
    row: Row = {}
    for workload in dict.fromkeys(t["workload"] for t in found):
        one = [t for t in found if t["workload"] == workload][index]
        change = one.get("ratio") and [value - 1 for value in one["ratio"]]
        row[workload.split()[0]] = one["latency_us"] / 1e3, change
    return row


def _lines(rows: list[Row]) -> list[str]:
    measures = [key for key in dict.fromkeys(k for row in rows for k in row) if _is_pair(rows, key)]
    heads = ["ratio", "method", "sizes", "parameters", "÷ 8", "left dense"]
    heads += [f"{key}, ms" if key in PHASES else key for key in measures]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        method, ratio, variant = ["dense", "", ""]
        if row["name"] != "dense":
            method, ratio, variant = row["name"].rsplit("-", 2)
        left = None if "dims" not in row else f"{row['dense']} of {row['dims']}"
        cells = [
            ratio and f"{ratio} %", method,
            "whole layers" if method == "drop-layers" else LABELS.get(variant),
            _count(row.get("parameters")), _percent(row.get("by_8")), left,
            *(_pair(key, row.get(key)) for key in measures),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cell or "–" for cell in cells) + " |")
    return lines


def _is_pair(rows: list[Row], key: str) -> bool:
    return any(isinstance(row.get(key), tuple) for row in rows)


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value * 100:.0f} %"


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def _pair(key: str, found: tuple[float | None, list[float] | None] | None) -> str | None:
    """A value, and in brackets by how much it differs, with the interval."""
    value, change = found or (None, None)
    if value is None:
        return None
    is_share = not key.startswith(("perplexity", *PHASES))
    shown = f"{value * 100:.0f} %" if is_share else f"{value:.1f}"
    if change is None:
        return shown
    low, middle, high = (f"{part * 100:+.0f}" for part in change)
    return f"{shown} ({middle}{'' if is_share else ' %'}, {low} to {high})"


def _failures(out: Path) -> list[str]:
    lines = []
    for path in sorted(out.glob("*/*.json")):
        if path.parent.name in ("compressed", "quality", "tasks", "timing"):
            failed = read_json(path).get("failed")
            if failed:
                lines.append(f"- {path.parent.name} of {path.stem}: {failed}")
    return ["**What could not be computed**", "", *lines] if lines else []
