"""Bad input is refused in one line before anything is written; an interrupted run goes on."""

import hashlib
import os

import pytest
import torch
from compressing_models import make_model, make_phi3
from safetensors.torch import load_file, save_file

import gacprof
from gacprof.core.errors import CompressionError, GacprofError
from gacprof.extras.compress import activations, decomposing, gradients, sensitivity
from gacprof.extras.compress.state import state_for


def refused(match, *args, **kwargs):
    with pytest.raises(GacprofError, match=match) as caught:
        gacprof.compress(*args, **kwargs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ratio", [0, 1, 15, -0.1, float("nan"), True])
def test_ratios_that_are_none(dense, tmp_path, ratio):
    refused("ratio", dense, tmp_path / "o", method="svd", ratio=ratio)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("method", "ratio", "match"),
    [
        ("svd", 0.999, "the ratio 0.999 cannot be met: 'model.layers.0.self_attn.q_proj'"),
        pytest.param("asvd", 0.9, "ASVD keeps at least 0.4", marks=pytest.mark.slow),
        ("llm-pruner", 0.99, "cannot be met"),
    ],
)
def test_ratios_that_cannot_be_met(dense, ids, tmp_path, method, ratio, match):
    refused(match, dense, tmp_path / "o", method=method, ratio=ratio, calib=ids)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("method", ["svd-llm", "asvd", "palu", "llm-pruner"])
def test_methods_that_need_a_text(dense, tmp_path, method):
    refused("needs a calibration text", dense, tmp_path / "o", method=method, ratio=0.2)


def test_texts_that_are_none(dense, tmp_path):
    common = {"method": "svd-llm", "ratio": 0.2}
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    refused("is empty", dense, tmp_path / "o", calib=empty, **common)
    refused("cannot read", dense, tmp_path / "o", calib=tmp_path / "none", **common)
    empty.write_text("some words")
    refused("needs a tokenizer", dense, tmp_path / "o", calib=empty, **common)
    refused("token 700", dense, tmp_path / "o", calib=torch.full((1, 9), 700), **common)
    refused("ids are", dense, tmp_path / "o", calib=torch.zeros(9), **common)


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
        assert not (tmp_path / method).exists()


def test_pairs_are_refused_where_a_method_needs_the_dense_model(unaligned, ids, tmp_path):
    for method in ("palu", "llm-pruner"):
        match = f"compressed already .*{method} needs the dense model"
        refused(match, unaligned("svd-llm"), tmp_path / "o", method=method, ratio=0.2, calib=ids)


def test_combinations_that_contradict_each_other(dense, tmp_path, fixtures):
    common = {"method": "svd", "ratio": 0.2}
    refused("not both", dense, tmp_path / "o", cliff_map="x", round_to=8, **common)
    refused("needs a map", dense, tmp_path / "o", latency_limit_us=5.0, **common)
    refused("Eq. 4.* give a map", dense, tmp_path / "o", objective="gac", round_to=8, **common)
    refused("unknown method", dense, tmp_path / "o", method="zip", ratio=0.2)
    refused("objective", dense, tmp_path / "o", objective="pad", **common)
    refused("'gacprof plan --objective latency' has it", dense, tmp_path / "o",
            objective="latency", **common)  # fmt: skip
    refused("score", dense, tmp_path / "o", score="luck", **common)
    refused("lies in the model's folder", dense, dense / "o", **common)
    (tmp_path / "there").mkdir()
    refused("exists already", dense, tmp_path / "there", **common)


def test_a_map_that_does_not_hold_the_shapes_names_the_sweep(dense, ids, tmp_path):
    common = {"ratio": 0.3, "calib": ids, "cliff_map": "a100-published", "tokens": [7]}
    sweep = "gacprof sweep --ranks DENSE --range 12:52 --tokens 7 "
    refused(sweep, dense, tmp_path / "o", method="svd", **common)
    refused("--gpu a100", dense, tmp_path / "o", method="svd", **common)
    refused("--for OUT --tokens 7", dense, tmp_path / "o", method="llm-pruner", **common)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("asked", [{"latency_limit_us": "-5%"}, {"dominate": "rounded-8"}])
def test_rules_know_no_time_to_keep_to_and_say_so_before_anything_is_worked_out(
    dense, tmp_path, asked
):
    lines = []
    refused(
        "knows no latency", dense, tmp_path / "o", method="svd", ratio=0.3, gpu="a100",
        tell=lines.append, **asked,
    )  # fmt: skip
    assert not lines


@pytest.mark.parametrize(
    ("method", "asked", "match"),
    [
        ("svd-llm", {"latency_limit_us": "prefill:300=-5%"},
         r"not measured at 300 tokens.*sweep --ranks .* --tokens [\d,]*300' measures all"),
        ("svd-llm", {"tokens": [300]}, "knows no safe size for any .*--tokens 300"),
        ("llm-pruner", {"tokens": [300]}, "not at 300: .*--tokens 300"),
        ("svd-llm", {"latency_limit_us": "prefill:64=dense-95%"}, "no plan is within .* nearest"),
        ("palu", {"latency_limit_us": "prefill:64=dense-95%"}, "no plan is within .* nearest"),
        ("svd", {"latency_limit_us": 0.001}, "no plan is within .* nearest"),
        ("llm-pruner", {"latency_limit_us": 0.001}, "no plan is within .* nearest"),
        ("llm-pruner", {"latency_limit_us": 0.001, "scope": "global"}, "no plan is within"),
    ],
)  # fmt: skip
def test_what_the_map_lacks_or_no_sizes_can_meet_is_refused_before_any_text_is_run(
    dense, ids, own_map, tmp_path, method, asked, match
):
    lines = []
    refused(
        match, dense, tmp_path / "o", method=method, ratio=0.3, calib=ids,
        cliff_map=own_map(method), tell=lines.append, **asked,
    )  # fmt: skip
    assert not lines


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


@pytest.mark.slow
def test_a_score_that_a_head_has_not_is_refused(dense, ids, tmp_path):
    refused(
        "not known of 'lm_head'", dense, tmp_path / "o", method="asvd", ratio=0.2, calib=ids,
        objective="gac", score="fisher", cliff_map="a100-published",
    )  # fmt: skip


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
    dense, ids, tmp_path, monkeypatch, method
):
    common = {"method": method, "ratio": 0.3, "calib": ids}
    gacprof.compress(dense, tmp_path / "whole", **common)
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
    assert files_of(out) == files_of(tmp_path / "whole")
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


@pytest.mark.slow
def test_the_model_is_read_only(dense, ids, tmp_path):
    before = files_of(dense)
    for method in ("svd-llm", "llm-pruner"):
        gacprof.compress(dense, tmp_path / method, method=method, ratio=0.3, calib=ids)
    assert files_of(dense) == before


def test_devices_that_are_not_there_and_ids_that_are_none(dense, ids, tmp_path):
    common = {"method": "svd-llm", "ratio": 0.3}
    for device in ("tpu", "cuda:7"):
        with pytest.raises(GacprofError):
            gacprof.compress(dense, tmp_path / "o", device=device, calib=ids, **common)
    with pytest.raises(CompressionError, match="whole numbers"):
        gacprof.compress(dense, tmp_path / "o", calib=ids + 0.5, **common)
    with pytest.raises(CompressionError, match="has the token -"):
        gacprof.compress(dense, tmp_path / "o", calib=ids - 500, **common)


def test_heads_that_the_engines_ranks_cannot_share_are_refused_before_anything_is_worked_out(
    dense, tmp_path
):
    lines = []
    refused(
        "cannot share", dense, tmp_path / "out", method="llm-pruner", ratio=0.2, preset="vllm,tp=7",
        gpu="h100", score="magnitude", tell=lines.append,
    )  # fmt: skip
    assert not lines
