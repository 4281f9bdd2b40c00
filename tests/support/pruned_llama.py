"""The one model whose padding was timed end to end on an H100: Llama-3-8B by LLM-Pruner."""

from __future__ import annotations

import csv
from pathlib import Path

from tool_checkpoints import checkpoint

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import scan

FIGURE = Path(__file__).parents[1] / "fixtures/published/h100/fig_prefill_scaling_h100.csv"
LAYERS, ODD_LAYERS = 25, 14
"""Layers whose MLP was pruned by a quarter. The widths are not published: by chance four of seven
that are no multiple of 8 are odd."""
WIDTHS = (10_753, 10_754)
HIDDEN = 4096


def pruned_llama(folder: Path) -> Inventory:
    """The pruned products, of which no factor pair is one."""
    shapes = {}
    for layer in range(LAYERS):
        width = WIDTHS[layer >= ODD_LAYERS]
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
