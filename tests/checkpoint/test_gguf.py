"""GGUF files: dims from the header, the model through transformers, a plain folder written."""

import json

import numpy as np
import pytest

import gacprof
from gacprof.checkpoint import open_tensors, scan
from gacprof.checkpoint.gguf_headers import gguf_in
from gacprof.core.errors import CheckpointError

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
pytest.importorskip("transformers")

from tiny_models import CHARACTERS, tiny_model  # noqa: E402

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight",
    "model.norm.weight": "output_norm.weight", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attn_output",
    **{f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"},
    **{f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")},
}  # fmt: skip


def _name(tensor):
    if tensor in NAMES:
        return NAMES[tensor]
    _, _, layer, rest = tensor.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def _permuted(weight, heads):
    """Rows of q and k as llama.cpp's converter orders them: each head's halves interleaved."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path, kind="F32", **more):
    """The tiny model as llama.cpp's converter would write it, projections in ``kind``."""
    model = tiny_model(**more)
    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    for said, value in {
        "block_count": config.num_hidden_layers, "embedding_length": config.hidden_size,
        "context_length": config.max_position_embeddings, "vocab_size": config.vocab_size,
        "feed_forward_length": config.intermediate_size, "rope_freq_base": 10000.0,
        "head_count": config.num_attention_heads, "head_count_kv": config.num_key_value_heads,
        "rope_dimension_count": config.head_dim, "layer_norm_rms_eps": config.rms_norm_eps,
        "tokenizer_model": "gpt2", "bos_token_id": 0, "eos_token_id": 0,
    }.items():  # fmt: skip
        getattr(writer, f"add_{said}")(value)
    # Byte-level BPE writes a space and a line's end as other characters. One merge has to be there.
    written = [{" ": "Ġ", "\n": "Ċ", "!": "QQ"}.get(c, c) for c in CHARACTERS]
    writer.add_token_list(["<s>", *written])
    writer.add_token_types([3, *[1] * len(CHARACTERS)])
    writer.add_token_merges(["Q Q"])
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if name.endswith("q_proj.weight"):
            values = _permuted(values, config.num_attention_heads)
        if name.endswith("k_proj.weight"):
            values = _permuted(values, config.num_key_value_heads)
        quantised = kind != "F32" and "proj" in name
        if quantised:
            stored = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(_name(name), gguf.quantize(values, stored), raw_dtype=stored)
        else:
            writer.add_tensor(_name(name), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def quantised(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", "Q8_0")


def test_the_header_tells_dims_and_types(plain, quantised):
    found = scan(plain)
    assert (found.layout, found.container) == ("plain", "gguf")
    held = tiny_model()
    shapes = {name: tuple(tensor.shape) for name, tensor in held.state_dict().items()}
    assert {name: info.shape for name, info in found.tensors.items()} == shapes
    assert found.parameters == sum(p.numel() for p in held.parameters())
    assert {a.head_dim for a in found.attentions} == {16} and len(found.attentions) == 2
    assert not found.notes
    noted = " ".join(scan(quantised).notes)
    assert "14 quantised tensors (14 as Q8_0)" in noted and "dequantised" in noted
    assert scan(quantised.parent).fingerprint == found.fingerprint  # a folder that holds one


def test_the_model_computes_what_was_written(plain):
    ids = torch.arange(40)[None] % (len(CHARACTERS) + 1)
    loaded, written = gacprof.load_model(plain), tiny_model()
    assert next(loaded.parameters()).dtype == torch.float32
    assert torch.allclose(loaded(ids).logits, written(ids).logits, atol=1e-5)
    assert gacprof.load_model(plain, "bfloat16").lm_head.weight.dtype == torch.bfloat16


def test_quantised_blocks_are_dequantised(quantised):
    loaded, written = gacprof.load_model(quantised), tiny_model()
    a, b = loaded.model.layers[1].mlp.up_proj.weight, written.model.layers[1].mlp.up_proj.weight
    assert 0 < float((a - b).abs().max()) <= float(b.abs().max()) / 127
    assert torch.equal(loaded.lm_head.weight, written.lm_head.weight)


@pytest.mark.parametrize("tied", [False, True])
def test_it_is_written_as_a_plain_folder(tmp_path, tied):
    source = write_gguf(tmp_path / "tiny.gguf", "Q8_0", tie_word_embeddings=tied)
    before = source.read_bytes()
    done = gacprof.import_gguf(source, tmp_path / "out", dtype="float32")
    assert done.tokenizer and done.dtype == "float32" and "Q8_0" in done.notes[0]
    found = scan(tmp_path / "out")
    assert (found.layout, found.container) == ("plain", "safetensors")
    assert found.parameters == done.parameters and "quantization_config" not in found.config
    ids = torch.arange(30)[None]
    a, b = gacprof.load_model(source), gacprof.load_model(tmp_path / "out")
    assert torch.equal(a(ids).logits, b(ids).logits)
    record = json.loads((tmp_path / "out" / "gacprof.json").read_text())
    assert record["schema"] == "gacprof.imported/1" and record["dtype"] == "float32"
    assert source.read_bytes() == before
    with pytest.raises(CheckpointError, match="exists already"):
        gacprof.import_gguf(source, tmp_path / "out")


def test_weights_are_not_rewritten_in_place(plain, tmp_path):
    with pytest.raises(CheckpointError, match="gacprof import-gguf"):
        open_tensors(plain)
    with pytest.raises(CheckpointError, match="gacprof import-gguf"):
        gacprof.realign(plain, "optimal", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_broken_files_are_refused_in_one_line(plain, tmp_path):
    data = plain.read_bytes()
    for name, content in {
        "short.gguf": data[:200],
        "cut.gguf": data[: len(data) // 2],
        "magic.gguf": b"GGUF" + b"\xff" * 60,
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=name) as raised:
            gacprof.load_model(tmp_path / name)
        assert "\n" not in str(raised.value)
    with pytest.raises(CheckpointError, match=r"no \*\.gguf file"):
        gacprof.import_gguf(tmp_path / "nowhere", tmp_path / "out")
    assert gguf_in(tmp_path) is None  # several files: one has to be named


def test_without_the_package_it_says_what_to_install(plain, tmp_path, monkeypatch):
    copy = tmp_path / "copy.gguf"  # what was read before is remembered
    copy.write_bytes(plain.read_bytes())
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(CheckpointError, match=r"pip install 'gacprof\[gguf\]'"):
        scan(copy)
