"""vLLM's own DeciLM: widths layer by layer, in attributes or in multiples of 256."""

import copy
import json

import numpy as np
import pytest

import gacprof
from gacprof.core.errors import CheckpointError

transformers = pytest.importorskip("transformers")


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def test_every_layer_says_its_own_width_and_groups(make_decoder, tmp_path):
    folder = make_decoder(widths=(70, 33), heads=((4, 2), (4, 1)))
    done = gacprof.export(folder, "vllm-native", tmp_path / "out")
    config = config_of(tmp_path / "out")
    assert config["architectures"] == ["DeciLMForCausalLM"]
    assert [b["ffn"]["intermediate_size"] for b in config["block_configs"]] == [70, 33]
    assert [b["attention"]["n_heads_in_group"] for b in config["block_configs"]] == [2, 4]
    assert not any("ffn_mult" in b["ffn"] for b in config["block_configs"])
    assert done.check.passed and done.check.tensors == len(gacprof.scan(folder).tensors)
    assert any("vLLM is not run from here" in note for note in done.notes)


def test_blocks_are_attributes_and_dicts(make_decoder, tmp_path, monkeypatch):
    """vLLM reads attributes; transformers copies and serialises."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    gacprof.export(make_decoder(widths=(70, 33)), "vllm-native", tmp_path / "deci")
    auto = transformers.AutoConfig
    config = auto.from_pretrained(tmp_path / "deci", trust_remote_code=True)
    blocks = copy.deepcopy(config).block_configs
    assert [block.ffn.intermediate_size for block in blocks] == [70, 33]
    assert not hasattr(blocks[0].ffn, "ffn_mult") and not blocks[0].attention.no_op
    config.save_pretrained(tmp_path / "saved")
    assert (
        config_of(tmp_path / "saved")["block_configs"]
        == config_of(tmp_path / "deci")["block_configs"]
    )
    assert config.rope_parameters["rope_theta"] == 10000.0


def test_multiples_of_256_are_padded_with_zeros(make_decoder, tmp_path):
    folder = make_decoder(widths=(70, 300))
    done = gacprof.export(folder, "vllm-native", tmp_path / "out", blocks_of=256)
    out = gacprof.scan(tmp_path / "out")
    shapes = [out.tensors[f"model.layers.{i}.mlp.down_proj.weight"].shape[1] for i in (0, 1)]
    assert shapes == [256, 512] and done.check.passed
    ffn = config_of(tmp_path / "out")["block_configs"][0]["ffn"]
    assert ffn == {"no_op": False, "replace_with_linear": False, "ffn_mult": 6.0}
    reader = gacprof.checkpoint.open_tensors(out)
    assert not np.asarray(reader.read("model.layers.0.mlp.gate_proj.weight"))[70:].any()


def test_what_it_cannot_hold_is_refused_before_writing(make_decoder, tmp_path):
    factored = make_decoder("factored", ranks={"model.layers.0.self_attn.q_proj": 5})
    ragged = make_decoder("ragged", heads=((4, 2), (2, 1)))
    normed = make_decoder("normed", family="qwen3")
    window = make_decoder("window", family="mistral", sliding_window=64)
    for folder, message in (
        (factored, r"1 layers are factor pairs .*--fuse.* parameters, \+"),
        (ragged, "different counts of query heads"),
        (normed, "norms queries and keys"),
        (window, "window of 64"),
    ):
        with pytest.raises(CheckpointError, match=message):
            gacprof.export(folder, "vllm-native", tmp_path / "out")
    with pytest.raises(CheckpointError, match="layers differ in their heads"):
        gacprof.export(ragged, "vllm", tmp_path / "out")
    head = make_decoder("head", ranks={"lm_head": 9})
    with pytest.raises(CheckpointError, match="lm_head is a factor pair"):
        gacprof.export(head, "vllm", tmp_path / "out")
    with pytest.raises(CheckpointError, match="--blocks-of 64"):
        gacprof.export(make_decoder("plain"), "vllm-native", tmp_path / "out", blocks_of=64)
    assert not (tmp_path / "out").exists()
