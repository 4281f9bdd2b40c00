"""Exporting: what is checked and how, before and after writing."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gacprof
from gacprof.core.errors import CheckpointError
from gacprof.extras.serve import checking
from gacprof.extras.serve.checking import Reference, _judged


def test_an_engine_that_is_missing_is_said_before_writing(make_decoder, tmp_path, monkeypatch):
    monkeypatch.setattr(checking, "installed", lambda package: None)
    folder = make_decoder()
    with pytest.raises(CheckpointError, match=r"transformers is not installed .*models"):
        gacprof.export(folder, "transformers", tmp_path / "out", check="engine")
    assert not (tmp_path / "out").exists()
    done = gacprof.export(folder, "transformers", tmp_path / "out")  # read back instead
    assert done.check.tensors and any("not installed" in note for note in done.notes)


def test_what_was_damaged_on_the_way_is_noticed(make_decoder, tmp_path, monkeypatch):
    from gacprof.extras.serve.folder import FolderExport

    write = FolderExport.write

    def interrupted(self, out, progress):
        done = write(self, out, progress)
        file = out / "model.safetensors"
        data = bytearray(file.read_bytes())
        data[-3] ^= 1
        file.write_bytes(data)
        return done

    monkeypatch.setattr(FolderExport, "write", interrupted)
    with pytest.raises(CheckpointError, match="other values than written"):
        gacprof.export(make_decoder(), "transformers", tmp_path / "out", check="tensors")


def test_tokens_that_part_count_unless_ours_nearly_tie():
    steps = np.zeros((32, 4), np.float32)
    steps[:, 1] = 1.0
    steps[5, 2] = 1.0 - 1e-7
    ours = Reference((0,), (1,) * 32, steps, steps)

    def judge(tokens, slack):
        return _judged(ours, {"tokens": tokens, "notes": ()}, 1e-7, 1e-4, "engine", slack)

    assert judge([1] * 32, 0).passed
    near = judge([1] * 5 + [2] + [0] * 26, 1e-6)
    assert near.passed and near.near_tie and near.same == 5
    far = judge([1] * 8 + [3] * 24, 1e-6)
    assert not far.passed and far.same == 8
    assert not judge([], 0).passed


def test_a_tied_model_stays_tied_and_a_head_of_its_own_stays_its_own(make_decoder, tmp_path):
    tied = make_decoder("tied", tied=True)
    gacprof.export(tied, "transformers", tmp_path / "a", check="tensors")
    assert json.loads((tmp_path / "a" / "config.json").read_text())["tie_word_embeddings"]
    own = make_decoder("own")
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    gacprof.export(own, "transformers", tmp_path / "b", check="tensors")
    assert not json.loads((tmp_path / "b" / "config.json").read_text())["tie_word_embeddings"]


def test_a_tensor_without_a_place_is_refused(make_decoder, tmp_path):
    folder = make_decoder()
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.adapter.scale"] = np.ones(3, np.float32)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no place for model\.layers\.0\.adapter\.scale"):
        gacprof.export(folder, "transformers", tmp_path / "out")


@pytest.mark.parametrize("to", ["transformers", "gguf"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.embed_tokens.weight", (288, 64, 1)),
        ("model.embed_tokens.weight", ()),
        ("model.norm.weight", ()),
        ("model.layers.0.input_layernorm.weight", (0,)),
    ],
)
def test_tensors_of_another_shape_than_a_decoders_are_refused(
    make_decoder, tmp_path, to, name, shape
):
    folder = make_decoder()
    state = load_file(folder / "model.safetensors")
    save_file(state | {name: np.ones(shape, np.float32)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="shape"):
        gacprof.export(folder, to, tmp_path / "out")
    assert not (tmp_path / "out").exists()
