"""LLM-Pruner: units go by Taylor importance, and what stays is the model without them."""

import pytest
import torch
from decoders import write_decoder
from tool_checkpoints import checkpoint

from gacprof.checkpoint.load import load_model
from gacprof.checkpoint.scan import scan
from gacprof.compress.compress import compress
from gacprof.compress.llm_pruner import prunable_widths
from gacprof.core.errors import CheckpointError, PlanError


def importance_of(folder, ids):
    """Σ |w · ∂loss/∂w| by unit of each MLP, from one pass of the whole model."""
    model = load_model(folder, dtype="float32").requires_grad_(True)
    logits = model(input_ids=ids).logits[:, :-1]
    torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum"
    ).backward()
    scores = {}
    for index, layer in enumerate(model.model.layers):
        parts = layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight, layer.mlp.down_proj.weight
        gate, up, down = ((w * w.grad).detach().abs() for w in parts)
        scores[index] = gate.sum(1) + up.sum(1) + down.sum(0)
    return scores


@pytest.mark.parametrize("objective", ["loss", "energy", "uniform"])
def test_the_least_important_units_go(objective, dense, ids, tmp_path):
    out = tmp_path / "out"
    result = compress(dense, out, method="llm-pruner", objective=objective, ratio=0.2, text=ids)
    scores = importance_of(dense, ids)
    masked = load_model(dense)
    for dim in scan(dense).dims:
        order = scores[dim.layer].argsort(descending=True)
        masked.model.layers[dim.layer].mlp.down_proj.weight[:, order[result.sizes[dim.name] :]] = 0
    pruned = load_model(out)
    with torch.no_grad():
        torch.testing.assert_close(
            pruned(input_ids=ids).logits, masked(input_ids=ids).logits, rtol=1e-4, atol=1e-4
        )
    total = sum(dim.size * dim.params_per_unit for dim in scan(dense).dims)
    assert result.parameters[1] <= result.parameters[0] - int(0.2 * total)
    assert result.bound <= result.loss + 1e-9


def test_one_width_for_all_layers_is_a_plain_model(tmp_path, ids):
    dense = write_decoder(tmp_path / "dense", widths=(96, 96))
    result = compress(
        dense, tmp_path / "out", method="llm-pruner", objective="uniform", ratio=0.25, text=ids
    )
    assert set(result.sizes.values()) == {72}
    assert scan(tmp_path / "out").config["intermediate_size"] == 72


def test_the_first_and_the_last_layers_stay_whole(tmp_path, ids):
    dense = write_decoder(tmp_path / "dense", widths=(96,) * 16)
    assert [dim.layer for dim in prunable_widths(scan(dense))] == list(range(2, 15))
    with pytest.raises(PlanError, match="81%"):
        compress(dense, tmp_path / "out", method="llm-pruner", ratio=0.9, text=ids)


def test_experts_are_not_pruned_since_no_config_says_widths_that_differ(tmp_path):
    shapes = {}
    for layer in range(4):
        expert = f"model.layers.{layer}.mlp.experts.0"
        shapes[f"{expert}.gate_proj.weight"] = (8, 4)
        shapes[f"{expert}.up_proj.weight"] = (8, 4)
        shapes[f"{expert}.down_proj.weight"] = (4, 8)
    checkpoint(tmp_path / "experts", shapes)
    with pytest.raises(CheckpointError):
        prunable_widths(scan(tmp_path / "experts"))
