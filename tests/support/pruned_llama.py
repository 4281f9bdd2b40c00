"""The one model whose padding was timed end to end on an H100: Llama-3-8B by LLM-Pruner."""

from __future__ import annotations

import csv
from pathlib import Path

from tool_checkpoints import checkpoint

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import scan

FIGURE = Path(__file__).parents[1] / "fixtures/published/h100/fig_prefill_scaling_h100.csv"
LAYERS = 25
WIDTHS = {"even": 10_754, "odd": 10_753}
"""Of MLPs pruned by a quarter. How many layers have which is not published."""
HIDDEN = 4096


def pruned_llama(folder: Path, width: int) -> Inventory:
    """The pruned products, of which no factor pair is one, all of one width."""
    shapes = {}
    for layer in range(LAYERS):
        mlp = f"model.layers.{layer}.mlp"
        shapes[f"{mlp}.gate_proj.weight"] = shapes[f"{mlp}.up_proj.weight"] = (width, HIDDEN)
        shapes[f"{mlp}.down_proj.weight"] = (HIDDEN, width)
    return scan(checkpoint(folder / "pruned", shapes, {"model_type": "llama"}))


def saved_us() -> dict[int, float]:
    """What padding saved of a prefill, by tokens (arXiv 2604.09595, CC BY 4.0)."""
    times: dict[tuple[str, int], float] = {}
    with FIGURE.open(newline="") as lines:
        for row in csv.DictReader(lines):
            times[row["series"], int(row["d"])] = 1e3 * float(row["value"])
    saved = {}
    for series, tokens in times:
        if series == "llm_pruner":
            saved[tokens] = times[series, tokens] - times["llm_pruner_gac", tokens]
    return saved
