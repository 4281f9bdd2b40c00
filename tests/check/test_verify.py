"""Two checkpoints of one function pass, those of two do not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from decoders import write_decoder
from safetensors.torch import load_file, save_file
from tool_folders import FIXTURES

from gacprof.check.verify import verify
from gacprof.checkpoint.scan import scan
from gacprof.core.errors import CheckpointError
from gacprof.realigning.realign import realign

ASVD = FIXTURES / "asvd_mha_r1"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("word", ["pad8", "pad16"])
def test_padding_is_the_same_function(word: str, dtype: str, tmp_path: Path) -> None:
    result = verify(ASVD, realign(ASVD, word, tmp_path / "out"), dtype=dtype)
    assert result.ok and result.max_error <= result.tolerance
    assert result.merged == 0 and result.positions == 64


def test_merging_may_round_each_product_once(tmp_path: Path) -> None:
    result = verify(ASVD, realign(ASVD, "fuse", tmp_path / "out"))
    factored = [m for m in scan(ASVD).modules if m.kind == "factored"]
    assert result.ok and result.merged == len(factored)
    assert result.tolerance > verify(ASVD, scan(ASVD)).tolerance


def test_a_cut_or_a_changed_weight_does_not_pass(tmp_path: Path) -> None:
    rank = next(dim for dim in scan(ASVD).dims if dim.kind == "rank")
    cut = verify(ASVD, realign(ASVD, {rank.name: rank.size // 2}, tmp_path / "cut"))
    assert not cut.ok and cut.mean_kl > 0
    source = write_decoder(tmp_path / "a")
    other = write_decoder(tmp_path / "b")
    state = load_file(other / "model.safetensors")
    state["model.norm.weight"] *= 1.001
    save_file(state, other / "model.safetensors")
    result = verify(source, other)
    assert not result.ok
    assert result.max_error == pytest.approx(1e-3, rel=0.05)
    assert result.rms_error == pytest.approx(1e-3, rel=0.05)
    assert result.same_argmax == 1.0


def test_models_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "a")
    with pytest.raises(CheckpointError):
        verify(source, ASVD)  # another vocabulary
    broken = write_decoder(tmp_path / "b")
    state = load_file(broken / "model.safetensors")
    state["model.norm.weight"] = torch.full_like(state["model.norm.weight"], torch.nan)
    save_file(state, broken / "model.safetensors")
    with pytest.raises(CheckpointError):
        verify(source, broken)
