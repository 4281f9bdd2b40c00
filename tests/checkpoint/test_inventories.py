"""Inventories of the tools' checkpoints and of transformers' model types are the frozen ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers
from golden_answers import inventory_answer, is_made_here, read_golden, type_answer
from tiny_models import tiny_model
from tool_checkpoints import plain_inventory, same_fields

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import inventory_of, scan

FROZEN, TYPES = read_golden("inventories"), read_golden("inventories_types")
FEW = (
    *("afmoe", "aria_text", "bart", "bloom", "dbrx", "deepseek_v2", "falcon", "gemma3", "gpt2"),
    *("gpt_oss", "granitemoeshared", "jetmoe", "lfm2", "llama4_text", "mixtral", "nemotron_h"),
    *("opt", "phi3", "qwen2_moe", "recurrent_gemma", "zamba2"),
)
"""One of each way in which configs say widths and files hold experts."""


@pytest.mark.parametrize("key", [key for key in FROZEN if is_made_here(key)])
def test_inventories_are_the_frozen_ones(key: str, tmp_path: Path) -> None:
    answer = inventory_answer(key, tmp_path)
    assert answer == same_fields(FROZEN[key], answer)


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
    answer = type_answer(kind, tmp_path)
    assert answer == same_fields(TYPES[kind], answer)


def test_a_model_in_memory_is_described_as_its_file() -> None:
    inventory = inventory_of(tiny_model(intermediate_size=83))
    answer = plain_inventory(inventory) | {"container": "safetensors", "side_files": []}
    frozen = same_fields(FROZEN["made/tiny/width-83"], answer) | {"side_files": []}
    # its tensors come in the order of its modules
    assert {dim["name"]: dim for dim in answer["dims"]} == {d["name"]: d for d in frozen["dims"]}
    assert answer["fingerprint"] == frozen["fingerprint"]
    assert isinstance(inventory, Inventory) and inventory_of(inventory) is inventory


def test_a_head_is_tied_where_a_config_is_silent_and_its_class_has_one(tmp_path: Path) -> None:
    """GPT-2's published configs don't say tie_word_embeddings."""
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=107, n_positions=16)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    stated = json.loads((tmp_path / "config.json").read_text())
    for tied, count in ((None, 1), (True, 1), (False, 0)):
        stated["tie_word_embeddings"] = tied
        if tied is None:
            del stated["tie_word_embeddings"]
        (tmp_path / "config.json").write_text(json.dumps(stated))
        assert head_lengths(tmp_path) == [107] * count
    stated |= {"tie_word_embeddings": True, "architectures": ["GPT2Model"]}  # an encoder of texts
    (tmp_path / "config.json").write_text(json.dumps(stated))
    assert head_lengths(tmp_path) == []


def head_lengths(folder: Path) -> list[int]:
    """The lengths N of the heads of a checkpoint."""
    return [module.gemms[0].N for module in scan(folder).modules if module.role == "head"]
