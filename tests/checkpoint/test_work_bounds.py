"""Small files that would take hours or gigabytes: refused in one line, or read at once."""

import struct
import time

import pytest
from checkpoint_making import MemoryFolder, checkpoint, write_header, write_torch_zip
from test_layouts import attention
from test_safetensors_header import framed
from test_unpickle import bomb_of_lists

from gacprof.checkpoint import scan
from gacprof.checkpoint.config import effective_config
from gacprof.checkpoint.containers import read_container
from gacprof.checkpoint.pickled import find_state
from gacprof.checkpoint.scanning import inventory_of
from gacprof.checkpoint.unpickle import unpickle
from gacprof.core.errors import CheckpointError


def refusal(data):
    """What is said of a pickle."""
    with pytest.raises(CheckpointError) as refused:
        find_state(unpickle(data, "test").value, "test")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500
    return str(refused.value)


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def test_a_rank_far_above_its_weights_is_no_rank(tmp_path):
    """Its decomposition would be of a million by a million."""
    q = "model.layers.0.self_attn.q_proj"
    shapes = {f"{q}.BLinear.weight": (1_000_000, 1), f"{q}.ALinear.weight": (1, 1_000_000)}
    dim = scan(checkpoint(tmp_path, shapes)).dim(f"{q}:rank")
    assert not dim.adjustable and "not a factor pair" in dim.why


def test_a_storage_type_of_shared_lists_is_not_written_out():
    """Sixty levels, each the one before twice: 2^60 elements as text."""
    stream = bomb_of_lists(60).removesuffix(b".")
    pid = b"(" + text("storage") + b"h\x3c" + text("0") + text("cpu") + b"K\x06tQ."
    assert "storage type 'list' is not known" in refusal(stream + pid)


def test_a_module_of_many_attributes_is_looked_through_once():
    """20 000 attributes, reached by 450 × 450 paths: minutes, if each path counts."""

    def module(state):
        return b"cm\nM\n)\x81}(" + state + b"ub"

    many = b"".join(text(f"a{i}") + b"K\x01" for i in range(20_000))
    stream = b"\x80\x02" + module(text("_modules") + b"}" + many) + b"q\0"
    for level in (1, 2):
        children = b"".join(text(f"c{i}") + b"h" + bytes([level - 1]) for i in range(450))
        stream += module(text("_modules") + b"}(" + children + b"u") + b"q" + bytes([level])
    began = time.process_time()
    assert not find_state(unpickle(stream + b".", "test").value, "test").tensors
    assert time.process_time() - began < 20


def test_a_class_of_a_20_mb_name_is_refused_before_it_is_called():
    stream = b"\x80\x02cm\n" + b"x" * 20_000_000 + b"\nq\0" + b"h\0)R0" * 20_000 + b"N."
    assert "class's name is longer" in refusal(stream)
    stacked = b"\x80\x04" + text("m") + text("x" * 2000) + b"\x93."
    assert "class's name is longer" in refusal(stacked)


def views(count, shape, stride):
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
def test_views_may_not_take_gigabytes_of_12_kb(tmp_path, stream):
    path = write_torch_zip(tmp_path / "m.pt", "m", stream, {"0": 12_000})
    with pytest.raises(CheckpointError, match="views that take"):
        scan(path)


@pytest.mark.parametrize("name", ["x" * 1001, "." * 100, "a." * 200 + "weight"])
def test_names_without_end_are_refused(tmp_path, name):
    with pytest.raises(CheckpointError, match="goes on for"):
        scan(checkpoint(tmp_path, {name: (2, 2)}))


def test_a_layer_of_a_thousand_groups_is_refused(tmp_path):
    k = "model.layers.0.self_attn.k_proj"
    shapes = {f"{k}.VT.weight": (1100, 2)}
    shapes |= {f"{k}.U.{i}.weight": (2, 1) for i in range(1100)}
    with pytest.raises(CheckpointError, match="1100 groups"):
        scan(checkpoint(tmp_path, shapes))


HALF = '"\\ud83d"'


@pytest.mark.parametrize("content", ['{"model_type": HALF}', "{HALF: 1}", '{"a": [{"b": HALF}]}'])
def test_halves_of_characters_are_refused(tmp_path, content):
    checkpoint(tmp_path, {"w.weight": (2, 2)})
    (tmp_path / "config.json").write_text(content.replace("HALF", HALF))
    with pytest.raises(CheckpointError, match="not valid JSON") as refused:
        scan(tmp_path)
    assert str(refused.value).isascii()


def test_names_of_half_a_character_are_refused(tmp_path):
    entry = f'{{{HALF}: {{"dtype": "F16", "shape": [1], "data_offsets": [0, 2]}}}}'
    with pytest.raises(CheckpointError, match="not valid JSON"):
        scan(write_header(tmp_path / "m.safetensors", entry.encode(), 2))
    name = b"X\x0a\0\0\0w" + b"\xed\xa0\xbd" + b"weight"
    stream = views(1, b"K\x01\x85", b"K\x01\x85").replace(text("w0.weight"), name)
    path = write_torch_zip(tmp_path / "m.pt", "m", stream, {"0": 12_000})
    with pytest.raises(CheckpointError, match="not text"):
        scan(path)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused_but_in_configs(tmp_path, value):
    header = b'{"w": {"dtype": "F16", "shape": [%s], "data_offsets": [0, 2]}}' % value.encode()
    with pytest.raises(CheckpointError, match="not a JSON number"):
        read_container(MemoryFolder({"m.safetensors": framed(header, 2)}), "m.safetensors")
    header = header.replace(value.encode(), b"1")
    files = {"m.safetensors": framed(header, 2), "config.json": b'{"a": %s}' % value.encode()}
    assert "a" in inventory_of("m", MemoryFolder(files), "m.safetensors").config


def test_zero_heads_are_survived(tmp_path):
    config = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 0}
    made = effective_config(scan(checkpoint(tmp_path, attention(8, 8), config)))
    assert made["num_attention_heads"] == 0
