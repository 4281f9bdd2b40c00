"""An index comes from strangers: it names files of its own folder, and those must agree."""

import json
import os
import random

import pytest
from checkpoint_making import MemoryFolder, header_of, write_safetensors
from test_safetensors_header import framed, mutated

from gacprof.checkpoint import scan
from gacprof.checkpoint.containers import read_container
from gacprof.core.errors import CheckpointError

INDEX = "model.safetensors.index.json"


def sharded(folder, weight_map):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_shards_are_read_as_one_checkpoint(tmp_path):
    up, down = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"
    write_safetensors(tmp_path / "a.safetensors", {up: (12, 4)})
    write_safetensors(tmp_path / "b.safetensors", {down: (4, 12)})
    inventory = scan(sharded(tmp_path, {up: "a.safetensors", down: "b.safetensors"}))
    assert {t.name: t.file for t in inventory.tensors.values()} == {
        up: "a.safetensors",
        down: "b.safetensors",
    }
    assert inventory.dim("model.layers.0.mlp:width").size == 12


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        *((path, None) for path in ("/etc/passwd", "../outside.safetensors", "", ".", "a\0b")),
        *((f"{way}outside.safetensors", None) for way in ("a/../../", "..\\", "C:\\")),
        ("model-00002-of-00002.safetensors", "model-00002-of-00002"),
        ("b.safetensors", "'w' is not in 'b"),
        ("sub/pipe", "no regular file"),
        ("link.safetensors", "leads outside"),
    ],
)
def test_shards_that_leave_the_folder_or_do_not_hold_their_tensor_are_refused(
    tmp_path, shard, message
):
    write_safetensors(tmp_path / "outside.safetensors", {"w": (2, 2)})
    folder = sharded(tmp_path / "model", {"w": shard})
    write_safetensors(folder / "b.safetensors", {"v": (2, 2)})
    (folder / "sub").mkdir()
    os.mkfifo(folder / "sub" / "pipe")
    (folder / "link.safetensors").symlink_to("../outside.safetensors")
    with pytest.raises(CheckpointError, match=message):
        scan(folder)


def test_shards_without_an_index_are_not_guessed_at(tmp_path):
    for i in (1, 2):
        write_safetensors(tmp_path / f"model-0000{i}-of-00002.safetensors", {f"w{i}": (2, 2)})
    with pytest.raises(CheckpointError, match="no index"):
        scan(tmp_path)


def test_the_hub_cache_links_to_its_own_blobs(tmp_path):
    repository = tmp_path / "models--org--name"
    write_safetensors(repository / "blobs" / "0123", {"w": (2, 2)})
    snapshot = sharded(repository / "snapshots" / "abc", {"w": "s.safetensors"})
    (snapshot / "s.safetensors").symlink_to("../../blobs/0123")
    assert scan(snapshot).tensors["w"].shape == (2, 2)


def test_tensors_that_the_index_leaves_out_are_told(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", {"w": (2, 2), "v": (2, 2)})
    inventory = scan(sharded(tmp_path, {"w": "a.safetensors"}))
    assert list(inventory.tensors) == ["w"]
    assert any("left out" in note for note in inventory.notes)


@pytest.mark.parametrize(
    "index",
    ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"w": 1}}',
     '{"weight_map": {"w": "a.safetensors", "w": "b.safetensors"}}'],
)  # fmt: skip
def test_a_broken_index_is_refused(tmp_path, index):
    (tmp_path / INDEX).write_text(index)
    with pytest.raises(CheckpointError, match="index"):
        scan(tmp_path)


@pytest.mark.usefixtures("nothing_happens")
def test_mutated_indexes():
    rng = random.Random(2)
    shards = {}
    for shard in ("a", "b"):
        header, length = header_of({f"{shard}.{i}": (2, 2) for i in range(3)})
        shards[f"{shard}.safetensors"] = framed(header, length)
    weight_map = {f"{s}.{i}": f"{s}.safetensors" for s in "ab" for i in range(3)}
    index = json.dumps({"metadata": {"total_size": 48}, "weight_map": weight_map}).encode()
    refused = 0
    for _ in range(400):
        folder = MemoryFolder({**shards, INDEX: mutated(rng, index)})
        try:
            stored = read_container(folder, INDEX)
        except CheckpointError:
            refused += 1
        else:
            assert set(stored.tensors) <= set(weight_map)
    assert 0 < refused < 400
