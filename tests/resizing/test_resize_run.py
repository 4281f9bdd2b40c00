"""Realigning real and made checkpoints: what is written, what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gacprof.checkpoint import open_tensors, scan
from gacprof.core.errors import CheckpointError, PlanError
from gacprof.planning.schema import Budget, Certificate, Choice, Plan, Workload
from gacprof.resizing import realign
from gacprof.resizing.request import EXACT


def plan_for(checkpoint, sizes):
    """A plan that a person could have written: these sizes, everything else as it is."""
    inventory = scan(checkpoint)
    choices = []
    for dim in inventory.dims:
        after = sizes.get(dim.name, dim.size)
        action = "pad" if after > dim.size else "truncate" if after < dim.size else "keep"
        choices.append(
            Choice(dim=dim.name, kind=dim.kind, before=dim.size, after=after, action=action, cost=0)
        )
    return Plan(
        checkpoint=str(checkpoint), fingerprint=inventory.fingerprint, layout=inventory.layout,
        map="none", device="none", objective="by hand", choices=choices,
        workload=Workload(tokens={1: 1.0}, dtype="float16"),
        budget=Budget(limit=None, used=0, before=0, basis="none"),
        certificate=Certificate(solver="none", value=0, bound=None, gap=None, proved=False),
    )  # fmt: skip


def test_asvd_padded_has_the_sizes_the_config_and_the_bits(fixtures, tmp_path):
    source, out = fixtures / "checkpoints" / "asvd_mha_r1", tmp_path / "out"
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    result = realign(source, "minimal", out)
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
    after = scan(out)
    assert after.layout == "asvd" and result.exact
    assert {d.name: d.size for d in after.dims} == {
        d.name: -(-d.size // 8) * 8 for d in scan(source).dims
    }
    config = json.loads((out / "config.json").read_text())
    for module, rank in config.pop("truncation_ranks").items():
        assert rank == after.dim(f"{module}:rank").size
    original = json.loads((source / "config.json").read_text())
    assert config == {k: v for k, v in original.items() if k != "truncation_ranks"}
    old, new = load_file(source / "model.safetensors"), load_file(out / "model.safetensors")
    assert old.keys() == new.keys()
    for name, tensor in old.items():
        padded = np.zeros(new[name].shape, tensor.dtype)
        padded[tuple(slice(n) for n in tensor.shape)] = tensor
        np.testing.assert_array_equal(new[name], padded, err_msg=name)


FOLDERS = {
    "svdllm_mha_0.6": "logits",
    "slicegpt_mha_s0.22_r1": "logits_fp32_rope",
    "torchpruning_mha_0.3": "logits",
}
"""Of pickled checkpoints, which recorded logits are their own; of others the test in memory asks,
and memory and files have the same bits."""


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_tools_checkpoint_padded_gives_its_own_models_logits(
    folder, tools_checkpoints, tmp_path
):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from gacprof.checkpoint.load import load_model

    source, out = tools_checkpoints / folder, tmp_path / "out"
    realign(source, "minimal", out)
    before, after = scan(source), scan(out)
    assert {d.name: d.size for d in after.dims} == {
        d.name: -(-d.size // 8) * 8 for d in before.dims
    }
    assert after.tensors.keys() - before.tensors.keys() == set()
    truth = np.load(source / "ground_truth.npz")
    with torch.no_grad():
        model = load_model(out, "float32")
        logits = model(torch.from_numpy(truth["input_ids"])).logits
    np.testing.assert_allclose(logits.numpy(), truth[FOLDERS[folder]], atol=2e-5)  # of up to 8


def test_a_plan_may_pad_one_dim_and_cut_another(make_factored, tmp_path):
    source, out = make_factored([13, 11]), tmp_path / "out"
    q = "model.layers.{}.self_attn.q_proj".format
    result = realign(source, plan_for(source, {f"{q(0)}:rank": 16, f"{q(1)}:rank": 8}), out)
    assert [(r.before, r.after, r.how) for r in result.resized] == [
        (13, 16, "zeros"),
        (11, 8, "order"),
    ]
    old, new = open_tensors(source), open_tensors(out)
    np.testing.assert_array_equal(
        new.read(f"{q(1)}.ALinear.weight"), old.read(f"{q(1)}.ALinear.weight")[:, :8]
    )
    np.testing.assert_array_equal(
        new.read(f"{q(1)}.BLinear.weight"), old.read(f"{q(1)}.BLinear.weight")[:8]
    )
    whole = old.read(f"{q(1)}.ALinear.weight") @ old.read(f"{q(1)}.BLinear.weight")
    left = new.read(f"{q(1)}.ALinear.weight") @ new.read(f"{q(1)}.BLinear.weight")
    error = np.linalg.norm(whole - left) / np.linalg.norm(whole)
    assert result.resized[1].loss == pytest.approx(error, rel=1e-5)
    assert result.resized[0].loss is None and not result.exact


def test_a_pair_without_order_is_cut_to_the_best_rank_k(make_factored, tmp_path):
    source, out = make_factored([12]), tmp_path / "out"
    found = scan(source)
    inventory = replace(found, dims=tuple(replace(d, ordered=False) for d in found.dims))
    module = "model.layers.0.self_attn.q_proj"
    result = realign(inventory, {f"{module}:rank": 5}, out)
    old, new = open_tensors(source), open_tensors(out)
    whole = old.read(f"{module}.ALinear.weight") @ old.read(f"{module}.BLinear.weight")
    left = new.read(f"{module}.ALinear.weight") @ new.read(f"{module}.BLinear.weight")
    u, s, vt = np.linalg.svd(whole.astype(np.float64))
    np.testing.assert_allclose(left, (u[:, :5] * s[:5]) @ vt[:5], atol=1e-5)
    assert result.resized[0].how == "svd"
    np.testing.assert_array_equal(
        new.read(f"{module}.ALinear.bias"), old.read(f"{module}.ALinear.bias")
    )


def test_a_width_without_importance_is_cut_by_magnitude_and_says_so(fixtures, tmp_path):
    source, out = fixtures / "checkpoints" / "asvd_mha_r1", tmp_path / "out"
    dim = "model.layers.1.mlp:width"  # gate, up and down are dense there
    result = realign(scan(source), {dim: 640}, out)
    assert result.resized[0].how == "magnitude"
    old, new = open_tensors(source), open_tensors(out)
    names = [f"model.layers.1.mlp.{part}_proj.weight" for part in ("gate", "up", "down")]
    gate, up, down = (old.read(name).astype(np.float64) for name in names)
    product = (
        np.linalg.norm(gate, axis=1) * np.linalg.norm(up, axis=1) * np.linalg.norm(down, axis=0)
    )
    kept = np.sort(np.argsort(-product, kind="stable")[:640])
    np.testing.assert_array_equal(new.read(names[0]), old.read(names[0])[kept])
    np.testing.assert_array_equal(new.read(names[2]), old.read(names[2])[:, kept])


def test_shards_index_and_metadata_are_mirrored(make_factored, tmp_path):
    source, out = make_factored([13, 11, 9], shards=3), tmp_path / "out"
    result = realign(source, "minimal", out)
    names = sorted(p.name for p in source.glob("*.safetensors"))
    assert sorted(p.name for p in out.glob("*.safetensors")) == names == sorted(result.files)
    old, new = (
        json.loads((folder / "model.safetensors.index.json").read_text())
        for folder in (source, out)
    )
    assert new["weight_map"] == old["weight_map"]
    assert new["metadata"] == {"total_size": result.bytes_written, "note": "kept"}
    assert result.bytes_written == sum(t.nbytes for t in scan(out).tensors.values())
    header = (out / names[0]).read_bytes()[8:].split(b"}", 1)[0]
    assert b"made_by" in header
    assert json.loads((out / "config.json").read_text())["an_unknown_key"] == {"kept": True}
    assert (out / "tokenizer.json").read_text() == (source / "tokenizer.json").read_text()


def test_sharded_pickles_become_sharded_safetensors_of_the_same_names(make_factored, tmp_path):
    torch = pytest.importorskip("torch")
    tensors = load_file(make_factored([13, 11]) / "model.safetensors")
    source, out, weight_map = tmp_path / "pickled", tmp_path / "out", {}
    source.mkdir()
    for i, part in enumerate((sorted(tensors)[:3], sorted(tensors)[3:]), 1):
        file = f"pytorch_model-{i:05d}-of-00002.bin"
        torch.save({name: torch.from_numpy(tensors[name]) for name in part}, source / file)
        weight_map |= dict.fromkeys(part, file)
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (source / "pytorch_model.bin.index.json").write_text(index)
    result = realign(source, "minimal", out)
    assert result.files == tuple(f"model-{i:05d}-of-00002.safetensors" for i in (1, 2))
    assert scan(out).tensors.keys() == tensors.keys()
    new = open_tensors(out)
    for name, tensor in tensors.items():
        stored = new.read(name)[tuple(slice(n) for n in tensor.shape)]
        np.testing.assert_array_equal(stored, tensor)


def test_the_output_says_where_it_comes_from(make_factored, tmp_path):
    source = make_factored([13])
    plan = plan_for(source, {"model.layers.0.self_attn.q_proj:rank": 16})
    plan.save(tmp_path / "plan.json")
    realign(source, tmp_path / "plan.json", tmp_path / "once")
    record = json.loads((tmp_path / "once" / "gacprof.json").read_text())
    assert record["source"] == {"path": str(source), "fingerprint": scan(source).fingerprint}
    assert record["origin"]["plan"] and record["exact"]
    assert record["resized"][0]["after"] == 16
    realign(tmp_path / "once", "optimal", tmp_path / "twice")
    again = json.loads((tmp_path / "twice" / "gacprof.json").read_text())
    assert again["earlier"] == record


def test_a_plan_of_another_checkpoint_is_refused(make_factored, tmp_path):
    plan = plan_for(make_factored([13], name="one"), {})
    with pytest.raises(PlanError, match="another checkpoint"):
        realign(make_factored([12], name="other"), plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tensor_lost_from_the_index_is_refused_and_not_dropped(make_factored, tmp_path):
    source = make_factored([5, 6], shards=2)
    lost = "model.layers.1.self_attn.q_proj.ALinear.weight"
    path = source / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"][lost]  # it stays in its shard
    path.write_text(json.dumps(index))
    assert any(f"the shards hold '{lost}'" in note for note in scan(source).notes)
    with pytest.raises(CheckpointError, match=f"index leaves out '{lost}'.*belongs with"):
        realign(source, "minimal", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_exact_is_claimed_of_weights_that_are_not_finite(make_factored, tmp_path):
    source = make_factored([5])
    tensors = load_file(source / "model.safetensors")
    inner = "model.layers.0.self_attn.q_proj.BLinear.weight"
    tensors[inner][1, 2:4] = np.nan, np.inf
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    result = realign(source, "minimal", tmp_path / "out")
    assert result.not_finite == (inner,) and not result.exact
    assert "NaN or infinity" in result.meaning and result.meaning != EXACT


@pytest.mark.parametrize(
    ("tensor", "value"),
    [
        ("model.embed_tokens.weight", np.ones((1, 32, 16), np.float32)),
        ("lm_head.weight", np.array(1.0, np.float32)),
        ("lm_head.weight", np.ones((32, 16), np.int8)),
    ],
    ids=["3 dims", "no dims", "int8"],
)
def test_what_no_model_computes_with_is_not_written_as_exact(
    make_factored, tmp_path, tensor, value
):
    folder = make_factored([5])
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {tensor: value}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"{tensor} is .* mend the checkpoint"):
        realign(folder, "minimal", tmp_path / "out")
    assert not (tmp_path / "out").exists()
