"""Tensor data: mapped one at a time, bit for bit, and never written back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from checkpoint_making import PEAK_KIB, told_by, write_safetensors

from gacprof.checkpoint import open_tensors, scan
from gacprof.core.errors import CheckpointError

STATE = {
    "half": torch.randn(3, 5).half(),
    "bf": torch.randn(3, 5).bfloat16(),
    "f8": torch.randn(8).to(torch.float8_e4m3fn),
    "int": torch.arange(4),
    "flag": torch.tensor([True, False, True]),
    "none": torch.empty(0, 3),
    "one": torch.tensor(2.5),
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    safetensors.torch.save_file(STATE, tmp_path / "model.safetensors")
    return tmp_path


def test_tensors_read_as_the_library_reads_them(saved: Path) -> None:
    reader = open_tensors(saved)
    for name, expected in safetensors.torch.load_file(saved / "model.safetensors").items():
        found = reader.torch(name)
        assert found.dtype == expected.dtype and found.shape == expected.shape
        assert bytes(reader.raw(name)) == expected.reshape(-1).view(torch.uint8).numpy().tobytes()


def test_bfloat16_is_carried_as_bits(saved: Path) -> None:
    reader = open_tensors(saved)
    carried = reader.read("bf")
    assert carried.dtype == np.uint16 and reader.info("bf").dtype == "bfloat16"
    assert np.array_equal(carried, STATE["bf"].view(torch.uint16).numpy())


def test_writing_to_a_mapped_tensor_leaves_the_file(saved: Path) -> None:
    before = (saved / "model.safetensors").read_bytes()
    reader = open_tensors(saved)
    reader.read("half")[:] = 0
    reader.torch("bf").zero_()
    assert (saved / "model.safetensors").read_bytes() == before
    assert torch.equal(reader.torch("bf"), STATE["bf"])


def test_an_unknown_tensor_is_named(saved: Path) -> None:
    with pytest.raises(CheckpointError, match="no tensor 'absent'"):
        open_tensors(saved).read("absent")


def test_a_file_that_shrank_since_the_scan_is_refused(saved: Path) -> None:
    inventory = scan(saved)
    (saved / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="half"):
        open_tensors(inventory).read("half")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measures memory through /proc")
def test_reading_a_stream_of_tensors_keeps_none_of_them(tmp_path: Path) -> None:
    """Twelve tensors of 64 MiB, each touched in full: the process holds one at a time."""
    shapes = {f"w{i:02}": ("uint8", (64 << 20,)) for i in range(12)}
    write_safetensors(tmp_path / "model.safetensors", shapes)
    code = (
        f"import sys{PEAK_KIB}"
        "from gacprof.checkpoint import open_tensors\n"
        "reader = open_tensors(sys.argv[1])\n"
        "base = peak_kib()\n"
        "total = sum(int(reader.read(name)[::4096].sum()) for name in reader)\n"
        "print(peak_kib() - base, total)\n"
    )
    grown_kib, total = map(int, told_by(code, tmp_path).split())
    assert total == 0 and grown_kib < 2 * (64 << 10)
