"""Inventories of the tools' checkpoints and of transformers' model types are the frozen ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from decoders import DECODERS, write_decoder
from model_types import tiny_of
from tiny_models import tiny_model, write_llama, write_tiny
from tool_checkpoints import checkpoint, plain_inventory, same_fields
from tool_folders import FIXTURES, restored

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import inventory_of, scan

GOLDENS = Path(__file__).parents[1] / "goldens"


def answers(name: str) -> dict[str, Any]:
    with gzip.open(GOLDENS / f"{name}.json.gz") as file:
        frozen: dict[str, Any] = json.load(file)
    return frozen


FROZEN, TYPES = answers("inventories"), answers("inventories_types")
TINY: dict[str, dict[str, Any]] = {
    "width-83": {"intermediate_size": 83},
    "head_dim-12": {"head_dim": 12},
    "bias": {"attention_bias": True, "mlp_bias": True},
}
FEW = (
    *("afmoe", "aria_text", "bart", "bloom", "dbrx", "deepseek_v2", "falcon", "gemma3", "gpt2"),
    *("gpt_oss", "granitemoeshared", "jetmoe", "lfm2", "llama4_text", "mixtral", "nemotron_h"),
    *("opt", "phi3", "qwen2_moe", "recurrent_gemma", "zamba2"),
)
"""One of each way in which configs say widths and files hold experts."""


def made(name: str, into: Path) -> Path:
    """The folder of a checkpoint by its name among the answers."""
    kind, _, rest = name.removeprefix("made/").partition("/")
    if kind == "decoder":
        return write_decoder(into / "model", **DECODERS[rest])  # type: ignore[arg-type]
    if kind == "planted":
        shapes = {tensor: tuple(shape) for tensor, shape in FROZEN[name]["made_of"]}
        return checkpoint(into / "model", shapes, FROZEN[name]["config"])
    if kind == "tiny" and rest in TINY:
        return write_llama(into / "model", **TINY[rest])
    if kind == "tiny":
        return write_tiny(into / "model", tie_word_embeddings=rest == "tied")
    return FIXTURES / name if name.startswith("asvd") else restored(name, into)


@pytest.mark.parametrize("name", [k for k in FROZEN if not k.startswith(("shared", "made/tools"))])
def test_inventories_are_the_frozen_ones(name: str, tmp_path: Path) -> None:
    name, *patterns = name.split(", factors by patterns ")
    factors = tuple(patterns[0].split(", ")) if patterns else None
    answer = plain_inventory(scan(made(name, tmp_path), factors=factors))  # type: ignore[arg-type]
    if name.startswith(("made/tiny", "made/decoder/mistral")):
        answer.pop("side_files")  # versions of transformers save others; an index is no more one
    frozen = FROZEN[", factors by patterns ".join([name, *patterns])]
    assert answer == same_fields(frozen, answer)


@pytest.mark.parametrize(
    "kind",
    [
        *FEW,
        *(
            pytest.param(k, marks=pytest.mark.slow)
            for k in TYPES
            if k not in (*FEW, "transformers")
        ),
    ],
)
def test_every_type_of_model_has_its_frozen_inventory(kind: str, tmp_path: Path) -> None:
    if transformers.__version__ != TYPES["transformers"]:
        pytest.skip("frozen with another transformers, whose files may differ")
    tiny_of(kind).save_pretrained(tmp_path)
    answer = plain_inventory(scan(tmp_path))
    assert answer == same_fields(TYPES[kind], answer)


def test_a_model_in_memory_is_described_as_its_file() -> None:
    inventory = inventory_of(tiny_model(intermediate_size=83))
    answer = plain_inventory(inventory) | {"container": "safetensors", "side_files": []}
    frozen = same_fields(FROZEN["made/tiny/width-83"], answer) | {"side_files": []}
    # its tensors come in the order of its modules
    assert {dim["name"]: dim for dim in answer["dims"]} == {d["name"]: d for d in frozen["dims"]}
    assert answer["fingerprint"] == frozen["fingerprint"]
    assert isinstance(inventory, Inventory) and inventory_of(inventory) is inventory
