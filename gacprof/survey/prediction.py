"""Stage ``prediction``: what the map foretells of every model timed, beside what was measured.

Predicted is the sum over the model's matrix products and attentions, each as measured alone.
Norms, rotary embedding, additions and what the host spends on launching are in no map: the
error shows what they come to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.cliffmap import CliffMap, MapLookupError
from gacprof.core.files import write_json, write_text
from gacprof.diagnosing.predict import Estimate, Predictor
from gacprof.report.tables import Column, Table, render
from gacprof.survey import end_to_end
from gacprof.survey.setting import Setting
from gacprof.survey.shapes import Shape
from gacprof.survey.state import SKIPPED, NotYetError, Outcome
from gacprof.survey.variants import Variant

FILE, PAGE = "prediction.json", "end_to_end.md"


@dataclass(frozen=True)
class Row:
    """One model at one workload. Microseconds; ratios are to the group's dense model.

    ``error`` is predicted / measured − 1, ``ratio_error`` the same of the two ratios.
    """

    group: str
    mode: str
    variant: str
    workload: str
    batch: int
    layers: int
    measured_us: float
    low_us: float
    high_us: float
    predicted_us: float | None
    missing: str
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    predicted_ratio: float | None

    @property
    def error(self) -> float | None:
        return None if self.predicted_us is None else self.predicted_us / self.measured_us - 1

    @property
    def ratio_error(self) -> float | None:
        if self.ratio is None or self.predicted_ratio is None:
            return None
        return self.predicted_ratio / self.ratio - 1


def compare(setting: Setting) -> Outcome:
    """Write ``prediction.json`` and ``end_to_end.md``."""
    try:
        data = json.loads((setting.folder / end_to_end.FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NotYetError(f"no end-to-end timings to compare with: {error}") from None
    found = rows(data, setting.cliff_map())
    if not found:
        return Outcome(SKIPPED, "no model was timed end to end")
    said = headlines(found)
    plain = [asdict(row) | {"error": row.error, "ratio_error": row.ratio_error} for row in found]
    write_json(setting.folder / FILE, {"headlines": said, "rows": plain})
    write_text(setting.folder / PAGE, markdown(data, found, said))
    return Outcome(artefacts=(FILE, PAGE), notes=tuple(said))


def rows(data: Mapping[str, Any], cliff_map: CliffMap) -> list[Row]:
    """A row for every timing in ``end_to_end.json``, its prediction from this map."""
    base = dict(data["shape"])
    for key in ("prefill", "decode_batches", "compiled_prefill"):
        base[key] = tuple(base[key])
    variants = {(v["group"], v["name"]): v["sizes"] for v in data["variants"]}
    found: list[Row] = []
    for result in data["results"].values():
        run, bench = result["run"], result["bench"]
        shape = Shape(**base | {"layers": result["layers"]})
        for timing in bench["timings"]:
            if timing["kind"] == "prefill" and run["decode_steps"]:
                continue
            own = _predicted(shape, variants, run, timing, timing["model"], cliff_map)
            first = _predicted(shape, variants, run, timing, bench["models"][0], cliff_map)
            found.append(_row(run, result["layers"], timing, own, first))
    return found


def headlines(found: Sequence[Row]) -> list[str]:
    """The errors in one sentence a mode and kind of workload, whatever they are."""
    said = []
    for mode in ("eager", "compiled"):
        for kind in ("prefill", "decode"):
            mine = [r for r in found if r.mode == mode and r.workload.startswith(kind)]
            errors = [r.error for r in mine if r.error is not None]
            ratios = [abs(r.ratio_error) for r in mine if r.ratio_error is not None]
            if not errors:
                continue
            sentence = (
                f"{mode} {kind}: predicted time is off by {median([abs(e) for e in errors]):.0%} "
                f"in the median ({min(errors):+.0%} to {max(errors):+.0%}, {len(errors)} timings)"
            )
            if ratios:
                sentence += (
                    f"; the ratio to dense by {median(ratios):.1%}, at most {max(ratios):.1%}"
                )
            said.append(sentence)
    unknown = sum(row.predicted_us is None for row in found)
    if unknown:
        said.append(f"{unknown} of {len(found)} timings have no prediction: the map lacks shapes")
    return said


def tables(found: Sequence[Row]) -> list[Table]:
    """One table a group and mode: measured, predicted, and both as ratios to dense."""
    columns = (
        Column("workload"), Column("batch"), Column("model"), Column("measured ms", 3),
        Column("95 % interval"), Column("predicted ms", 3), Column("error", share=True),
        Column("÷ dense", 3), Column("95 % interval "), Column("predicted ÷ dense", 3),
    )  # fmt: skip
    made = []
    for group, mode in dict.fromkeys((row.group, row.mode) for row in found):
        mine = [row for row in found if (row.group, row.mode) == (group, mode)]
        title = f"{group}, {mode}, {mine[0].layers} layers"
        cells = tuple(
            (
                row.workload, row.batch, row.variant, row.measured_us / 1e3,
                f"{row.low_us / 1e3:.3f} – {row.high_us / 1e3:.3f}",
                None if row.predicted_us is None else row.predicted_us / 1e3, row.error, row.ratio,
                f"{row.ratio_low:.3f} – {row.ratio_high:.3f}" if row.ratio is not None else None,
                row.predicted_ratio,
            )
            for row in mine
        )  # fmt: skip
        made.append(Table("End to end", title, columns, cells))
    return made


def markdown(data: Mapping[str, Any], found: Sequence[Row], said: Sequence[str]) -> str:
    shape = data["shape"]
    lines = [
        "# End to end",
        "",
        f"Shapes of {shape['scale']}: hidden {shape['hidden']}, MLP {shape['intermediate']}, "
        f"{shape['heads']} heads over {shape['kv_heads']} of keys, {shape['layers']} layers, "
        f"{shape['dtype']}. Weights are random and normal; nothing is trained. Models of a group "
        "are interleaved in random order; ratios are fitted by block.",
        "",
        *(f"- {sentence}" for sentence in said),
        "",
        *(render(table) for table in tables(found)),
    ]
    missing = data.get("not_measured") or {}
    lines += (
        ["## Not measured", "", *(f"- {n}: {why}" for n, why in missing.items())] if missing else []
    )
    return "\n".join(lines) + "\n"


def _row(
    run: Mapping[str, Any], layers: int, timing: Mapping[str, Any], own: Estimate, first: Estimate
) -> Row:
    ratio = timing["ratio"] or (None, None, None)
    both = own.latency_us is not None and first.latency_us is not None and ratio[1] is not None
    return Row(
        group=run["group"],
        mode=run["mode"],
        variant=timing["model"],
        workload=timing["workload"],
        batch=run["batch"],
        layers=layers,
        measured_us=timing["latency_us"],
        low_us=timing["low_us"],
        high_us=timing["high_us"],
        predicted_us=own.latency_us,
        missing=own.missing,
        ratio=ratio[1],
        ratio_low=ratio[0],
        ratio_high=ratio[2],
        predicted_ratio=own.latency_us / first.latency_us if both else None,  # type: ignore[operator]
    )


def _predicted(
    shape: Shape,
    variants: Mapping[tuple[str, str], Mapping[str, int]],
    run: Mapping[str, Any],
    timing: Mapping[str, Any],
    model: str,
    cliff_map: CliffMap,
) -> Estimate:
    variant = Variant(run["group"], model, variants[run["group"], model], 0)
    inventory = variant.inventory(shape)
    decode = timing["kind"] == "decode"
    batch = run["batch"]
    rows_of_x = batch if decode else batch * timing["tokens"]
    total = _products(cliff_map, inventory, shape, rows_of_x, batch)
    for attention in inventory.attentions:
        lengths = {"q_len": 1 if decode else timing["tokens"]}
        lengths["kv_len"] = shape.prompt + shape.decode_steps // 2 if decode else timing["tokens"]
        dims = {
            "batch": batch, "heads": attention.heads, "kv_heads": attention.kv_heads,
            "head_dim": attention.head_dim, **lengths,
        }  # fmt: skip
        total += _attention(cliff_map, dims, shape.dtype, causal=not decode)
    return total


def _products(
    cliff_map: CliffMap, inventory: Inventory, shape: Shape, rows_of_x: int, batch: int
) -> Estimate:
    """All matrix products of one forward pass; the head sees one position a sequence."""
    body = Predictor(cliff_map, inventory, {rows_of_x: 1.0}, shape.dtype)
    head = Predictor(cliff_map, inventory, {batch: 1.0}, shape.dtype)
    total = Estimate(0.0)
    for module in inventory.modules:
        if module.role == "embedding":
            continue
        for gemm in module.gemms:
            total += (head if module.role == "head" else body).gemm(gemm.N, gemm.K, gemm.bias)
    return total


def _attention(cliff_map: CliffMap, dims: dict[str, int], dtype: str, causal: bool) -> Estimate:
    try:
        found = cliff_map.latency("attention", dims, dtype, {"causal": causal})
    except MapLookupError as miss:
        return Estimate(None, str(miss))
    return Estimate(found.latency_us, "", found.kind != "exact")
