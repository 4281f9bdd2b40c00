"""A safetensors header is believed only where every byte of the file agrees with it."""

import json
import random
import struct

import pytest
from checkpoint_making import MemoryFolder, header_of

from gacprof.checkpoint.containers import read_container, read_safetensors
from gacprof.core.errors import CheckpointError


def framed(header, data=0, length=None):
    return struct.pack("<Q", len(header) if length is None else length) + header + bytes(data)


def read(file):
    return dict(read_safetensors(MemoryFolder({"m.safetensors": file}), "m.safetensors").tensors)


ONE = {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}
"""A float16 tensor [2, 3] of 12 bytes."""


def entry(**changes):
    """A header with that tensor, some of it changed."""
    return json.dumps({"w": ONE | changes}).encode()


def test_a_sound_header_gives_names_shapes_dtypes_and_offsets():
    header, length = header_of({"a": (2, 3), "b": ("bfloat16", (4,)), "c": ("int64", ())})
    found = read(framed(header, length))
    assert {n: (t.shape, t.dtype, t.nbytes) for n, t in found.items()} == {
        "a": ((2, 3), "float16", 12),
        "b": ((4,), "bfloat16", 8),
        "c": ((), "int64", 8),
    }
    start = 8 + len(header)
    assert [found[n].offset for n in "abc"] == [start, start + 12, start + 20]


REFUSED = {
    "an empty file": b"",
    "a file shorter than its length field": b"\x10\0\0",
    "a header longer than the file": framed(entry(), 12, length=10_000),
    "a header of 2^64-1 bytes": framed(entry(), 12, length=2**64 - 1),
    "a header above the format's limit": framed(b"{}", 0, length=100_000_001),
    "a header that is not JSON": framed(b"hello"),
    "a header that is not UTF-8": framed(b'{"\xff": 1}'),
    "a header that is a list": framed(b"[]"),
    "JSON nested without end": framed(b'{"a":' * 50_000),
    "a tensor given twice": framed(b"{" + entry()[1:-1] + b"," + entry()[1:], 12),
    "NaN as a dim": framed(b'{"w":{"dtype":"F16","shape":[NaN],"data_offsets":[0,0]}}'),
    "a negative dim": framed(entry(shape=[-2, -3]), 12),
    "a dim that is true": framed(entry(shape=[True, 6]), 12),
    "a dim that is a float": framed(entry(shape=[2.0, 3]), 12),
    "a dim that is text": framed(entry(shape="23"), 12),
    "dims whose product passes 2^64": framed(entry(shape=[2**33, 2**33]), 12),
    "a dim of 2^60": framed(entry(shape=[2**60, 0]), 12),
    "a thousand dims": framed(entry(shape=[1] * 1000), 12),
    "a shape larger than its bytes": framed(entry(shape=[2, 4]), 12),
    "a shape smaller than its bytes": framed(entry(shape=[2, 2]), 12),
    "an unknown dtype": framed(entry(dtype="F99"), 12),
    "a dtype that is a list": framed(entry(dtype=["F16"]), 12),
    "offsets in reverse": framed(entry(data_offsets=[12, 0]), 12),
    "offsets beyond the file": framed(entry(), 4),
    "bytes after the last tensor": framed(entry(), 16),
    "a gap before the first tensor": framed(entry(data_offsets=[4, 16]), 16),
    "offsets that are not two": framed(entry(data_offsets=[0]), 12),
    "an entry with a further key": framed(entry(extra=1), 12),
    "an entry that is a number": framed(b'{"w": 1}'),
    "metadata that is not text": framed(b'{"__metadata__": {"a": 1}}'),
    "overlapping tensors": framed(
        json.dumps({"a": ONE, "b": ONE | {"data_offsets": [6, 18]}}).encode(), 18
    ),
    "two names for the same bytes": framed(json.dumps({"a": ONE, "b": ONE}).encode(), 12),
    "a truncated file": framed(entry(), 11),
    "a number of 5000 digits": framed(b'{"w": ' + b"9" * 5000 + b"}"),
}


@pytest.mark.parametrize("file", REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_one_clear_line(file):
    with pytest.raises(CheckpointError) as refusal:
        read(file)
    assert "memory/m.safetensors" in str(refusal.value)
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 400


def mutated(rng, data):
    """A few random edits: flip, overwrite, cut, insert, repeat."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) + 1) if out else 0
        kind = rng.randrange(6)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = rng.randrange(256)
        elif kind == 2:
            del out[at : at + rng.randint(1, 20)]
        elif kind == 3:
            out[at:at] = rng.choice([b"9" * 30, b"-", b"[", b"{", b'"', b"NaN", b"\0", b"1e999"])
        elif kind == 4:
            out[at:at] = out[at : at + rng.randint(1, 60)]
        else:
            del out[at:]
    return bytes(out)


def test_more_tensors_than_any_model_has_are_refused_and_metadata_is_none(monkeypatch):
    assert read(framed(json.dumps({"__metadata__": {"format": "pt"}}).encode())) == {}
    monkeypatch.setattr("gacprof.checkpoint.containers.MAX_TENSORS", 3)
    with pytest.raises(CheckpointError, match="4 tensors"):
        header, length = header_of({str(i): (1,) for i in range(4)})
        read(framed(header, length))


@pytest.mark.usefixtures("nothing_happens")
def test_two_thousand_mutated_headers():
    """Each gives tensors that lie within the file, or a CheckpointError; nothing else."""
    rng = random.Random(6)
    shapes = {f"model.layers.{i}.mlp.up_proj.weight": (i + 2, 4) for i in range(4)}
    header, length = header_of({**shapes, "b": ("int64", (3,)), "s": ("float32", ())})
    sound = framed(header, length)
    refused = 0
    for i in range(2000):
        if i % 2:
            file = framed(mutated(rng, header), length)  # the length field still fits
        else:
            file = mutated(rng, sound[: 8 + len(header)]) + bytes(length)
        try:
            stored = read_container(MemoryFolder({"m.safetensors": file}), "m.safetensors")
        except CheckpointError:
            refused += 1
        else:
            for tensor in stored.tensors.values():
                assert tensor.offset is not None
                assert 8 <= tensor.offset <= tensor.offset + tensor.nbytes <= len(file)
    assert 0 < refused < 2000  # some mutations only rename a tensor, and are fine
