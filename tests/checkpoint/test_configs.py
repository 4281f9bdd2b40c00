"""Configs that change with their dims, and the numbers that say widths."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from decoders import DECODERS, write_decoder
from model_types import EXPERT, SHARED, WIDTH, tiny_of
from tool_checkpoints import checkpoint
from tool_folders import FIXTURES, restored

from gacprof.checkpoint.config import mirrored_files
from gacprof.checkpoint.layouts.configs import width_keys
from gacprof.checkpoint.scan import inventory_of, scan
from gacprof.core.errors import CheckpointError


def test_asvds_ranks_are_mirrored_and_unknown_keys_kept() -> None:
    inventory = scan(FIXTURES / "asvd_mha_r1")
    rank = inventory.dims[0]
    module = rank.name.removesuffix(":rank")
    files = mirrored_files(inventory, {rank.name: 80})
    assert files.keys() == {"config.json"}
    ranks = files["config.json"].pop("truncation_ranks")
    assert ranks == {**inventory.config["truncation_ranks"], module: 80}
    assert files["config.json"].items() <= inventory.config.items()


def test_without_factors_a_config_is_the_plain_models() -> None:
    inventory = scan(FIXTURES / "asvd_mha_r1")
    sizes = {dim.name: None for dim in inventory.dims if dim.kind == "rank"}
    config = mirrored_files(inventory, sizes)["config.json"]
    assert not {"truncation_ranks", "auto_map"} & config.keys()
    assert (config["model_type"], config["architectures"]) == ("llama", ["LlamaForCausalLM"])


def test_palus_groups_are_mirrored(tmp_path: Path) -> None:
    inventory = scan(restored("palu_mha_gs4_block1", tmp_path))
    rank = next(dim for dim in inventory.dims if dim.name.endswith(":rank.1"))
    module = rank.name.removesuffix(":rank.1")
    ranks = mirrored_files(inventory, {rank.name: 64})["config.json"]["head_wise_ranks"]
    assert ranks[module] == [inventory.config["head_wise_ranks"][module][0], 64]


def test_slicegpts_json_has_the_stretches_sizes(tmp_path: Path) -> None:
    inventory = scan(restored("slicegpt_mha_s0.22_r1", tmp_path))
    (file,) = inventory.side
    sizes = {"embedding:hidden": 200, "model.layers.0.attn:hidden": 208}
    new = mirrored_files(inventory, sizes)[file]
    assert new["embedding_dimensions"] == {"0": 200}
    assert new["attention_input_dimensions"]["0"] == 200
    assert new["attention_output_dimensions"]["0"] == new["mlp_input_dimensions"]["0"] == 208
    assert new["mlp_output_dimensions"] == inventory.side[file]["mlp_output_dimensions"]


def test_one_width_for_all_layers_is_written_and_different_ones_are_not(tmp_path: Path) -> None:
    inventory = scan(write_decoder(tmp_path / "model"))
    sizes = {dim.name: 104 for dim in inventory.dims}
    assert mirrored_files(inventory, sizes)["config.json"]["intermediate_size"] == 104
    uneven = {inventory.dims[0].name: 104}
    assert mirrored_files(inventory, uneven)["config.json"]["intermediate_size"] == 96


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("llama", {"intermediate_size": WIDTH}),
        ("deepseek_v2", {"intermediate_size": WIDTH, "moe_intermediate_size": EXPERT}),
        ("granitemoeshared", {"intermediate_size": WIDTH, "shared_intermediate_size": SHARED}),
        ("dbrx", {"ffn_config.ffn_hidden_size": WIDTH}),
        ("recurrent_gemma", {"intermediate_size": 2 * WIDTH}),
        ("gpt2", {"n_inner": WIDTH}),
        ("bloom", {}),
    ],
)
def test_configs_say_widths(kind: str, expected: dict[str, int]) -> None:
    inventory = inventory_of(tiny_of(kind))
    keys = width_keys(inventory.config, inventory.dims)
    assert {".".join(key.path): key.value for key in keys} == expected
    assert all(key.value_at({}) == key.value for key in keys)
    for key in keys:
        padded = key.padded(8)
        assert all(size % 8 == 0 for size in padded.values()) and key.value_at(padded)


def test_a_width_that_no_config_says_is_refused() -> None:
    """Bloom's follows from its hidden size."""
    dims = inventory_of(tiny_of("bloom")).dims
    assert dims and all(dim.padding == "refused" and dim.why for dim in dims)


@pytest.mark.parametrize("name", DECODERS)
def test_a_config_that_is_true_stays_as_it_is(name: str, tmp_path: Path) -> None:
    inventory = scan(write_decoder(tmp_path / "model", **DECODERS[name]))  # type: ignore[arg-type]
    assert mirrored_files(inventory, {})["config.json"] == inventory.config


@pytest.mark.parametrize("text", ["[]", "{", '{"a": NaN'])
def test_a_broken_config_is_refused(text: str, tmp_path: Path) -> None:
    checkpoint(tmp_path, {"a.weight": (1, 1)})
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match="mend"):
        scan(tmp_path)


def test_what_is_no_checkpoint_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        scan(tmp_path / "not" / "there")
    with pytest.raises(CheckpointError, match="no weights"):
        scan(tmp_path)
    for name in ("a.pt", "b.pt"):
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match="name one"):
        scan(tmp_path)


def test_a_model_on_the_hub_is_read_from_its_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    info = SimpleNamespace(dtype="BF16", shape=[20, 8], data_offsets=(0, 320))
    header = SimpleNamespace(tensors={"model.layers.0.mlp.up_proj.weight": info})
    metadata = SimpleNamespace(files_metadata={"model.safetensors": header})
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama"}))
    requests: list[Any] = []

    def get_metadata(name: str, revision: str | None) -> Any:
        requests.append((name, revision))
        return metadata

    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", get_metadata)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *a, **k: str(config))
    inventory = scan("org/name@main")
    assert requests == [("org/name", "main")] and inventory.config["model_type"] == "llama"
    assert [(m.out_features, m.in_features) for m in inventory.modules] == [(20, 8)]
