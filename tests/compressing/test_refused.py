"""Bad input is refused in one line before anything is written; an interrupted run goes on."""

import errno
import hashlib
import os

import pytest
import torch
from compressing_models import make_model, make_phi3
from safetensors.torch import load_file, save_file

import gacprof
from gacprof.core.errors import CompressionError, GacprofError
from gacprof.extras.compress import activations, decomposing, gradients, sensitivity
from gacprof.extras.compress.state import State, state_for


def refused(match, *args, **kwargs):
    with pytest.raises(GacprofError, match=match) as caught:
        gacprof.compress(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


IDS = torch.randint(0, 128, (12, 32), generator=torch.Generator().manual_seed(3))
SWEPT, LIMIT = {"cliff_map": "a100-published", "tokens": [7]}, "prefill:64=dense-95%"
REFUSED = [
    *(("svd", {"ratio": ratio}, "ratio") for ratio in (0, 1, 15, -0.1, float("nan"), True)),
    *(("svd", {"ratio": ratio}, "the ratio .* is not between")
      for ratio in (10**400, -(10**400), 10**5000)),
    *(("svd", {name: None}, f"{name} is None: it must be a number")
      for name in ("ratio", "windows", "length")),
    ("svd", {"options": 5}, "options is 5: it must be values by name"),
    *((method, {"round_to": 1000}, "no size is a multiple of 1000: the largest is")
      for method in ("svd", "svd-llm", "asvd", "palu", "llm-pruner")),
    ("svd-llm", {"cliff_map": None, "dominate": "rounded-1000"}, "is a multiple of 1000: the lar"),
    ("svd-llm", {"round_to": 32, "objective": "loss", "ratio": 0.95},
     r"no multiples of 32 fit the 10,598 parameters .*; the nearest budget is 129,024"),
    ("svd-llm", {"ratio": 0.999}, "the ratio 0.999 cannot be met: 'model.layers.0.self_attn.q_p"),
    ("asvd", {"ratio": 0.7}, "cannot be met: ASVD keeps at least 0.4"),
    ("llm-pruner", {"ratio": 0.99, "scope": "global"}, "cannot be met"),
    ("drop-layers", {"ratio": 0.9}, "cannot be met: of 3 layers one must stay"),
    ("asvd", {"score": "fisher", "objective": "gac", "cliff_map": "a100-published"},
     "the score fisher is not known of 'lm_head'"),
    ("svd", {"ratio": 0.999}, "the ratio 0.999 cannot be met: 'model.layers.0.self_attn.q_proj'"),
    ("llm-pruner", {"ratio": 0.99}, "cannot be met"),
    *((method, {"calib": None}, "needs a calibration text")
      for method in ("svd-llm", "asvd", "palu", "llm-pruner")),
    ("svd-llm", {"calib": "empty.txt"}, "is empty"),
    ("svd-llm", {"calib": "none"}, "cannot read"),
    ("svd-llm", {"calib": "words.txt"}, "needs a tokenizer"),
    ("svd-llm", {"calib": torch.full((1, 9), 700)}, "token 700"),
    *(("svd-llm", {"calib": calib}, "calib is .*: it must be a text file or token ids .windows, to")
      for calib in ("", [], 5, True, ["a"], [[1, 2], [3]], [[1]], object(), torch.zeros(9))),
    ("svd-llm", {"calib": IDS + 0.5}, "whole numbers"),
    ("svd-llm", {"calib": IDS - 500}, "has the token -"),
    ("svd-llm", {"device": "tpu"}, "tpu"),
    ("svd-llm", {"device": "cuda:7"}, "no CUDA"),
    ("svd", {"cliff_map": "x", "round_to": 8}, "not both"),
    ("svd", {"latency_limit_us": 5.0}, "needs a map"),
    ("svd", {"objective": "gac", "round_to": 8}, "Eq. 4.* give a map"),
    ("svd-llm", {"objective": "loss"}, "loss chooses among sizes: give --map, --gpu or --round"),
    ("svd-llm", {"score": "magnitude"}, "svd-llm alone asks no score"),
    ("svd", {"score": "magnitude", "round_to": 8}, "svd alone asks no score"),
    *(("svd", {"round_to": 8, name: value}, f"--{name} is about sizes of a source: give --map")
      for name, value in {"window": 0.5, "tokens": [64], "dtype": "float16"}.items()),
    ("zip", {}, "unknown method"),
    ("svd", {"objective": "pad"}, "objective"),
    ("svd", {"objective": "latency"}, "'gacprof plan --objective latency' has it"),
    ("svd", {"score": "luck"}, "score"),
    ("svd", SWEPT, "gacprof sweep --ranks DENSE --range 12:52 --tokens 7 .*--gpu a100"),
    ("llm-pruner", SWEPT, "--for OUT --tokens 7"),
    ("svd", {"gpu": "a100", "latency_limit_us": "-5%"}, "knows no latency"),
    ("svd", {"gpu": "a100", "dominate": "rounded-8"}, "knows no latency"),
    ("llm-pruner", {"gpu": "h100", "preset": "vllm,tp=7", "score": "magnitude"}, "cannot share"),
    ("svd-llm", {"cliff_map": None, "latency_limit_us": "prefill:300=-5%"},
     r"not measured at 300 tokens.*sweep --ranks .* --tokens [\d,]*300' measures all"),
    ("svd-llm", {"cliff_map": None, "tokens": [300]}, "knows no safe size for any .*--tokens 300"),
    ("llm-pruner", {"cliff_map": None, "tokens": [300]}, "not at 300: .*--tokens 300"),
    ("svd-llm", {"cliff_map": None, "latency_limit_us": LIMIT}, "no plan is within .* nearest"),
    ("palu", {"cliff_map": None, "latency_limit_us": LIMIT}, "no plan is within .* nearest"),
    ("svd", {"cliff_map": None, "latency_limit_us": 0.001}, "no plan is within .* nearest"),
    ("llm-pruner", {"cliff_map": None, "latency_limit_us": 0.001}, "no plan is within .* nearest"),
    ("llm-pruner", {"cliff_map": None, "latency_limit_us": 0.001, "scope": "global"},
     "no plan is within"),
]  # fmt: skip
"""A method, what is asked of it (a map of None: its own), and what is said."""


@pytest.mark.parametrize(("method", "asked", "match"), REFUSED)
def test_what_cannot_be_done_is_refused_before_anything_is_worked_out(
    dense, own_map, tmp_path, monkeypatch, method, asked, match
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "words.txt").write_text("some words")
    if asked.get("cliff_map", "") is None:
        asked = asked | {"cliff_map": own_map(method)}
    lines = []
    given = {"ratio": 0.3, "calib": IDS, "method": method, "tell": lines.append} | asked
    refused(match, dense, tmp_path / "o", **given)
    assert not lines and {p.name for p in tmp_path.iterdir()} == {"empty.txt", "words.txt"}


@pytest.mark.parametrize("given", [None, "", 5])
def test_a_model_or_an_output_that_is_none_is_named(dense, tmp_path, given):
    refused(f"model is {given!r}: it must be a folder", given, tmp_path, method="svd", ratio=0.2)
    refused(f"out is {given!r}: it must be the path", dense, given, method="svd", ratio=0.2)


def test_an_output_that_cannot_be_written_is_refused_first(dense, ids, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    lines, asked = [], {"method": "svd-llm", "ratio": 0.2, "calib": ids, "work": tmp_path / "w"}
    refused("cannot be written to", dense, tmp_path / "o", tell=lines.append, **asked)
    assert not lines


def test_an_output_in_the_models_folder_or_that_is_there_is_refused(dense, tmp_path):
    refused("lies in the model's folder", dense, dense / "o", method="svd", ratio=0.2)
    refused("exists already", dense, tmp_path, method="svd", ratio=0.2)


def test_a_text_shorter_than_a_window(tmp_path, dense):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    (tmp_path / "t").mkdir()
    words.save(str(tmp_path / "t" / "tokenizer.json"))
    (tmp_path / "t" / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    )
    text = tmp_path / "text"
    text.write_text("a b " * 50)
    common = {"method": "svd-llm", "ratio": 0.2, "calib": text, "tokenizer": tmp_path / "t"}
    refused("has 100 tokens, fewer than one window of 512", dense, tmp_path / "o", **common)
    result = gacprof.compress(dense, tmp_path / "o", length=32, windows=8, **common)
    assert '"windows": 3' in (tmp_path / "o" / "gacprof.json").read_text()
    assert result.removed >= 0.2


def test_a_work_folder_in_use_says_what_to_do(dense, tmp_path):
    first = state_for(tmp_path / "o", tmp_path / "w", "k")
    with (
        first,
        pytest.raises(CompressionError, match=r"in use .* wait .*--work"),
        state_for(tmp_path / "p", tmp_path / "w", "k"),
    ):
        pass


def test_nan_in_a_weight_is_named(dense, ids, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    tensors = load_file(dense / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = float("nan")
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    (broken / "config.json").write_bytes((dense / "config.json").read_bytes())
    for method in ("svd", "svd-llm", "llm-pruner"):
        match = "'model.layers.1.mlp.up_proj.weight' holds NaN"
        refused(match, broken, tmp_path / method, method=method, ratio=0.2, calib=ids)
    assert [each.name for each in tmp_path.iterdir()] == ["broken"]


def test_pairs_are_refused_where_a_method_needs_the_dense_model(unaligned, ids, tmp_path):
    for method in ("palu", "llm-pruner"):
        match = f"compressed already .*{method} needs the dense model"
        refused(match, unaligned("svd-llm"), tmp_path / "o", method=method, ratio=0.2, calib=ids)


@pytest.mark.slow
def test_what_a_layout_cannot_name_stays_and_is_named(tmp_path, ids):
    make_phi3(tmp_path / "phi")
    result = gacprof.compress(
        tmp_path / "phi", tmp_path / "o", method="svd-llm", ratio=0.2, calib=ids
    )
    assert "has no name for it" in result.left["model.layers.0.mlp.gate_up_proj"]
    assert any("left uncompressed" in note for note in result.notes)
    every = gacprof.compress(tmp_path / "phi", tmp_path / "a", method="asvd", ratio=0.2, calib=ids)
    assert "model.layers.0.mlp.gate_up_proj" not in every.left


@pytest.mark.parametrize(
    ("owner", "name", "method"),
    [(activations, "run_layer", "svd-llm"), (torch.autograd, "grad", "kfac-svd")],
)
def test_out_of_memory_is_said_in_words(dense, ids, tmp_path, monkeypatch, owner, name, method):
    def full(*args, **kwargs):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried …")

    monkeypatch.setattr(owner, name, full)
    match = "cpu is out of memory: --objective gscalar .* the same command goes on"
    refused(match, dense, tmp_path / "o", method=method, ratio=0.2, calib=ids)


# --- interruption


def test_a_full_disk_names_the_folder_that_the_same_command_goes_on_from(
    dense, ids, tmp_path, monkeypatch
):
    def full(self, name, tensors):
        raise OSError(errno.ENOSPC, "No space left on device", str(self.path(name)))

    monkeypatch.setattr(State, "save", full)
    match = r"factors-0.safetensors: No space left .* goes on from \S*\.o\.compress-svd"
    refused(match, dense, tmp_path / "o", method="svd", ratio=0.2)


def files_of(folder):
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest()
        for p in folder.iterdir()
        if p.name not in ("README.md", "gacprof.json")  # these name the folder
    }


STOPS = {
    "svd-llm": [(activations, "_run_batch", 2), (decomposing, "_decompose", 9)],
    "asvd": [
        (activations, "_run_batch", 2),
        (sensitivity, "_branch", 2),
        (sensitivity, "_losses", 1),
    ],
    "palu": [(gradients, "_loss", 1), (gradients, "_layer_back", 2)],
    "kfac-svd": [(gradients, "_layer_back", 2), (decomposing, "_decompose", 8)],
    "llm-pruner": [(gradients, "_layer_back", 3), (gradients, "_back", 2)],
}
"""Where a run is stopped, one try after the other: what is called, and at which call."""


@pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=pytest.mark.slow if m == "asvd" else ()) for m in STOPS],
)
def test_an_interrupted_run_goes_on_and_gives_identical_files(
    dense, ids, unaligned, tmp_path, monkeypatch, method
):
    common = {"method": method, "ratio": 0.3, "calib": ids}
    out = tmp_path / "out"
    for owner, name, count in STOPS[method]:
        original, calls = getattr(owner, name), []

        def stopping(*args, original=original, calls=calls, count=count, **kwargs):
            calls.append(1)
            if len(calls) == count:
                raise KeyboardInterrupt
            return original(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, stopping)
            with pytest.raises(KeyboardInterrupt) as caught:
                gacprof.compress(dense, out, **common)
        assert "goes on" in caught.value.__notes__[0]
        assert not out.exists()
    gacprof.compress(dense, out, **common)
    assert files_of(out) == files_of(unaligned(method))
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_finished_layer_is_not_worked_out_again(dense, ids, tmp_path, monkeypatch):
    common = {"method": "svd-llm", "calib": ids, "work": tmp_path / "work"}
    gacprof.compress(dense, tmp_path / "a", ratio=0.3, **common)

    def never(*args, **kwargs):
        raise AssertionError("decomposed again")

    monkeypatch.setattr(decomposing, "_decompose", never)
    gacprof.compress(dense, tmp_path / "b", ratio=0.2, **common)
    gacprof.compress(dense, tmp_path / "c", ratio=0.3, **common)
    assert files_of(tmp_path / "c") == files_of(tmp_path / "a") != files_of(tmp_path / "b")


@pytest.mark.slow
def test_another_model_in_the_same_folder_begins_anew(tmp_path, ids):
    common = {"method": "svd-llm", "ratio": 0.3, "calib": ids, "work": tmp_path / "work"}
    model = make_model(tmp_path / "model")
    gacprof.compress(model, tmp_path / "a", **common)
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"] *= 2
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    os.utime(model / "model.safetensors", ns=(1, 1))
    gacprof.compress(model, tmp_path / "b", **common)
    assert files_of(tmp_path / "a") != files_of(tmp_path / "b")
