"""What a map predicts of every model timed, beside what was measured.

Predicted is the sum over the model's matrix products and attentions, each as measured alone.
Norms, rotary embedding, additions and what the host spends on launching are in no map: the
error shows what they come to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from llama import Shape
from variants import Variant

from gacprof.cliffmap import CliffMap, MapLookupError
from gacprof.core.files import write_json, write_text
from gacprof.core.formatting import percent
from gacprof.diagnosing.predict import Estimate, Predictor
from gacprof.reporting.tables import Column, Table, render

FILE, PAGE = "prediction.json", "end_to_end.md"

Row = dict[str, Any]
"""One model at one workload. Microseconds; ratios are to the group's dense model, as (low,
middle, high). ``error`` is predicted / measured − 1, ``ratio_error`` the same of the ratios; None
where the map lacks a part, named in ``missing``."""


def compare(
    timed: Sequence[Mapping[str, Any]],
    shape: Shape,
    variants: Sequence[Variant],
    cliff_map: CliffMap,
    folder: Path,
) -> list[str]:
    """Write ``prediction.json`` and ``end_to_end.md`` from what was timed; the findings."""
    found = rows(timed, shape, variants, cliff_map)
    said = headlines(found)
    write_json(folder / FILE, {"headlines": said, "rows": found})
    intro = (
        f"Shapes of {shape.scale}: hidden {shape.hidden}, MLP {shape.intermediate}, {shape.heads} "
        f"heads over {shape.kv_heads} of keys, {shape.dtype}. Weights are random and normal; "
        "nothing is trained. Models of a group are interleaved in random order; ratios are fitted "
        "by block.\n\n"
    )
    lines = "".join(f"- {sentence}\n" for sentence in said)
    body = "\n".join(render(table) for table in tables(found))
    write_text(folder / PAGE, f"# End to end\n\n{intro}{lines}\n{body}")
    return said


def rows(
    timed: Sequence[Mapping[str, Any]],
    shape: Shape,
    variants: Sequence[Variant],
    cliff_map: CliffMap,
) -> list[Row]:
    """A row for every timing, its prediction from this map."""
    by_name = {(variant.group, variant.name): variant for variant in variants}
    found = []
    for result in timed:
        run, bench = result["run"], result["bench"]
        run_shape = replace(shape, layers=result["layers"])
        kind = "decode" if run["decode_steps"] else "prefill"
        predicted = {
            name: predict(by_name[run["group"], name], run_shape, run, cliff_map)
            for name in bench["models"]
        }
        dense = predicted[bench["models"][0]].latency_us
        found += [
            _row(run, result["layers"], timing, predicted[timing["model"]], dense)
            for timing in bench["timings"]
            if timing["kind"] == kind
        ]
    return found


def predict(
    variant: Variant, shape: Shape, run: Mapping[str, Any], cliff_map: CliffMap
) -> Estimate:
    """One forward pass of the variant at the run's workload, as the map has its parts. The head
    sees one position a sequence."""
    inventory = variant.inventory(shape)
    decode, batch = bool(run["decode_steps"]), run["batch"]
    q_len = 1 if decode else run["tokens"]
    kv_len = shape.prompt + shape.decode_steps // 2 if decode else run["tokens"]
    body = Predictor(cliff_map, inventory, {batch * q_len: 1.0}, shape.dtype)
    head = Predictor(cliff_map, inventory, {batch: 1.0}, shape.dtype)
    total = Estimate(0.0)
    for module in inventory.modules:
        if module.role != "embedding":
            for gemm in module.gemms:
                total += (head if module.role == "head" else body).gemm(gemm.N, gemm.K, gemm.bias)
    for one in inventory.attentions:
        dims = {
            "batch": batch, "heads": one.heads, "kv_heads": one.kv_heads,
            "head_dim": one.head_dim, "q_len": q_len, "kv_len": kv_len,
        }  # fmt: skip
        total += _attention(cliff_map, dims, shape.dtype, causal=not decode)
    return total


def _attention(cliff_map: CliffMap, dims: dict[str, int], dtype: str, causal: bool) -> Estimate:
    try:
        found = cliff_map.latency("attention", dims, dtype, {"causal": causal})
    except MapLookupError as missing:
        return Estimate(None, str(missing))
    return Estimate(found.latency_us, "", found.kind != "exact")


def _row(
    run: Mapping[str, Any],
    layers: int,
    timing: Mapping[str, Any],
    own: Estimate,
    dense_us: float | None,
) -> Row:
    us, ratio = own.latency_us, timing["ratio"]
    both = us / dense_us if us and dense_us and ratio else None
    return {
        **{key: run[key] for key in ("group", "mode", "batch")},
        "variant": timing["model"],
        "workload": timing["workload"],
        "layers": layers,
        "measured_us": timing["latency_us"],
        "interval_us": [timing["low_us"], timing["high_us"]],
        "predicted_us": us,
        "missing": own.missing,
        "ratio": ratio,
        "predicted_ratio": both,
        "error": us / timing["latency_us"] - 1 if us else None,
        "ratio_error": both / ratio[1] - 1 if both else None,
    }


def headlines(found: Sequence[Row]) -> list[str]:
    """The errors in one sentence a mode and kind of workload, whatever they are."""
    said = []
    for mode, kind in ((m, k) for m in ("eager", "compiled") for k in ("prefill", "decode")):
        mine = [r for r in found if r["mode"] == mode and r["workload"].startswith(kind)]
        errors = [r["error"] for r in mine if r["error"] is not None]
        ratios = [abs(r["ratio_error"]) for r in mine if r["ratio_error"] is not None]
        if not errors:
            continue
        off, least, most = median(map(abs, errors)), min(errors), max(errors)
        sentence = (
            f"{mode} {kind}: predicted time is off by {percent(off)} in the median "
            f"({percent(least, signed=True)} to {percent(most, signed=True)}, "
            f"{len(errors)} timings)"
        )
        if ratios:
            sentence += f"; the ratio to dense by {percent(median(ratios))}, at most "
            sentence += f"{percent(max(ratios))}"
        said.append(sentence)
    unknown = sum(row["predicted_us"] is None for row in found)
    if unknown:
        said.append(f"{unknown} of {len(found)} timings have no prediction: the map lacks shapes")
    return said


def tables(found: Sequence[Row]) -> list[Table]:
    """One table a group and mode: measured, predicted, and both as ratios to dense."""
    columns = (
        Column("workload"), Column("batch"), Column("layers"), Column("model"),
        Column("measured ms", 3), Column("95 % interval"), Column("predicted ms", 3),
        Column("error", 1, share=True), Column("÷ dense", 3), Column("95 % interval "),
        Column("predicted ÷ dense", 3),
    )  # fmt: skip
    made = []
    for group, mode in dict.fromkeys((row["group"], row["mode"]) for row in found):
        mine = [row for row in found if (row["group"], row["mode"]) == (group, mode)]
        cells = []
        for r in mine:
            low, middle, high = r["ratio"] or (None, None, None)
            cells.append((
                r["workload"], r["batch"], r["layers"], r["variant"], r["measured_us"] / 1e3,
                "{:.3f} – {:.3f}".format(*(us / 1e3 for us in r["interval_us"])),
                r["predicted_us"] and r["predicted_us"] / 1e3, r["error"], middle,
                f"{low:.3f} – {high:.3f}" if middle else None, r["predicted_ratio"],
            ))  # fmt: skip
        made.append(Table("", f"{group}, {mode}", columns, tuple(cells)))
    return made
