"""GGUF files: llama.cpp itself continues a prompt as load_model does."""

import json

import pytest

import gacprof
from gacprof.core.errors import CheckpointError
from gacprof.extras.serve.checking import ask_llama_cpp
from gacprof.extras.serve.tokenizer import read_tokenizer

gguf = pytest.importorskip("gguf")


@pytest.fixture
def llama_cpp():
    """Skips where no wheel of xllamacpp can be installed."""
    pytest.importorskip("xllamacpp")


def fields(path):
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


def test_llama_cpp_continues_a_ragged_model_as_we_do(llama_cpp, make_decoder, tmp_path):
    folder = make_decoder(
        widths=(70, 96, 33), heads=((4, 2), (4, 2), (4, 1)), tokenizer="bytes", tied=True
    )
    done = gacprof.export(folder, "gguf", tmp_path / "out", type="f32", check="engine")
    assert done.check.passed and done.check.error < 1e-3
    assert done.check.same == done.check.tokens > 0
    found = fields(tmp_path / "out" / "model-f32.gguf")
    assert found["general.architecture"] == "deci"
    assert list(found["deci.feed_forward_length"]) == [70, 96, 33]
    assert list(found["deci.attention.head_count_kv"]) == [2, 2, 1]


def test_llama_cpp_continues_a_uniform_model_with_biases_and_scaled_rope(
    llama_cpp, make_decoder, tmp_path
):
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    folder = make_decoder(family="qwen2", tokenizer="bytes", rope_scaling=scaling)
    done = gacprof.export(folder, "gguf", tmp_path / "out", type="f32", check="engine")
    assert done.check.passed and done.check.error < 1e-3
    assert fields(tmp_path / "out" / "model-f32.gguf")["general.architecture"] == "llama"


TEXTS = ["the 1234 thin cats' 5th", "naïve — 東京\n\n  x=3;", "in the incantation"]


@pytest.mark.parametrize("tokenizer", ["bytes", "sentencepiece"])
def test_llama_cpp_splits_text_as_the_tokenizer_does(llama_cpp, tokenizer, make_decoder, tmp_path):
    from tokenizers import Tokenizer

    folder = make_decoder(tokenizer=tokenizer)
    gacprof.export(folder, "gguf", tmp_path / "out", type="f32", check="tensors")
    theirs = ask_llama_cpp(tmp_path / "out" / "model-f32.gguf", [5, 6], 1, texts=TEXTS)["ids"]
    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert theirs == [ours.encode(text).ids for text in TEXTS]


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0", "q4_0"])
def test_every_type_is_read_back(kind, make_decoder, tmp_path):
    done = gacprof.export(
        make_decoder(widths=(64, 96)), "gguf", tmp_path / "out", type=kind, check="tensors"
    )
    reader = gguf.GGUFReader(tmp_path / "out" / f"model-{kind}.gguf")
    kinds = {t.name: t.tensor_type.name.lower() for t in reader.tensors}
    assert kinds["blk.0.ffn_down.weight"] == kind and kinds["output_norm.weight"] == "f32"
    assert done.check.tensors == len(kinds)
    assert any("no vocabulary" in note or "no tokenizer" in note for note in done.notes)


def test_a_quantised_file_runs(llama_cpp, make_decoder, tmp_path):
    folder = make_decoder(widths=(64, 96), tokenizer="bytes")
    done = gacprof.export(folder, "gguf", tmp_path / "out", type="q8_0", check="engine")
    assert done.check.passed and done.check.tokens > 0 and done.check.tensors > 0
    assert not done.check.judged and 0 < done.check.error < 1  # another function, near ours


def test_what_it_cannot_hold_is_refused_before_writing(make_decoder, tmp_path):
    cases = (
        (make_decoder("pairs", ranks={"model.layers.1.mlp.up_proj": 5}), "f16", "factor pairs"),
        (make_decoder("odd", widths=(96, 70)), "q8_0", "layers.1.mlp.down_proj has rows of 70"),
        (make_decoder("normed", family="qwen3"), "f16", "norms queries and keys"),
        (make_decoder("gelu", hidden_act="gelu"), "f16", "activation is gelu"),
        (make_decoder("yarn", rope_scaling={"rope_type": "yarn", "factor": 2}), "f16", "yarn"),
        (make_decoder("plain"), "q5_1", "--type q5_1"),
    )
    for folder, kind, message in cases:
        with pytest.raises(CheckpointError, match=message):
            gacprof.export(folder, "gguf", tmp_path / "out", type=kind)
    assert not (tmp_path / "out").exists()


def test_an_unknown_pre_tokenizer_is_refused_and_can_be_named(make_decoder, tmp_path):
    folder = make_decoder(tokenizer="bytes")
    file = folder / "tokenizer.json"
    found = json.loads(file.read_text())
    found["pre_tokenizer"] = {"type": "Whitespace"}
    file.write_text(json.dumps(found))
    with pytest.raises(CheckpointError, match=r"\(Whitespace\).*--tokenizer-pre"):
        gacprof.export(folder, "gguf", tmp_path / "out")
    gacprof.export(folder, "gguf", tmp_path / "out", tokenizer_pre="gpt-2", check="tensors")
    assert fields(tmp_path / "out" / "model-f16.gguf")["tokenizer.ggml.pre"] == "gpt-2"


def test_another_models_tokenizer_is_refused(make_decoder):
    folder = make_decoder(tokenizer="bytes")
    assert read_tokenizer(folder, 288, None).types[-1] == 5  # no token has this id
    with pytest.raises(CheckpointError, match="another model's tokenizer"):
        read_tokenizer(folder, 200, None)


def test_a_tokenizer_that_is_no_bpe_is_refused(make_decoder, tmp_path):
    folder = make_decoder()
    bpe = '{"model": {"type": "BPE", "vocab": {"a": %s}%s}, "pre_tokenizer": %s}'
    broken = (
        *("{", "[]", '{"model": {"type": "Unigram", "vocab": {}}}', bpe % ('"x"', "", "1")),
        bpe % ("0", ', "merges": 5', "1"),
        bpe % ("0", ', "byte_fallback": true', '{"type": "Sequence", "pretokenizers": [5]}'),
        bpe % ("0", "", '{"type": "Split", "pattern": 5, "behavior": "Isolated"}'),
        '{"model": {"type": "BPE", "vocab": {}}, "added_tokens": [5]}',
    )
    for text in broken:
        (folder / "tokenizer.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
            gacprof.export(folder, "gguf", tmp_path / "out")
