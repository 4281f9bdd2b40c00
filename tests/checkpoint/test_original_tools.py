"""What the original tools wrote is recognised, and the inventory is what they say they wrote."""

import json

import pytest
from checkpoint_making import restored

from gacprof.checkpoint import AttentionHeads, scan

LAYOUTS = {
    "base_mha": "plain",
    "torchpruning_mha_0.3": "plain",
    "asvd_mha_r1": "asvd",
    "palu_mha_gs4_block1": "palu",
    "svdllm_mha_0.6": "svd-llm",
    "llmpruner_mha_global_mlp_0.3": "llm-pruner",
    "slicegpt_mha_s0.22_r1": "slicegpt",
}


@pytest.fixture(scope="module", params=LAYOUTS)
def written(request, tools_checkpoints):
    """Inventory, recognised by its structure, and manifest."""
    folder = tools_checkpoints / request.param
    inventory = scan(folder)
    assert inventory.layout == LAYOUTS[request.param]
    return inventory, json.loads((folder / "manifest.json").read_text())


@pytest.fixture
def inventory_of(fixtures, tmp_path):
    return lambda name: scan(restored(fixtures / "checkpoints" / f"{name}.headers", tmp_path))


def test_tensors_are_those_of_the_manifest(written):
    inventory, manifest = written
    found = {n: [list(t.shape), f"torch.{t.dtype}"] for n, t in inventory.tensors.items()}
    assert found == manifest["state_dict"]
    assert inventory.parameters == manifest["parameter_count"]


def test_every_dim_has_its_size_at_every_place_and_feed(written):
    inventory, _ = written
    assert inventory.dims
    for dim in inventory.dims:
        for place in dim.places:
            whole = inventory.tensors[place.tensor].shape[place.axis]
            assert place.start + dim.size <= whole
        for feed in dim.feeds:
            others = [d.size for d in inventory.dims for f in d.feeds if f == feed]
            gemm = inventory.gemm(feed.weight)
            assert sum(others) == (gemm.N if feed.axis == "N" else gemm.K)


def test_one_more_unit_costs_what_its_places_say(written):
    inventory, _ = written
    for dim in inventory.dims:
        cost = sum(
            inventory.tensors[p.tensor].numel // inventory.tensors[p.tensor].shape[p.axis]
            for p in dim.places
        )
        assert dim.params_per_unit == cost, dim.name


def test_every_matrix_is_a_gemm_or_a_table(written):
    inventory, _ = written
    gemms = {gemm.weight for module in inventory.modules for gemm in module.gemms}
    tables = {f"{m.name}.weight" for m in inventory.modules if m.kind == "embedding"}
    matrices = {name for name, info in inventory.tensors.items() if len(info.shape) == 2}
    assert gemms | tables == matrices


def test_no_rank_is_taken_for_a_head_dim(written):
    inventory, manifest = written
    heads = 5 if "Torch-Pruning" in manifest["tool"] else 8
    assert inventory.attentions == tuple(AttentionHeads(i, heads, heads, 32) for i in range(4))


def test_asvd_ranks(fixtures):
    inventory = scan(fixtures / "checkpoints" / "asvd_mha_r1")
    manifest = json.loads((fixtures / "checkpoints/asvd_mha_r1/manifest.json").read_text())
    ranks = {d.name.removesuffix(":rank"): d.size for d in inventory.dims if d.kind == "rank"}
    assert ranks == manifest["ranks_or_widths"] == inventory.config["truncation_ranks"]
    assert any("random" in note for note in inventory.notes)


def test_svdllm_ranks_are_those_of_the_shapes(inventory_of):
    inventory = inventory_of("svdllm_mha_0.6")
    ranks = {(d.role, d.size) for d in inventory.dims if d.kind == "rank"}
    assert ranks == {(r, 76) for r in "qkvo"} | {(r, 111) for r in ("gate", "up", "down")}
    assert {m.dtype for m in inventory.modules} == {"float16", "float32"}
    assert inventory.config["model_type"] == "llama"  # from the pickled model itself


def test_llmpruner_widths_differ_and_the_config_is_not_believed(inventory_of):
    inventory = inventory_of("llmpruner_mha_global_mlp_0.3")
    assert [d.size for d in inventory.dims] == [600, 448, 439, 439]
    assert any("688" in note and "439, 448, 600" in note for note in inventory.notes)
    assert inventory.attributes["model.layers.0.self_attn"]["num_heads"] == 8


def test_slicegpt_residual_stream(inventory_of):
    inventory = inventory_of("slicegpt_mha_s0.22_r1")
    hidden = [d for d in inventory.dims if d.kind == "hidden"]
    assert {d.name: d.size for d in hidden} == {
        "embedding:hidden": 199,
        **{f"model.layers.{i}.attn:hidden": 199 for i in range(4)},
        **{f"model.layers.{i}.mlp:hidden": 199 if i < 3 else 256 for i in range(4)},
    }
    first = inventory.dim("model.layers.0.mlp:hidden")
    assert {(p.tensor.removeprefix("model.layers."), p.axis) for p in first.places} == {
        ("0.mlp.down_proj.weight", 0),
        ("0.mlp_shortcut_Q", 1),
        ("1.attn_shortcut_Q", 0),
        ("1.self_attn.q_proj.weight", 1),
        ("1.self_attn.k_proj.weight", 1),
        ("1.self_attn.v_proj.weight", 1),
    }
    last = inventory.dim("model.layers.3.mlp:hidden")
    assert ("lm_head.weight", 1) in {(p.tensor, p.axis) for p in last.places}
    shortcut = inventory.gemm("model.layers.3.mlp_shortcut_Q")  # stored as [in, out]
    assert (shortcut.K, shortcut.N) == (199, 256)
