"""Plans of 105 planted cases, on the points that were measured of each: never slower than the
model, no dim left that a larger size beats, and no worse than the frozen plans."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formula_source import FormulaSource, stairs_of, teeth_of
from safetensors.numpy import save_file

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import scan
from gacprof.core.sizes import TOLERANCE
from gacprof.planning.plan import Plan
from gacprof.planning.planner import plan
from gacprof.workload.products import Products

GOLDENS = Path(__file__).parents[1] / "goldens" / "plans.json.gz"
with gzip.open(GOLDENS) as _file:
    CASES: dict[str, Any] = json.load(_file)["planted"]
TOKENS = {1: 1.0, 64: 1.0}
K_PROJ = "model.layers.0.self_attn.k_proj"


def source_of(case: dict[str, Any]) -> FormulaSource:
    formula = (teeth_of if case["teeth"] else stairs_of)(case["step"])
    points = set()
    for _, axis, fixed, ranges, _ in case["measured"]:
        for first, last, step in ranges:
            points |= {
                tuple({**fixed, axis: size}[x] for x in "MNK")
                for size in range(first, last + 1, step)
            }
    return FormulaSource(formula, points)


def checkpoint_of(case: dict[str, Any], folder: Path) -> Inventory:
    shapes = {name: tuple(shape) for name, shape in case["shapes"]}
    data = np.random.default_rng(case["data_seed"])
    folder.mkdir()
    tensors = {name: data.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    ranks = [shape[1] for name, shape in shapes.items() if ".U." in name]
    config = {"head_wise_ranks": {K_PROJ: ranks}} if ranks else {}
    (folder / "config.json").write_text(json.dumps(config))
    return scan(folder)


def true_us(inventory: Inventory, case: dict[str, Any], sizes: dict[str, Any]) -> float:
    everything = FormulaSource((teeth_of if case["teeth"] else stairs_of)(case["step"]))
    modules = [module for module in inventory.modules if module.dims]
    time = Products(inventory, TOKENS).time_us(everything, modules, sizes)
    assert time is not None
    return time.value


def gain_of_padding(
    inventory: Inventory, source: FormulaSource, chosen: Plan, names: list[str]
) -> float:
    """The most that a larger measured size of these dims would save, as a share."""
    products = Products(inventory, TOKENS)
    sizes = {choice.dim: choice.after for choice in chosen.choices}
    modules = [module for module in inventory.modules if set(names) & set(module.dims)]
    now = products.time_us(source, modules, sizes)
    if now is None:
        return 0.0
    gains = [0.0]
    limit = min(inventory.dim(name).max_size for name in names)
    for size in range((sizes[names[0]] or 0) + 1, min(limit, 2 * (sizes[names[0]] or 0) + 130) + 1):
        larger = products.time_us(source, modules, {**sizes, **dict.fromkeys(names, size)})
        if larger is not None:
            gains.append(now.value / larger.value - 1)
    return max(gains)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name.endswith("seed 0") else pytest.mark.slow)
        for name in sorted(CASES)
    ],
)
def test_a_plan_is_never_slower_and_leaves_no_dim_beaten(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    inventory, source = checkpoint_of(case, tmp_path / "source"), source_of(case)
    uniform: Any = "none" if case["shares"] == "none" else "kind"
    before = true_us(inventory, case, {})
    for objective in ("pad", "quality"):
        chosen = plan(
            inventory, source, objective=objective, tokens=TOKENS, dtype="float32", uniform=uniform
        )
        sizes = {choice.dim: choice.after for choice in chosen.choices}
        after = true_us(inventory, case, sizes)
        groups = [list(sizes)] if uniform == "kind" else [[name] for name in sizes]
        forced = len({inventory.dim(name).size for name in sizes}) > 1 and uniform == "kind"
        assert forced or after <= before * (1 + 1e-9)
        assert chosen.value <= chosen.bound
        for names in groups:
            if None not in {sizes[n] for n in names}:
                assert gain_of_padding(inventory, source, chosen, names) <= TOLERANCE + 1e-9
