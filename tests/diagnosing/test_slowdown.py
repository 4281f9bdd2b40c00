"""What the misaligned products of a whole model may cost, beside what was timed end to end."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from pruned_llama import WIDTHS, pruned_llama, saved_us
from tool_checkpoints import checkpoint

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import scan
from gacprof.diagnosing.diagnosis import diagnose
from gacprof.kernels import third_party
from gacprof.reporting.sections import section_of

H200 = Path(__file__).parents[1] / "fixtures" / "h200"
PADDED_US = {512: 61.6, 1024: 116.5}
"""One product of 10,784 and 4096 on an H100 by rows (aiconfigurator-core 0.12.0)."""
PRODUCTS = 75
MLP = "model.layers.0.mlp"


@pytest.fixture(autouse=True)
def no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(third_party, "aligned_us", lambda *_: None)


def factored(folder: Path, rank: int, config: dict[str, object] | None = None) -> Inventory:
    """One MLP of 4096 × 14336 in factors of a rank, as SVD-LLM stores them."""
    shapes = {}
    for name, n, k in (("gate", 14336, 4096), ("up", 14336, 4096), ("down", 4096, 14336)):
        shapes[f"{MLP}.{name}_u_proj.weight"] = (n, rank)
        shapes[f"{MLP}.{name}_v_proj.weight"] = (rank, k)
    return scan(checkpoint(folder, shapes, {"model_type": "llama", **(config or {})}))


@pytest.mark.parametrize("tokens", [512, 1024])
@pytest.mark.parametrize("is_timed", [False, True])
def test_what_padding_saved_of_a_prefill_is_within_the_estimate(
    tokens: int, is_timed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_timed:
        monkeypatch.setattr(third_party, "aligned_us", lambda gpu, rows, n, k: PADDED_US[rows])
    padded_us = PRODUCTS * PADDED_US[tokens]
    costs = {}
    for parity, width in WIDTHS.items():
        inventory = pruned_llama(tmp_path / parity, width)
        costs[parity] = diagnose(inventory, "h100", tokens=[tokens]).slowdown
    even, odd = costs["even"], costs["odd"]
    assert even is not None and odd is not None and even.even + odd.odd == pytest.approx(2)
    assert odd.padded_us == (pytest.approx(padded_us) if is_timed else None)
    assert padded_us * (even.low - 1) <= saved_us()[tokens] <= padded_us * (odd.high - 1)


def products_us(name: str) -> float:
    """The time of a traced model's products in a prefill of 1,024 tokens: seven and the head."""
    trace = json.loads(gzip.decompress((H200 / f"{name}.json.gz").read_bytes()))
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    kernels.sort(key=lambda event: event["ts"])
    products = [event for event in kernels if re.search("nvjet|tensorop", event["name"])]
    return sum(event["dur"] for event in products[:8])


@pytest.mark.parametrize("is_timed", [False, True])
def test_a_ragged_llama_on_an_h200_is_within_the_estimate(
    is_timed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An MLP of 12,001 beside one of 12,016: no row of the table is of such products."""
    if is_timed:
        flops_a_us = 750e6  # what the aligned products of the trace reach
        monkeypatch.setattr(
            third_party, "aligned_us", lambda gpu, rows, n, k: 2 * rows * n * k / flops_a_us
        )
    shapes = {"lm_head.weight": (32000, 4096)}
    for name, rows in (("q", 3584), ("k", 896), ("v", 896)):
        shapes[f"model.layers.0.self_attn.{name}_proj.weight"] = (rows, 4096)
    shapes["model.layers.0.self_attn.o_proj.weight"] = (4096, 3584)
    shapes[f"{MLP}.gate_proj.weight"] = shapes[f"{MLP}.up_proj.weight"] = (12001, 4096)
    shapes[f"{MLP}.down_proj.weight"] = (4096, 12001)
    model = scan(checkpoint(tmp_path / "ragged", shapes, {"model_type": "llama"}))
    cost = diagnose(model, "h200", tokens=[1024]).slowdown
    assert cost is not None and (cost.padded_us is not None) == is_timed
    assert cost.low < products_us("ragged") / products_us("aligned") < cost.high


def test_the_dense_model_is_beside_the_padded_one(tmp_path: Path) -> None:
    cost = diagnose(factored(tmp_path / "even", 2230), "h100").slowdown
    assert cost is not None and cost.tokens == (1024,)
    assert (cost.odd, cost.even, cost.unknown) == (0.0, pytest.approx(1.0), 0.0)
    assert (cost.low, cost.high) == (pytest.approx(1.8), pytest.approx(4.1))
    assert cost.dense == pytest.approx(14336 * 4096 / (2232 * (14336 + 4096)))


def test_products_of_unknown_cost_are_counted_as_padded(tmp_path: Path) -> None:
    """A rank of 107 is shorter than any that was measured."""
    shapes = {
        f"{MLP}.gate_proj.weight": (1433, 4096),
        f"{MLP}.up_proj.weight": (1433, 4096),
        f"{MLP}.down_proj.weight": (4096, 1433),
        "model.layers.0.self_attn.k_proj.VT.weight": (107, 4096),
        "model.layers.0.self_attn.k_proj.U.weight": (4096, 107),
    }
    cost = diagnose(scan(checkpoint(tmp_path / "m", shapes, {})), "h100", tokens=[512]).slowdown
    assert cost is not None and 0 < cost.unknown < 0.1
    assert cost.high == pytest.approx(9.3 * cost.odd + cost.unknown)


def test_dims_that_hide_each_others_cost_have_an_estimate(tmp_path: Path) -> None:
    """Both sides of the products are odd: each is judged beside the other as it will be padded."""
    shapes = {
        f"{MLP}.gate_proj.ALinear.weight": (5683, 1131),
        f"{MLP}.gate_proj.BLinear.weight": (1131, 4096),
        f"{MLP}.up_proj.ALinear.weight": (5683, 1131),
        f"{MLP}.up_proj.BLinear.weight": (1131, 4096),
        f"{MLP}.down_proj.ALinear.weight": (4096, 1131),
        f"{MLP}.down_proj.BLinear.weight": (1131, 5683),
    }
    findings = diagnose(scan(checkpoint(tmp_path / "odd", shapes)), "h100").dims
    assert len(findings) == 4 and all(finding.now.estimate for finding in findings)


@pytest.mark.parametrize(
    ("rank", "gpu", "tokens"),
    [(2232, "h100", 1024), (2230, "a100", 1024), (2230, "h100", 1), (2230, "h100", 256)],
)
def test_a_model_without_an_estimate_has_none(
    rank: int, gpu: str, tokens: int, tmp_path: Path
) -> None:
    assert diagnose(factored(tmp_path / "m", rank), gpu, tokens=[tokens]).slowdown is None


def test_others_measured_no_kernels_of_quantised_weights(tmp_path: Path) -> None:
    config = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    plain = diagnose(factored(tmp_path / "plain", 2230), "h100")
    quantised = diagnose(factored(tmp_path / "awq", 2230, config), "h100")
    assert any(finding.now.estimate for finding in plain.dims)
    assert not any(finding.now.estimate for finding in quantised.dims)
    assert plain.slowdown and quantised.slowdown is None


def test_people_see_both_ends_of_an_estimate_and_once_where_it_comes_from(tmp_path: Path) -> None:
    section = section_of(diagnose(factored(tmp_path / "odd", 1433), "h100"))
    cells = [row[section.columns.index("penalty")] for row in section.rows]
    assert all("2.8" in cell and "9.3" in cell for cell in cells if cell) and any(cells)
    assert len([remark for remark in section.remarks if "groups" in remark]) == 1
    assert any("1024" in remark and "dense" in remark for remark in section.remarks)
