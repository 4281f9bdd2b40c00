"""Foreign files run no code and write nothing: the two readers on hostile and broken bytes."""

from __future__ import annotations

import builtins
import encodings.cp437  # zipfile decodes names by it
import encodings.raw_unicode_escape  # noqa: F401 - and Python a pickle's text by this
import json
import os
import pickle
import random
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open
from tiny_models import write_tiny
from tool_checkpoints import checkpoint, write_torch_zip
from tool_folders import restored

from gacprof.checkpoint.load import load_model
from gacprof.checkpoint.scan import scan
from gacprof.core.errors import CheckpointError

ACTS = ("os.system", "os.exec", "os.posix_spawn", "subprocess.", "socket.", "shutil.", "ctypes.")
_acts: list[str] | None = None


def _witness(event: str, args: tuple[Any, ...]) -> None:
    if _acts is None:
        return
    writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
    if event in ("import", "exec") or event.startswith(ACTS) or writes:
        _acts.append(f"{event} {args[:2]}"[:200])


sys.addaudithook(_witness)  # cannot be removed again, hence the switch


@pytest.fixture
def nothing_happens(tmp_path: Path) -> Iterator[None]:
    """Fails the test if anything is imported, run, connected to or written within it."""
    global _acts
    checkpoint(tmp_path / "warm", {"a.weight": (1, 1)})
    scan(tmp_path / "warm")  # what is imported on first use
    _acts = []
    try:
        yield
    finally:
        acts, _acts = _acts, None
    assert acts == []


class Calls:
    """Pickles as a call of ``function(*args)``."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


NEST = b")" + b"2\x86" * 60
"""Sixty pairs, each of the one before twice: 2^60 steps to hash."""

HOSTILE = {
    "os.system": pickle.dumps(Calls(os.system, "touch pwned")),
    "eval": pickle.dumps(Calls(builtins.eval, "__import__('os').system('touch pwned')")),
    "exec": pickle.dumps(Calls(builtins.exec, "raise SystemExit"), 0),
    "__import__": pickle.dumps(Calls(builtins.__import__, "antigravity")),
    "open for writing": pickle.dumps(Calls(builtins.open, "pwned", "w")),
    "os._exit": pickle.dumps(Calls(os._exit, 3)),
    "sys.setrecursionlimit": pickle.dumps(Calls(sys.setrecursionlimit, 10**9)),
    "torch.load as a gadget": b"ctorch.serialization\nload\n(S'other.pt'\ntR.",
    "torch.hub.load": b"ctorch.hub\nload\n(S'org/repo'\nS'entry'\ntR.",
    "INST": b"(S'touch pwned'\nios\nsystem\n.",
    "OBJ": b"(cos\nsystem\nS'touch pwned'\no.",
    "NEWOBJ": b"\x80\x02cos\nsystem\n\x8c\x01x\x85\x81.",
    "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x01x\x85R.",
    "a dotted name": b"\x80\x04\x8c\x08builtins\x8c\x12eval.__self__.exec\x93)R.",
    "BUILD with __setstate__": b"cos\nPathLike\n)\x81}S'__setstate__'\ncos\nsystem\nsb.",
    "a call of a call": b"cbuiltins\ngetattr\n(cos\n__dict__\nS'get'\ntR(S'system'\ntR.",
    "an extension code": b"\x80\x02\x82\x01)R.",
    "no end": b"\x80\x02N",
    "a mark as the value": b"(.",
    "bytes of 2^63": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "a persistent id that is no storage": b"S'file:///etc/passwd'\nQ.",
    "a nest of tuples as a key": b"\x80\x04}" + NEST + b"Ns.",
    "a nest of tuples in a set": b"\x80\x04\x8f(" + NEST + b"\x90.",
    "a nest of tuples in a frozen set": b"\x80\x04(" + NEST + b"\x91.",
    "a nest of tuples as a storage's key": b"\x80\x04(Nctorch\nFloatStorage\n" + NEST + b"tQ.",
    "lists nested 100,000 deep": b"]" * 100_000 + b"a" * 99_999 + b".",
}


@pytest.mark.usefixtures("nothing_happens")
@pytest.mark.parametrize("stream", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_pickle_runs_nothing_and_is_refused(stream: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    assert _acts is not None
    write_torch_zip(path, stream, {})
    _acts.clear()  # the writing was ours
    with pytest.raises(CheckpointError) as refusal:
        scan(path)
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.rglob("pwned"))


def test_modules_that_share_each_other_end(tmp_path: Path) -> None:
    """Sixty modules, each holding the one before twice, have 2^60 names."""
    stream = b"\x80\x04cm\nC\n)\x81}\x8c\x08_modules}sb\x94"
    for i in range(60):
        former = b"h" + bytes([i])
        children = b"(\x8c\x01a" + former + b"\x8c\x01b" + former + b"u"
        stream += b"cm\nC\n)\x81}\x8c\x08_modules}" + children + b"sb\x94"
    with pytest.raises(CheckpointError):
        scan(write_torch_zip(tmp_path / "model.pt", stream + b".", {}))


def test_a_model_of_too_many_modules_is_refused(tmp_path: Path) -> None:
    """Rather than read in part."""
    model = torch.nn.Sequential()
    model._modules = dict.fromkeys(map(str, range(100_001)), torch.nn.Linear(1, 1))
    torch.save(model, tmp_path / "model.pt")
    with pytest.raises(CheckpointError):
        scan(tmp_path / "model.pt")


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The bytes with a few of them changed, cut off, or doubled."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed))
        kind = rng.randrange(3)
        if kind == 0:
            changed[at] = rng.randrange(256)
        elif kind == 1:
            del changed[at : at + rng.randint(1, 64)]
        else:
            changed[at:at] = changed[at : at + rng.randint(1, 64)]
    return bytes(changed)


def test_mutated_headers_and_pickles_are_read_or_refused(
    tmp_path: Path, nothing_happens: None
) -> None:
    """A bounded fuzz of both readers."""
    assert _acts is not None
    header = (checkpoint(tmp_path / "a", {f"x.{i}.weight": (2, i) for i in range(1, 9)})) / (
        "model.safetensors"
    )
    pickled = (
        restored("llmpruner_mha_global_mlp_0.3", tmp_path) / "pytorch_model.bin"
    ).read_bytes()
    rng = random.Random(0)
    refused = 0
    for original, name in ((header.read_bytes(), "a.safetensors"), (pickled, "b.bin")):
        beginning, rest = original[: 1 << 16], original[1 << 16 :]
        for _ in range(60):
            path = tmp_path / "fuzz" / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(mutated(beginning, rng) + rest)
            _acts.clear()  # the writing was ours
            try:
                scan(path)
            except CheckpointError as error:
                refused += 1
                assert "\n" not in str(error)
            assert _acts == []
    assert refused > 60


def test_what_torch_saves_is_read(tmp_path: Path) -> None:
    """A state dict, one inside a training's dict, views and shared storages."""
    base = torch.arange(24.0).reshape(4, 6)
    state = {"up_proj.weight": base.T, "down_proj.weight": base, "lm_head.weight": base[1:, 2:]}
    torch.save({"epoch": 3, "optimizer": {"lr": 0.1}, "state_dict": state}, tmp_path / "m.pt")
    inventory = scan(tmp_path)
    assert {name: info.shape for name, info in inventory.tensors.items()} == {
        name: tuple(tensor.shape) for name, tensor in state.items()
    }
    from gacprof.checkpoint.tensors import read_tensor

    for name, tensor in state.items():
        assert torch.equal(read_tensor(inventory, name), tensor)


@pytest.mark.parametrize(
    "content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"\x80\x02\x8a\x0al\xfc" * 4]
)
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="fetch"):
        scan(tmp_path)


@pytest.mark.parametrize("shard", ["../secret.safetensors", "/etc/passwd", "no.safetensors", 7])
def test_an_index_names_files_of_its_folder_only(shard: Any, tmp_path: Path) -> None:
    checkpoint(tmp_path, {"a.weight": (1, 1)})
    (tmp_path / "secret.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes())
    folder = tmp_path / "model"
    folder.mkdir()
    index = {"weight_map": {"a.weight": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError):
        scan(folder)


def linked(folder: Path, name: str, target: Path) -> Path:
    """The checkpoint's folder, with a file moved to ``target`` and a link in its place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    (folder / name).replace(target)
    (folder / name).symlink_to(target)
    return folder


def one_mlp(folder: Path) -> Path:
    """A checkpoint with a tokenizer, in two shards."""
    shapes = {"model.layers.0.mlp.up_proj.weight": (51, 32)}
    index = {"weight_map": dict.fromkeys(shapes, "model-1.safetensors")}
    checkpoint(folder, shapes, {})
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "tokenizer.json").write_text("{}")
    return folder


FILES = ("model-1.safetensors", "model.safetensors.index.json", "config.json", "tokenizer.json")


@pytest.mark.parametrize("name", FILES)
def test_a_link_out_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        scan(linked(one_mlp(tmp_path / "model"), name, tmp_path / "private" / "file"))


@pytest.mark.parametrize("name", FILES)
def test_links_within_a_folder_and_of_the_hubs_cache_are_followed(
    name: str, tmp_path: Path
) -> None:
    inside = one_mlp(tmp_path / "model")
    assert scan(linked(inside, name, inside / "data" / "file")).tensors
    cache = tmp_path / "models--org--name"
    snapshot = one_mlp(cache / "snapshots" / "1234")
    assert scan(linked(snapshot, name, cache / "blobs" / "5678")).tensors


def test_a_cache_whose_blobs_lie_elsewhere_is_refused(tmp_path: Path) -> None:
    cache = tmp_path / "models--org--name"
    (tmp_path / "private").mkdir()
    snapshot = one_mlp(cache / "snapshots" / "1234")
    (cache / "blobs").symlink_to(tmp_path / "private")
    with pytest.raises(CheckpointError):
        scan(linked(snapshot, "tokenizer.json", cache / "blobs" / "5678"))


@pytest.mark.parametrize("weight_map", [[1], 7, "a", None, {}])
def test_an_index_without_a_map_of_shards_is_refused(weight_map: Any, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError):
        scan(tmp_path)


def write_header(path: Path, header: dict[str, Any], data: bytes) -> Path:
    """A safetensors file of this header."""
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(start: int, end: int, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - start], "data_offsets": [start, end]}


WHOLE = {"a": entry(0, 4), "b": entry(4, 8)}
BROKEN = {
    "overlapping tensors": {"a": entry(0, 6), "b": entry(4, 8)},
    "the same bytes twice": {"a": entry(0, 8), "b": entry(0, 8)},
    "bytes of no tensor between": {"a": entry(0, 3), "b": entry(4, 8)},
    "bytes of no tensor at the end": {"a": entry(0, 4), "b": entry(4, 7)},
    "bytes beyond the end": {"a": entry(0, 4), "b": entry(4, 9)},
    "a negative offset": {"a": entry(-4, 4), "b": entry(4, 8)},
    "another size than the shape's": {"a": entry(0, 8) | {"shape": [4]}},
    "metadata that is no text": {"__metadata__": {"step": 1}, **WHOLE},
}


@pytest.mark.parametrize("header", BROKEN.values(), ids=BROKEN.keys())
def test_a_safetensors_file_is_refused_where_its_own_library_refuses_it(
    header: dict[str, Any], tmp_path: Path
) -> None:
    """A header of 1 MB could otherwise show the same bytes 9,000 times, and realign copy them."""
    assert len(scan(write_header(tmp_path / "whole.safetensors", WHOLE, bytes(8))).tensors) == 2
    path = write_header(tmp_path / "model.safetensors", header, bytes(8))
    with pytest.raises(SafetensorError):
        safe_open(path, "pt")
    with pytest.raises(CheckpointError):
        scan(path)


def test_a_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    """The file is whole: to fetch it again would not help."""
    header = {"a": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}}
    with pytest.raises(CheckpointError) as refusal:
        scan(write_header(tmp_path / "model.safetensors", header, bytes(4)))
    assert "F4" in str(refusal.value) and "fetch" not in str(refusal.value)


def test_names_and_sizes_of_no_model_are_refused(tmp_path: Path) -> None:
    empty = {"dtype": "U8", "shape": [0, 2**40], "data_offsets": [8, 8]}
    for odd in ({"a." * 100_000: entry(4, 8)}, {"b": entry(4, 8), "c": empty}):
        with pytest.raises(CheckpointError):
            scan(write_header(tmp_path / "model.safetensors", {"a": entry(0, 4), **odd}, bytes(8)))


@pytest.mark.parametrize("size", [10**5, 10**12])
def test_a_pickle_that_repeats_one_number_is_refused(size: int, tmp_path: Path) -> None:
    """Before anything of that size is asked of the machine."""
    torch.save({"up_proj.weight": torch.zeros(1).expand(size, 4)}, tmp_path / "model.pt")
    with pytest.raises(CheckpointError):
        scan(tmp_path)


def test_a_pickle_of_too_many_opcodes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 MB of idle ones would keep Python's unpickler busy for minutes."""
    torch.save({"a.weight": torch.zeros(2, 2)}, tmp_path / "model.pt")
    assert scan(tmp_path).parameters == 4
    monkeypatch.setattr("gacprof.checkpoint.pickled.MAX_OPCODES", 10)
    with pytest.raises(CheckpointError):
        scan(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_a_pipe_is_not_waited_for(name: str, tmp_path: Path) -> None:
    checkpoint(tmp_path, {"a.weight": (1, 1)})
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError):
        scan(tmp_path if name == "config.json" else tmp_path / name)


def test_a_config_of_more_layers_than_tensors_builds_no_model(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    for layers in (10**7, 10**12):
        (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
        with pytest.raises(CheckpointError):
            load_model(folder)
