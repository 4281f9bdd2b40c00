"""Scanning: what is found where, what it costs, and what is said when nothing can be read."""

import json
import os
from pathlib import Path

import pytest
import torch
from checkpoint_making import PEAK_KIB, checkpoint, told_by, write_safetensors
from test_layouts import attention, gated

from gacprof.checkpoint import inventory_of_model, scan
from gacprof.core.errors import CheckpointError

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="measures memory through /proc"
)


def shapes_70b():
    """Names and shapes of an 80-layer, 70B Llama, by shard."""
    shards = {
        0: {"model.embed_tokens.weight": (128256, 8192)},
        31: {"model.norm.weight": (8192,), "lm_head.weight": (128256, 8192)},
    }
    for i in range(80):
        layer, shard = f"model.layers.{i}", shards.setdefault(1 + i * 30 // 80, {})
        for name, n_out in (("q", 8192), ("k", 1024), ("v", 1024), ("o", 8192)):
            shard[f"{layer}.self_attn.{name}_proj.weight"] = (n_out, 8192)
        shard |= gated(f"{layer}.mlp", 28672, 8192)
        shard[f"{layer}.input_layernorm.weight"] = (8192,)
        shard[f"{layer}.post_attention_layernorm.weight"] = (8192,)
    return shards


@needs_proc
def test_a_70b_checkpoint_is_scanned_from_headers_without_torch(tmp_path):
    """132 GB of sparse shards: under 300 MB of memory, and no byte of data is read."""
    weight_map = {}
    for i, shapes in shapes_70b().items():
        file = f"model-{i + 1:05}-of-00032.safetensors"
        write_safetensors(tmp_path / file, shapes, "bfloat16")
        weight_map |= dict.fromkeys(shapes, file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    code = (
        f"import json, sys{PEAK_KIB}"
        "from gacprof.checkpoint import scan\n"
        "found = scan(sys.argv[1])\n"
        "print(json.dumps([len(found.dims), found.parameters, peak_kib(), "
        "'torch' in sys.modules]))\n"
    )
    dims, parameters, peak_kib, torch_imported = json.loads(told_by(code, tmp_path))
    assert (dims, parameters) == (80, 70_553_706_496)
    assert peak_kib < 300 * 1024 and not torch_imported


def test_the_file_itself_may_be_named_and_goes_before_an_index_as_in_transformers(tmp_path):
    for name in ("mine.safetensors", "model.safetensors"):
        path = write_safetensors(tmp_path / name, {"w": (2, 2)})
        (tmp_path / "config.json").write_text('{"model_type": "llama"}')
        (tmp_path / "model.safetensors.index.json").write_text("{}")
        inventory = scan(path if name == "mine.safetensors" else tmp_path)
        assert inventory.config == {"model_type": "llama"}
        assert inventory.folder == str(tmp_path) and inventory.tensors["w"].file == name


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({}, "no weights"),
        ({"a.safetensors": b"", "b.safetensors": b""}, "several weight files"),
        ({"model.safetensors": b""}, "is empty|too short"),
        ({"pytorch_model.bin": b""}, "is empty"),
        ({"model.gguf.bin": b"GGUF" + bytes(50)}, "GGUF"),
        ({"model.safetensors": b"version https://git-lfs.github.com/spec/v1\n"}, "Git LFS"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, files, complaint):
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=complaint) as refusal:
        scan(tmp_path)
    assert str(tmp_path) in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("path", ["/nowhere/at/all", "no such folder", "a\0b", "x" * 5000, "pipe"])
def test_a_path_that_leads_nowhere(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.mkfifo("model.safetensors")
    for name in (path, tmp_path):
        with pytest.raises(CheckpointError):
            scan(name)


@pytest.mark.parametrize("value", [None, [], "many", -1, 0, 2.5, {}, True])
def test_a_config_of_nonsense_is_survived(tmp_path, value):
    keys = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
            "intermediate_size", "truncation_ranks", "head_wise_ranks", "text_config",
            "tie_word_embeddings")  # fmt: skip
    shapes = gated("model.layers.0.mlp", 20) | attention(8, 8)
    inventory = scan(checkpoint(tmp_path, shapes, dict.fromkeys(keys, value)))
    assert inventory.dim("model.layers.0.mlp:width").size == 20


def test_the_fingerprint_follows_names_shapes_and_dtypes_only(tmp_path):
    first = scan(checkpoint(tmp_path / "a", {"w": (2, 2), "v": (3,)}))
    moved = scan(checkpoint(tmp_path / "b", {"v": (3,), "w": (2, 2)}, {"a": 1}))
    torch.save({"w": torch.ones(2, 2).half(), "v": torch.ones(3).half()}, tmp_path / "c.pt")
    other = scan(checkpoint(tmp_path / "d", {"w": (2, 3), "v": (3,)}))
    assert first.fingerprint == moved.fingerprint == scan(tmp_path / "c.pt").fingerprint
    assert first.fingerprint != other.fingerprint


def test_files_that_belong_to_the_model_are_listed(tmp_path):
    checkpoint(tmp_path, {"w": (2, 2)}, {})
    for name in ("tokenizer.json", "modeling_x.py", "notes.txt", "optimizer.pt"):
        (tmp_path / name).write_text("")
    assert scan(tmp_path).side_files == ("config.json", "modeling_x.py", "tokenizer.json")


def test_a_model_in_memory_is_told_as_its_file_would_be(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=64,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path)
    saved, live = scan(tmp_path), inventory_of_model(model)
    assert live.fingerprint == saved.fingerprint
    assert (live.modules, live.dims, live.attentions) == (
        saved.modules,
        saved.dims,
        saved.attentions,
    )
    with pytest.raises(CheckpointError):
        inventory_of_model(object())


def test_links_that_lead_outside_are_left_out_and_told(tmp_path):
    folder = checkpoint(tmp_path / "model", {"w.weight": (2, 2)}, {"model_type": "llama"})
    (tmp_path / "secret").write_text("mine")
    (folder / "tokenizer.json").symlink_to("../secret")
    (folder / "vocab.json").symlink_to("config.json")  # inside
    inventory = scan(folder)
    assert inventory.side_files == ("config.json", "vocab.json")
    assert any("'tokenizer.json' is a link that leads outside" in note for note in inventory.notes)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_what_is_read_may_not_be_a_link_to_elsewhere(tmp_path, name):
    folder = checkpoint(tmp_path / "model", {"w.weight": (2, 2)}, {"model_type": "llama"})
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(CheckpointError, match="leads outside this folder"):
        scan(folder)
    if name == "model.safetensors":  # the user names it, and means it
        assert set(scan(folder / name).tensors) == {"w.weight"}


def test_a_config_that_is_given_for_a_model_is_called_one_and_sent_to_its_verbs(tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama", "hidden_size": 4096}')
    with pytest.raises(CheckpointError, match=r"a config has no weights.*lint.*diagnose"):
        scan(config)
