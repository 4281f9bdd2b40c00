"""Small files that would take hours or gigabytes: refused in one line, or read at once."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from checkpoint_making import MemoryFolder, checkpoint, write_header, write_torch_zip
from test_layouts import MLP, attention, gated

from gacprof.checkpoint import scan
from gacprof.checkpoint.containers import read_container
from gacprof.checkpoint.foreign import effective_config
from gacprof.checkpoint.pickled import find_state
from gacprof.checkpoint.scanning import inventory_of
from gacprof.checkpoint.unpickle import unpickle
from gacprof.core.errors import CheckpointError
from gacprof.resizing import realign


def refusal(data: bytes) -> str:
    """What is said of a pickle."""
    with pytest.raises(CheckpointError) as refused:
        find_state(unpickle(data, "test").value, "test")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500
    return str(refused.value)


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


@pytest.mark.parametrize("shape", [[2**40, 0], [0, 2**40], [2**31, 0]])
def test_sizes_that_no_library_takes_are_refused(tmp_path: Path, shape: list[int]) -> None:
    entry = {"dtype": "F16", "shape": shape, "data_offsets": [0, 0]}
    header = json.dumps({f"{MLP}.up_proj.weight": entry}).encode()
    path = write_header(tmp_path / "model.safetensors", header, 0)
    with pytest.raises(CheckpointError, match="not a list of sizes"):
        scan(path)


def test_weights_without_elements_have_no_products(tmp_path: Path) -> None:
    wide = 2**31 - 1
    shapes: dict[str, Any] = {f"{MLP}.up_proj.weight": (wide, 0)}
    shapes |= {f"{MLP}.down_proj.weight": (0, wide), "w.weight": (3, 2)}
    inventory = scan(checkpoint(tmp_path, shapes))
    assert inventory.dims == () and [m.name for m in inventory.modules] == ["w"]
    shapes = {"a.q_proj.BLinear.weight": (0, 8), "a.q_proj.ALinear.weight": (8, 0)}
    with pytest.raises(CheckpointError, match="not a matrix"):
        scan(checkpoint(tmp_path / "factors", shapes))


def test_a_width_of_a_million_is_padded_like_any_other(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source", gated(MLP, 1_000_001, 1))
    result = realign(source, "minimal", tmp_path / "out")
    assert scan(tmp_path / "out").dim(f"{MLP}:width").size == 1_000_008 and result.exact


def test_a_rank_far_above_its_weights_is_no_rank(tmp_path: Path) -> None:
    """Its decomposition would be of a million by a million."""
    q = "model.layers.0.self_attn.q_proj"
    shapes = {f"{q}.BLinear.weight": (1_000_000, 1), f"{q}.ALinear.weight": (1, 1_000_000)}
    dim = scan(checkpoint(tmp_path, shapes)).dim(f"{q}:rank")
    assert not dim.adjustable and "not a factor pair" in dim.why


def test_a_storage_type_of_shared_lists_is_not_written_out() -> None:
    """Sixty levels, each the one before twice: 2^60 elements as text."""
    stream = b"\x80\x04]\x94"
    for i in range(60):
        stream += b"](h" + bytes([i]) + b"h" + bytes([i]) + b"e\x94"
    pid = b"(" + text("storage") + b"h\x3c" + text("0") + text("cpu") + b"K\x06tQ."
    assert "storage type 'list' is not known" in refusal(stream + pid)


def module(state: bytes) -> bytes:
    return b"cm\nM\n)\x81}(" + state + b"ub"


def test_a_module_of_many_attributes_is_looked_through_once(monkeypatch: Any) -> None:
    """20 000 attributes, reached by 450 × 450 paths."""
    seen = []
    monkeypatch.setattr(
        "gacprof.checkpoint.pickled._scalars", lambda state: seen.append(len(state)) or {}
    )
    many = b"".join(text(f"a{i}") + b"K\x01" for i in range(20_000))
    stream = b"\x80\x02" + module(text("_modules") + b"}" + many) + b"q\0"
    for level in (1, 2):
        children = b"".join(text(f"c{i}") + b"h" + bytes([level - 1]) for i in range(450))
        stream += module(text("_modules") + b"}(" + children + b"u") + b"q" + bytes([level])
    with pytest.raises(CheckpointError, match="no tensors"):
        inventory_of_pickle(stream + b".")
    assert sorted(seen) == [1, 1, 20_001]


def inventory_of_pickle(stream: bytes) -> Any:
    if not find_state(unpickle(stream, "test").value, "test").tensors:
        raise CheckpointError("holds no tensors")


def test_a_class_of_a_20_mb_name_is_refused_before_it_is_called() -> None:
    stream = b"\x80\x02cm\n" + b"x" * 20_000_000 + b"\nq\0" + b"h\0)R0" * 20_000 + b"N."
    assert "class's name is longer" in refusal(stream)
    stacked = b"\x80\x04" + text("m") + text("x" * 2000) + b"\x93."
    assert "class's name is longer" in refusal(stacked)


def views(count: int, shape: bytes, stride: bytes) -> bytes:
    """A state dict of views of one half-precision storage of 6 000 elements."""
    items = b"".join(
        text(f"w{i}.weight") + b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage")
        + b"ctorch\nHalfStorage\n" + text("0") + text("cpu") + b"M\x70\x17tQK\0" + shape + stride
        + b"\x89}tR" for i in range(count)
    )  # fmt: skip
    return b"\x80\x02}(" + items + b"u."


@pytest.mark.parametrize(
    "stream",
    [
        views(1, b"J\x00\x00\x00\x40K\x01\x86", b"K\0K\x01\x86"),
        views(2, b"J\x0a\x00\x01\x00M\x70\x17\x86", b"K\0K\x01\x86"),
        views(2000, b"M\x70\x17\x85", b"K\x01\x85"),
    ],
    ids=["a stride of 0", "rows of one row", "many names"],
)
def test_views_may_not_take_gigabytes_of_12_kb(tmp_path: Path, stream: bytes) -> None:
    path = write_torch_zip(tmp_path / "m.pt", "m", stream, {"0": 12_000})
    with pytest.raises(CheckpointError, match="views that take"):
        scan(path)


def test_a_view_of_a_few_rows_is_read(tmp_path: Path) -> None:
    stream = views(2, b"K\x08M\x70\x17\x86", b"K\0K\x01\x86")
    path = write_torch_zip(tmp_path / "m.pt", "m", stream, {"0": 12_000})
    assert scan(path).tensors["w1.weight"].shape == (8, 6000)


@pytest.mark.parametrize("name", ["x" * 1001, "." * 100, "a." * 200 + "weight"])
def test_names_without_end_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="goes on for"):
        scan(checkpoint(tmp_path, {name: (2, 2)}))


def test_a_layer_of_a_thousand_groups_is_refused(tmp_path: Path) -> None:
    k = "model.layers.0.self_attn.k_proj"
    shapes: dict[str, Any] = {f"{k}.VT.weight": (1100, 2)}
    shapes |= {f"{k}.U.{i}.weight": (2, 1) for i in range(1100)}
    with pytest.raises(CheckpointError, match="1100 groups"):
        scan(checkpoint(tmp_path, shapes))


HALF = '"\\ud83d"'


@pytest.mark.parametrize(
    "content",
    [
        '{"model_type": HALF}',
        "{HALF: 1}",
        '{"a": [{"b": HALF}]}',
    ],
)
def test_halves_of_characters_are_refused(tmp_path: Path, content: str) -> None:
    checkpoint(tmp_path, {"w.weight": (2, 2)})
    (tmp_path / "config.json").write_text(content.replace("HALF", HALF))
    with pytest.raises(CheckpointError, match="not valid JSON") as refused:
        scan(tmp_path)
    assert str(refused.value).isascii()


def test_whole_characters_beyond_the_first_plane_are_read(tmp_path: Path) -> None:
    checkpoint(tmp_path, {"w.weight": (2, 2)})
    (tmp_path / "config.json").write_text('{"model_type": "\\ud83d\\ude00"}')
    assert scan(tmp_path).config["model_type"] == "\N{GRINNING FACE}"


def test_names_of_half_a_character_are_refused(tmp_path: Path) -> None:
    entry = f'{{{HALF}: {{"dtype": "F16", "shape": [1], "data_offsets": [0, 2]}}}}'
    with pytest.raises(CheckpointError, match="not valid JSON"):
        scan(write_header(tmp_path / "m.safetensors", entry.encode(), 2))
    name = b"X\x0a\0\0\0w" + b"\xed\xa0\xbd" + b"weight"
    stream = views(1, b"K\x01\x85", b"K\x01\x85").replace(text("w0.weight"), name)
    path = write_torch_zip(tmp_path / "m.pt", "m", stream, {"0": 12_000})
    with pytest.raises(CheckpointError, match="not text"):
        scan(path)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused_but_in_configs(tmp_path: Path, value: str) -> None:
    header = b'{"w": {"dtype": "F16", "shape": [%s], "data_offsets": [0, 2]}}' % value.encode()
    with pytest.raises(CheckpointError, match="not a JSON number"):
        read_container(MemoryFolder({"m.safetensors": framed(header, 2)}), "m.safetensors")
    header = header.replace(value.encode(), b"1")
    files = {"m.safetensors": framed(header, 2), "config.json": b'{"a": %s}' % value.encode()}
    assert "a" in inventory_of("m", MemoryFolder(files), "m.safetensors").config


def framed(header: bytes, length: int) -> bytes:
    return struct.pack("<Q", len(header)) + header + bytes(length)


def test_zero_heads_are_survived(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 0}
    made = effective_config(scan(checkpoint(tmp_path, attention(8, 8), config)))
    assert made["num_attention_heads"] == 0
