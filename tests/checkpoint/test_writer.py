"""The writer of checkpoints: the bits of safetensors' own, with little memory."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tool_checkpoints import checkpoint

from gacprof.checkpoint.scan import scan
from gacprof.checkpoint.writer import OutputTensor, read_blocks, write_weights
from gacprof.core.errors import CheckpointError

STATE = {
    "layer.weight": torch.randn(700, 3000),
    "layer.bias": torch.randn(700),
    "half": torch.randn(5, 7).bfloat16(),
    "bytes": torch.arange(13, dtype=torch.uint8),
    "scale": torch.tensor(0.25),
    "empty": torch.zeros(0, 4),
}
"""One tensor of several blocks, one without axes, one without elements."""


def written_anew(folder: Path, out: Path) -> Path:
    """A checkpoint's weights, copied by the writer."""
    inventory = scan(folder)
    out.mkdir()
    tensors = [
        OutputTensor(name, info.dtype, info.shape, name, partial(read_blocks, inventory, name))
        for name, info in inventory.tensors.items()
    ]
    write_weights(out, inventory, tensors)
    return out


def test_a_file_has_the_bits_that_safetensors_writes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    save_file(STATE, source / "model.safetensors", {"format": "pt"})
    out = written_anew(source, tmp_path / "out")
    files = [(folder / "model.safetensors").read_bytes() for folder in (source, out)]
    assert files[0] == files[1]
    assert [path.name for path in out.iterdir()] == ["model.safetensors"]


def test_views_of_a_pickled_storage_are_written_as_they_are_read(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    whole = torch.arange(6000.0).reshape(60, 100)
    views = {"turned.weight": whole.T, "part.weight": whole[10:20, 30:40]}
    torch.save(views, source / "model.pt")
    written = load_file(written_anew(source, tmp_path / "out") / "model.safetensors")
    assert written.keys() == views.keys()
    for name, view in views.items():
        assert torch.equal(written[name], view)


def test_elements_that_do_not_fit_the_header_are_refused(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "source", {"a.weight": (4, 4)})
    short = OutputTensor("a.weight", "float32", (4, 4), "a.weight", lambda: [torch.zeros(3, 4)])
    with pytest.raises(CheckpointError):
        write_weights(tmp_path, scan(source), [short])


MEMORY = """
import resource, sys
from gacprof.realigning.realign import realign
import safetensors.torch
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
realign(sys.argv[1], "pad8", sys.argv[2])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_the_memory_of_realigning_does_not_grow_with_the_shard(tmp_path: Path) -> None:
    """Gate and up grow along the first axis, down along the second; the table stays."""
    mlp = "model.layers.0.mlp"
    shapes = {f"{mlp}.{part}_proj.weight": (8001, 8192) for part in ("gate", "up")}
    shapes[f"{mlp}.down_proj.weight"] = (8192, 8001)
    shapes["model.embed_tokens.weight"] = (8000, 8192)
    source = checkpoint(tmp_path / "source", shapes)
    assert (source / "model.safetensors").stat().st_size > 5e8
    command = [sys.executable, "-c", MEMORY, str(source), str(tmp_path / "out")]
    megabytes = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert scan(tmp_path / "out").shape(f"{mlp}.down_proj.weight") == (8192, 8008)
    (tmp_path / "out" / "model.safetensors").unlink()
    assert megabytes < 64
