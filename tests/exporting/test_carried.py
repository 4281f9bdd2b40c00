"""What a foreign checkpoint may say to those who load the export: nothing that names code."""

import json

import pytest

import gacprof
from gacprof.core.errors import CheckpointError

FOREIGN = {
    "attn_implementation": "org/kernel",
    "_attn_implementation": "org/kernel",
    "kernel_config": {"RMSNorm": "org/kernel:Norm"},
    "_name_or_path": "org/model",
    "use_kernels": True,
    "custom_generate": "org/code",
}
TO = ("transformers", "vllm", "vllm-native", "uniform")


def read(folder, name):
    return json.loads((folder / name).read_text())


@pytest.mark.parametrize("to", TO)
def test_no_config_names_foreign_code(to, make_decoder, tmp_path):
    plain = make_decoder("plain", tokenizer="bytes", initializer_range=0.03)
    foreign = make_decoder("foreign", tokenizer="bytes", initializer_range=0.03, **FOREIGN)
    gacprof.export(plain, to, tmp_path / "a", check="tensors")
    gacprof.export(foreign, to, tmp_path / "b", check="tensors")
    found = read(tmp_path / "b", "config.json")
    assert {k: v for k, v in found.items() if k != "use_kernels"} == read(
        tmp_path / "a", "config.json"
    )
    assert found["initializer_range"] == 0.03


@pytest.mark.parametrize("to", TO)
def test_no_tokenizer_names_foreign_code(to, make_decoder, tmp_path):
    folder = make_decoder(tokenizer="bytes")
    (folder / "tokenizer_theirs.py").write_text("raise SystemExit\n")
    settings = {
        "auto_map": {"AutoTokenizer": ["tokenizer_theirs.Theirs", None]},
        "tokenizer_class": "../Theirs",
        "tokenizer_file": "/etc/passwd",
        "model_max_length": "x",
        "eos_token": "<|endoftext|>",
        "chat_template": "{{ messages }}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    generation = {"custom_generate": "org/code", "temperature": 0.7, "eos_token_id": [1, 2]}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    gacprof.export(folder, to, tmp_path / "out", check="tensors")
    assert read(tmp_path / "out", "tokenizer_config.json") == {
        "eos_token": "<|endoftext|>",
        "chat_template": "{{ messages }}",
    }
    assert read(tmp_path / "out", "generation_config.json") == {
        "temperature": 0.7,
        "eos_token_id": [1, 2],
    }


@pytest.mark.parametrize("to", [*TO, "gguf"])
def test_what_links_lead_to_is_not_copied(to, make_decoder, tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text('{"secret": 1}')
    folder = make_decoder()
    for name in ("tokenizer.json", "tokenizer_config.json", "LICENSE", "generation_config.json"):
        (folder / name).symlink_to(secret)
    done = gacprof.export(folder, to, tmp_path / "out", check="tensors")
    for file in (tmp_path / "out").iterdir():
        assert b"secret" not in file.read_bytes(), file
    assert any("no tokenizer was found" in note for note in done.notes)


@pytest.mark.parametrize(
    "said",
    [
        {"num_hidden_layers": 1_000_000_000},
        {"max_position_embeddings": "x"},
        {"rope_theta": "x"},
        {"rope_scaling": {"rope_type": "org/kernel"}},
        {"rope_scaling": {"rope_type": "llama3", "factor": "x"}},
        {"rms_norm_eps": [1]},
    ],
    ids=str,
)
@pytest.mark.parametrize("to", ["transformers", "gguf"])
def test_settings_that_no_decoder_takes_are_refused_in_a_line(said, to, make_decoder, tmp_path):
    with pytest.raises(CheckpointError, match=next(iter(said))):
        gacprof.export(make_decoder(**said), to, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_settings_that_are_no_json_are_refused_and_leave_nothing(make_decoder, tmp_path):
    folder = make_decoder(tokenizer="bytes")
    for text in ("{", "[]", '{"a": NaN}'):
        (folder / "tokenizer_config.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"tokenizer_config\.json"):
            gacprof.export(folder, "vllm", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
