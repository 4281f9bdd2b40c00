"""Composing the segments of an axis: checked against numpy on whole arrays; and the files that they
are streamed to: torch reads back what was written."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from gacprof.checkpoint import open_tensors, scan
from gacprof.core import factors
from gacprof.core.errors import CheckpointError
from gacprof.resizing import segments as made
from gacprof.resizing.changes import new_checkpoint
from gacprof.resizing.segments import Mix, Stretch, Take, Zeros, apply, compose, stream
from gacprof.resizing.values import Resizer
from gacprof.resizing.writers import WeightsFile, save_tensors


@st.composite
def an_axis(draw):
    """A length, and per neighbouring part its size, what becomes of it, and the answer."""
    actions = st.sampled_from(["keep", "pad", "cut", "choose"])
    parts = draw(st.lists(st.tuples(st.integers(1, 9), actions, st.data()), min_size=1, max_size=6))
    stretches, expected, at = [], [], 0
    for size, action, data in parts:
        whole = list(range(at, at + size))
        if action == "pad":
            extra = data.draw(st.integers(0, 7))
            stretches.append(Stretch(at, size, (Take(range(at, at + size)), Zeros(extra))))
            expected += whole + [-1] * extra
        elif action == "cut":
            new = data.draw(st.integers(1, size))
            stretches.append(Stretch(at, size, (Take(range(at, at + new)),)))
            expected += whole[:new]
        elif action == "choose":
            kept = sorted(data.draw(st.sets(st.sampled_from(whole), min_size=1)))
            stretches.append(Stretch(at, size, (Take(tuple(kept)),)))
            expected += kept
        else:
            expected += whole
        at += size
    return at, stretches, expected


@given(an_axis(), st.integers(0, 1), st.integers(1, 40))
def test_every_stretch_becomes_what_was_asked_and_the_rest_stays(axis_case, axis, chunk_bytes):
    length, stretches, expected = axis_case
    segments = compose(length, stretches)
    assert sum(segment.size for segment in segments) == len(expected)
    source = np.arange(1, length * 3 + 1, dtype=np.uint16).reshape(length, 3)
    source = source if axis == 0 else np.ascontiguousarray(source.T)
    lines = np.moveaxis(source, axis, 0)
    wanted = np.moveaxis(
        np.stack([lines[i] if i >= 0 else np.zeros_like(lines[0]) for i in expected]), 0, axis
    )
    np.testing.assert_array_equal(apply(source, axis, segments, "bfloat16"), wanted)
    streamed = list(stream(source, {axis: segments}, "bfloat16", chunk_bytes))
    assert b"".join(block.tobytes() for block in streamed) == wanted.tobytes()
    assert made.new_shape(source.shape, {axis: segments}) == wanted.shape


@given(an_axis(), an_axis())
def test_two_axes_of_one_tensor_are_edited_independently(first, second):
    source = np.arange(first[0] * second[0], dtype=np.float32).reshape(first[0], second[0])
    axes = {0: compose(first[0], first[1]), 1: compose(second[0], second[1])}
    one_by_one = apply(apply(source, 0, axes[0], "float32"), 1, axes[1], "float32")
    streamed = np.concatenate(list(stream(source, axes, "float32", 64)))
    np.testing.assert_array_equal(streamed, one_by_one)


@pytest.mark.parametrize("axis", [0, 1])
def test_combined_entries_are_a_matrix_product_on_their_stretch(axis):
    rng = np.random.default_rng(0)
    source = rng.standard_normal((6, 6)).astype(np.float32)
    matrix = rng.standard_normal((3, 2))
    segments = compose(6, [Stretch(2, 3, (Mix(2, matrix),))])
    lines = np.moveaxis(source.astype(np.float64), axis, 0)
    wanted = np.concatenate([lines[:2], matrix.T @ lines[2:5], lines[5:]])
    for got in (
        apply(source, axis, segments, "float32"),
        np.concatenate(list(stream(source, {axis: segments}, "float32", 16))),
    ):
        np.testing.assert_allclose(got, np.moveaxis(wanted, 0, axis), rtol=1e-6)


def test_overlapping_stretches_and_stretches_beyond_the_axis_are_refused():
    for stretches in (
        [Stretch(0, 4, (Zeros(4),)), Stretch(3, 2, (Zeros(2),))],
        [Stretch(6, 4, (Zeros(4),))],
    ):
        with pytest.raises(CheckpointError, match="axis of 8"):
            compose(8, stretches)


def test_a_scalar_is_copied():
    assert next(stream(np.array(7, np.int64), {}, "int64")).tobytes() == np.int64(7).tobytes()


def test_bfloat16_rounds_to_nearest_even_like_torch():
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.standard_normal(4000) * 10.0**e for e in (-38, -3, 0, 5, 37)])
    values = np.concatenate(
        [values, [0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, np.inf, -np.inf, np.nan]]
    )
    single = values.astype(np.float32)
    ours = factors.narrow(single.astype(np.float64), "bfloat16")
    theirs = torch.from_numpy(single).to(torch.bfloat16)
    np.testing.assert_array_equal(
        factors.widen(ours, "bfloat16"), theirs.double().numpy(), strict=True
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_value_that_overflows_the_type_is_refused_not_written_as_infinity(dtype):
    with pytest.raises(CheckpointError, match="overflows"):
        factors.narrow(np.array([1.0, 3.4e38 * 1.5]), dtype)


def test_tensors_in_memory_are_written_as_the_library_reads_them(tmp_path):
    state = {
        "w": torch.arange(12).reshape(3, 4).bfloat16().T,
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 4),
        "bool": torch.tensor([True, False]),
    }
    save_tensors(tmp_path / "m.safetensors", state, {"format": "pt"})
    found = load_file(tmp_path / "m.safetensors")
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


@pytest.mark.parametrize("mmap", [False, True])
def test_all_the_types_that_torch_save_knows_are_read_by_torch(tmp_path, mmap):
    state = {
        dtype: torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
        for dtype in ("float64", "float32", "float16", "bfloat16", "int64", "int8", "uint8", "bool")
    }
    state |= {"scalar": torch.tensor(3.5), "empty": torch.empty(0, 4)}
    torch.save(state, tmp_path / "source.pt")
    reader, counts = open_tensors(tmp_path / "source.pt"), []
    new = new_checkpoint(reader.inventory, {})
    resizer = Resizer(reader, new)
    file = WeightsFile("out.pt", "torch", tuple(new.tensors.values()), {})
    assert file.write(tmp_path, resizer, counts.append) is False
    assert sum(counts) == sum(i.nbytes for i in scan(tmp_path / "out.pt").tensors.values())
    again = torch.load(tmp_path / "out.pt", weights_only=True, mmap=mmap)
    assert list(again) == list(state)
    for name, tensor in state.items():
        assert again[name].dtype == tensor.dtype and torch.equal(again[name], tensor), name
        assert again[name].is_contiguous()
