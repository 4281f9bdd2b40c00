"""Plans for models in memory, and for factors that hold no numbers."""

import shutil

import numpy as np
import pytest
from planted import TOKENS
from safetensors.numpy import load_file, save_file

from gacprof.checkpoint import inventory_of_model
from gacprof.core.errors import CheckpointError
from gacprof.planning import plan

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from gacprof.checkpoint.load import load_model  # noqa: E402
from gacprof.resizing import realign  # noqa: E402

INNER = "model.layers.0.self_attn.v_proj.BLinear.weight"


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_model_in_memory_is_planned_by_its_own_factors(asvd, planted_map, dtype):
    model = load_model(asvd, dtype)
    made = plan(model, planted_map, tokens=TOKENS, budget=0.9)
    stored = plan(asvd, planted_map, tokens=TOKENS, budget=0.9)
    assert made.energy_kept == pytest.approx(stored.energy_kept, rel=1e-2)
    if dtype is None:
        assert made.changes == stored.changes
    sizes = {c.dim: c.after for c in made.choices if c.after is not None}
    resized = realign(model, made)
    dims = {d.name: d.size for d in inventory_of_model(resized).dims}
    assert {name: dims[name] for name in sizes} == sizes


def test_an_inventory_of_a_model_says_that_the_model_is_needed(asvd, planted_map):
    inventory = inventory_of_model(load_model(asvd))
    with pytest.raises(CheckpointError, match="give the model itself"):
        plan(inventory, planted_map, tokens=TOKENS)


def test_factors_that_are_not_finite_are_refused_by_name(asvd, planted_map, tmp_path):
    shutil.copytree(asvd, tmp_path / "broken")
    file = tmp_path / "broken" / "model.safetensors"
    tensors = {name: tensor.copy() for name, tensor in load_file(file).items()}
    tensors[INNER][3, 5] = np.nan
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=f"'{INNER}' holds NaN or infinity"):
        plan(tmp_path / "broken", planted_map, tokens=TOKENS)
    assert plan(tmp_path / "broken", planted_map, tokens=TOKENS, objective="pad").choices
