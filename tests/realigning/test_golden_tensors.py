"""Every way to realign every tool's checkpoint gives the frozen tensors, configs and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from golden_answers import digests, made, read_golden, realigned_answer

from gacprof.checkpoint.scan import scan
from gacprof.core.errors import GacprofError
from gacprof.realigning.realign import realign

ANSWERS = read_golden("realigned")
CHECKPOINTS = sorted(name for name in ANSWERS if not name.startswith("shared/"))
CUTS = "three quarters, down to multiples of 8"


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a checkpoint by its name among the answers; each is made once."""
    folders: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in folders:
            folders[name] = made(name, tmp_path_factory.mktemp("source"))
        return folders[name]

    return make


@pytest.mark.parametrize("way", ["pad8", "pad16", "uniform", "fuse"])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_words(name: str, way: str, folder_of: Any, tmp_path: Path) -> None:
    answer = ANSWERS[name][way]
    out = tmp_path / "out"
    is_aligned = answer.get("fingerprint") == scan(folder_of(name)).fingerprint
    if "error" in answer or (is_aligned and way.startswith("pad")):  # nothing to pad is refused
        with pytest.raises(GacprofError):
            realign(folder_of(name), way, out)
        assert not out.exists()
        return
    assert realign(folder_of(name), way, out) == out
    realigned = realigned_answer(out)
    for tensor, digest in realigned["tensors"].items():
        inexact = name == "asvd_mha_r1" and tensor not in scan(folder_of(name)).tensors
        count = 2 if inexact else 3  # another order of summing may round a product otherwise
        assert digest[:count] == answer["tensors"][tensor][:count], tensor
    assert realigned["tensors"].keys() == answer["tensors"].keys()
    for key in ("fingerprint", "config", "files"):
        assert realigned[key] == answer[key]


@pytest.mark.parametrize("way", ["sizes + 5", CUTS])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_sizes_by_name(name: str, way: str, folder_of: Any, tmp_path: Path) -> None:
    """Bytes of an SVD's cut are a machine's own: only their shapes are compared."""
    answer = ANSWERS[name][way]
    sizes = {dim: after for dim, (_, after, *_) in answer["sizes"].items()}
    out = realign(folder_of(name), sizes, tmp_path / "out")
    methods = json.loads((out / "gacprof.json").read_text())["resized"]
    assert {dim: row[2] for dim, row in answer["sizes"].items()} == {
        dim: method for dim, (_, _, method) in methods.items()
    }
    by_svd = {dim for dim, row in answer["sizes"].items() if row[2] == "svd"}
    places = [p.tensor for d in scan(folder_of(name)).dims if d.name in by_svd for p in d.places]
    for tensor, digest in digests(scan(out)).items():
        count = 2 if tensor in places else 3
        assert digest[:count] == answer["tensors"][tensor][:count], tensor
