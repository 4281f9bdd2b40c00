"""State dicts for SliceGPT's own loader: torch reads back what was streamed."""

from __future__ import annotations

import numpy as np
import pytest

from gacprof.checkpoint import open_tensors, scan
from gacprof.resizing.changes import new_checkpoint
from gacprof.resizing.values import Resizer
from gacprof.resizing.writers import WeightsFile, save_tensors

torch = pytest.importorskip("torch")


def written(source, path, sizes):
    reader, counts = open_tensors(source), []
    new = new_checkpoint(reader.inventory, sizes)
    resizer = Resizer(reader, new)
    file = WeightsFile(path.name, "torch", tuple(new.tensors.values()), {})
    assert file.write(path.parent, resizer, counts.append) is False
    assert sum(counts) == sum(info.nbytes for info in scan(path).tensors.values())
    return reader


@pytest.mark.parametrize("mmap", [False, True])
def test_torch_reads_what_we_write(make_factored, tmp_path, mmap):
    source, path = make_factored([13]), tmp_path / "out.pt"
    reader = written(source, path, {})
    state = torch.load(path, weights_only=True, mmap=mmap)
    assert list(state) == list(reader)
    for name, tensor in state.items():
        np.testing.assert_array_equal(tensor.numpy(), reader.read(name))
        assert tensor.is_contiguous()


def test_tensors_in_memory_are_written_as_the_library_reads_them(tmp_path):
    from safetensors.torch import load_file

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


def test_all_the_types_that_torch_save_knows(tmp_path):
    state = {
        dtype: torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
        for dtype in ("float64", "float32", "float16", "bfloat16", "int64", "int8", "uint8", "bool")
    }
    state["scalar"] = torch.tensor(3.5)
    state["empty"] = torch.empty(0, 4)
    torch.save(state, tmp_path / "source.pt")
    written(tmp_path / "source.pt", tmp_path / "out.pt", {})
    again = torch.load(tmp_path / "out.pt", weights_only=True)
    for name, tensor in state.items():
        assert again[name].dtype == tensor.dtype and torch.equal(again[name], tensor), name
