"""Folders of realigned checkpoints: what stands in them, what is refused, what is left behind."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from decoders import write_decoder
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tool_folders import FIXTURES

from gacprof.checkpoint.scan import scan
from gacprof.checkpoint.tensors import read_tensor
from gacprof.core.errors import CheckpointError, GacprofError, PlanError
from gacprof.planning.plan import Choice, Plan
from gacprof.realigning.realign import realign

ASVD = FIXTURES / "asvd_mha_r1"
Q = "model.layers.0.self_attn.q_proj"
PAIRS = {Q: 23, "model.layers.1.mlp.down_proj": 41}


def plan_of(source: Path, sizes: dict[str, int | None]) -> Plan:
    inventory = scan(source)
    choices = tuple(
        Choice(dim.name, dim.kind, dim.size, sizes.get(dim.name, dim.size), "unknown")
        for dim in inventory.dims
    )
    return Plan(
        checkpoint=str(source),
        fingerprint=inventory.fingerprint,
        source="none",
        provenance="by hand",
        objective="pad",
        tokens={1: 1.0},
        tp=1,
        choices=choices,
        parameters=(0, 0),
        nbytes=(0, 0),
        latency_us=None,
        value=0.0,
        bound=0.0,
        limits={},
    )


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_padding_adds_zeros_behind_the_stored_entries_and_the_input_stays(tmp_path: Path) -> None:
    before = bytes_in(ASVD)
    out = realign(ASVD, "pad8", tmp_path / "out")
    assert bytes_in(ASVD) == before
    old, new = load_file(ASVD / "model.safetensors"), load_file(out / "model.safetensors")
    assert old.keys() == new.keys()
    for name, tensor in old.items():
        padded = torch.zeros(new[name].shape, dtype=tensor.dtype)
        padded[tuple(slice(n) for n in tensor.shape)] = tensor
        assert torch.equal(new[name], padded), name
    sizes = {dim.name: dim.size for dim in scan(out).dims}
    assert sizes == {dim.name: -(-dim.size // 8) * 8 for dim in scan(ASVD).dims}


def test_a_plan_and_its_file_give_its_sizes(tmp_path: Path) -> None:
    dims = [dim for dim in scan(ASVD).dims if dim.kind == "rank"]
    plan = plan_of(ASVD, {dims[0].name: dims[0].size + 3, dims[1].name: dims[1].size - 2})
    plan.save(tmp_path / "plan.json")
    realign(ASVD, plan, tmp_path / "a")
    out = realign(ASVD, tmp_path / "plan.json", tmp_path / "b")
    assert bytes_in(tmp_path / "a") == bytes_in(out)
    realigned = scan(out)
    assert realigned.dim(dims[0].name).size == dims[0].size + 3
    assert realigned.dim(dims[1].name).size == dims[1].size - 2
    record = json.loads((out / "gacprof.json").read_text())
    assert record["fingerprint"] == scan(ASVD).fingerprint
    assert record["resized"][dims[1].name] == [dims[1].size, dims[1].size - 2, "order"]


def test_a_plan_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError):
        realign(write_decoder(tmp_path / "source"), plan_of(ASVD, {}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_pair_without_order_becomes_its_best_factors(tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "source", ranks=PAIRS)
    stored = scan(source)
    inventory = replace(stored, dims=tuple(replace(d, ordered=False) for d in stored.dims))
    out = realign(inventory, {f"{Q}:rank": 5}, tmp_path / "out")
    old, new = load_file(source / "model.safetensors"), load_file(out / "model.safetensors")
    u, s, v = torch.linalg.svd(
        old[f"{Q}.outer.weight"].double() @ old[f"{Q}.inner.weight"].double()
    )
    product = (new[f"{Q}.outer.weight"] @ new[f"{Q}.inner.weight"]).double()
    assert new[f"{Q}.inner.weight"].shape[0] == 5
    torch.testing.assert_close(product, (u[:, :5] * s[:5]) @ v[:5], atol=1e-5, rtol=0)


def test_merged_factors_are_their_product(tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "source", ranks=PAIRS)
    out = realign(source, {f"{Q}:rank": None, "model.layers.0.mlp:width": 104}, tmp_path / "out")
    old, new = load_file(source / "model.safetensors"), load_file(out / "model.safetensors")
    product = old[f"{Q}.outer.weight"].double() @ old[f"{Q}.inner.weight"].double()
    torch.testing.assert_close(new[f"{Q}.weight"].double(), product, rtol=1e-7, atol=1e-7)
    assert f"{Q}.inner.weight" not in new
    assert json.loads((out / "gacprof.json").read_text())["merged"] == [Q]


def test_shards_stay_shards_and_pickles_become_safetensors(tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "sharded", widths=(50, 70), sharded=True)
    out = realign(source, "pad8", tmp_path / "a")
    for folder in (source, out):
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        for name, file in index["weight_map"].items():
            with safe_open(folder / file, "pt") as shard:
                assert name in shard.keys()  # noqa: SIM118 - not a dict
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    tensors = [load_file(path) for path in sorted(source.glob("*.safetensors"))]
    (pickled / "config.json").write_bytes((source / "config.json").read_bytes())
    weight_map = {}
    for i, part in enumerate(tensors, 1):
        torch.save(part, pickled / f"pytorch_model-{i:05d}-of-{len(tensors):05d}.bin")
        weight_map |= dict.fromkeys(part, f"pytorch_model-{i:05d}-of-{len(tensors):05d}.bin")
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (pickled / "pytorch_model.bin.index.json").write_text(index)
    realign(pickled, "pad8", tmp_path / "b")
    first, second = scan(out), scan(tmp_path / "b")
    assert first.fingerprint == second.fingerprint and second.container == "safetensors"
    for name in first.tensors:
        assert torch.equal(read_tensor(first, name), read_tensor(second, name))


def test_tied_names_are_written_each(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    table = torch.randn(32, 16)
    state = {"model.embed_tokens.weight": table, "lm_head.weight": table}
    state["model.layers.0.mlp.up_proj.weight"] = torch.randn(11, 16)
    state["model.layers.0.mlp.gate_proj.weight"] = torch.randn(11, 16)
    state["model.layers.0.mlp.down_proj.weight"] = torch.randn(16, 11)
    torch.save(state, source / "model.pt")
    new = load_file(realign(source, "pad8", tmp_path / "out") / "model.safetensors")
    assert torch.equal(new["lm_head.weight"], table)
    assert torch.equal(new["model.embed_tokens.weight"], table)
    assert new["model.layers.0.mlp.down_proj.weight"].shape == (16, 16)


@pytest.mark.parametrize(
    "sizes",
    [
        {"nowhere:rank": 8},
        {f"{Q}:rank": 0},
        {"model.layers.0.mlp:width": None},
        "uniform",
        "no-such-plan.json",
    ],
)
def test_sizes_that_cannot_be_had_leave_nothing(sizes: object, tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "source", ranks=PAIRS)
    with pytest.raises((GacprofError, FileNotFoundError)):
        realign(source, sizes, tmp_path / "out")  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_an_output_that_exists_or_lies_in_the_checkpoint_is_refused(tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "source", widths=(50, 70))
    with pytest.raises(CheckpointError):
        realign(source, "pad8", source / "out")
    (tmp_path / "out").mkdir()
    with pytest.raises(FileExistsError):
        realign(source, "pad8", tmp_path / "out")
    assert not any((tmp_path / "out").iterdir())


def test_a_run_that_fails_leaves_nothing(tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "source", ranks=PAIRS, sharded=True)
    (source / "model-ends.safetensors").chmod(0o644)
    sizes = {f"{Q}:rank": None}
    half = {n: t.half() * 0 + 60000 for n, t in load_file(source / "model-0.safetensors").items()}
    save_file(half, source / "model-0.safetensors")
    with pytest.raises(CheckpointError):  # the product overflows float16
        realign(source, sizes, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
