"""``compress`` from a dense folder to a compressed one."""

import json
import shutil
from itertools import product

import pytest
import torch
from decoders import VOCABULARY, write_decoder
from formula_source import FormulaSource
from safetensors.torch import load_file, save_file

from gacprof.checkpoint.load import load_model
from gacprof.checkpoint.scan import scan
from gacprof.compress.compress import compress
from gacprof.compress.layered import LayerResults
from gacprof.compress.options import Option, choose
from gacprof.core.errors import CheckpointError, ConfigError, PlanError

METHODS = ["svd", "asvd", "svd-llm", "kfac-svd"]
FILE = "model.safetensors"
OBJECTIVES = ["loss", "energy", "uniform"]


@torch.no_grad()
def logits(model, ids):
    return model(input_ids=ids).logits


def multiplied_out(dense, out):
    """The dense model with the product of each pair of factors in its weight's place."""
    model = load_model(dense, dtype="float32")
    pairs = load_model(out, dtype="float32")
    weights = dict(model.named_parameters())
    for module in scan(out).modules:
        if module.kind == "factored":
            pair = pairs.get_submodule(module.name)
            zero = torch.zeros(1, module.in_features)
            columns = pair(torch.eye(module.in_features)) - pair(zero)
            weights[f"{module.name}.weight"].data = columns.T.contiguous()
    return model


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("method", METHODS)
def test_the_output_is_a_checkpoint_within_the_ratio(method, objective, dense, ids, tmp_path):
    out = tmp_path / "out"
    result = compress(dense, out, method=method, objective=objective, ratio=0.3, text=ids)
    source, written = scan(dense), scan(out)
    assert written.layout == "svd-llm"
    assert result.parameters == (source.parameters, written.parameters)
    ranks = {dim.name.partition(":")[0]: dim.size for dim in written.dims if dim.kind == "rank"}
    assert ranks == {name: rank for name, rank in result.sizes.items() if rank is not None}
    targets = [m for m in source.modules if m.name in result.sizes]
    total = sum(m.in_features * m.out_features for m in targets)
    assert len(targets) == 21 and written.parameters <= source.parameters - int(0.3 * total)
    assert result.bound <= result.loss + 1e-12
    assert json.loads((out / "gacprof.json").read_text())["sizes"] == result.sizes
    model = load_model(out)
    torch.testing.assert_close(
        logits(model, ids), logits(multiplied_out(dense, out), ids), rtol=1e-3, atol=1e-3
    )


def test_a_model_with_biases_keeps_them(ids, tmp_path):
    dense = write_decoder(tmp_path / "dense", family="qwen2", sharded=True)
    compress(dense, tmp_path / "out", objective="uniform", ratio=0.2, text=ids)
    assert any(name.endswith("q_u_proj.bias") for name in scan(tmp_path / "out").tensors)
    model = load_model(tmp_path / "out")
    reference = multiplied_out(dense, tmp_path / "out")
    torch.testing.assert_close(logits(model, ids), logits(reference, ids), rtol=1e-3, atol=1e-3)


def test_a_smaller_loss_is_a_better_model(dense, ids, tmp_path):
    """On the calibration text itself, against one ratio for all with the same factors."""
    reference = logits(load_model(dense), ids)
    distance = {}
    for objective in ("loss", "uniform"):
        out = tmp_path / objective
        compress(dense, out, objective=objective, ratio=0.15, text=ids)
        predicted = logits(load_model(out), ids).log_softmax(-1)
        distance[objective] = torch.nn.functional.kl_div(
            predicted, reference.softmax(-1), reduction="batchmean"
        )
    assert distance["loss"] < distance["uniform"]


def test_every_size_is_one_that_the_source_calls_safe(dense, ids, tmp_path):
    source = FormulaSource(lambda m, n, k: m * n * k * (10 if n % 8 or k % 8 else 1))
    for method, objective in (("svd-llm", "loss"), ("svd-llm", "uniform"), ("llm-pruner", "loss")):
        out = tmp_path / f"{method}-{objective}"
        result = compress(
            dense, out, method=method, objective=objective, ratio=0.2, text=ids, source=source
        )
        sizes = [size for size in result.sizes.values() if size is not None]
        assert sizes and all(size % 8 == 0 for size in sizes)
        assert result.provenance == source.provenance


def test_uniform_ranks_are_those_of_the_tools_rounded_down(dense, ids, tmp_path):
    result = compress(dense, tmp_path / "out", objective="uniform", ratio=0.3, text=ids, multiple=4)
    assert result.sizes["model.layers.0.self_attn.q_proj"] == int(64 * 64 * 0.7) // 128 // 4 * 4
    assert result.sizes["model.layers.0.mlp.up_proj"] == int(64 * 96 * 0.7) // 160 // 4 * 4


def test_a_killed_run_goes_on_with_the_layers_that_are_missing(dense, ids, tmp_path, monkeypatch):
    compress(dense, tmp_path / "whole", text=ids)
    save = LayerResults.save
    saved = []

    def save_once(self, layer, tensors):
        if saved:
            raise KeyboardInterrupt
        saved.append(layer)
        save(self, layer, tensors)

    def save_more(self, layer, tensors):
        saved.append(layer)
        save(self, layer, tensors)

    monkeypatch.setattr(LayerResults, "save", save_once)
    with pytest.raises(KeyboardInterrupt):
        compress(dense, tmp_path / "out", text=ids)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(LayerResults, "save", save_more)
    compress(dense, tmp_path / "out", text=ids)
    assert saved == [2, 1, 0]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "out")]
    assert weights[0] == weights[1]
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "out"}


def test_finished_layers_serve_other_ratios_and_objectives(dense, ids, tmp_path):
    shared = {"text": ids, "work": tmp_path / "work"}
    compress(dense, tmp_path / "first", ratio=0.1, **shared)
    (layers,) = (tmp_path / "work").iterdir()
    before = {path: path.stat().st_mtime_ns for path in layers.iterdir()}
    compress(dense, tmp_path / "second", ratio=0.4, **shared)
    compress(dense, tmp_path / "third", objective="uniform", **shared)
    assert {path: path.stat().st_mtime_ns for path in layers.iterdir()} == before
    assert len(before) == 3


@pytest.mark.parametrize("method", ["svd-llm", "llm-pruner"])
def test_layers_of_other_weights_are_made_anew(method, dense, ids, tmp_path):
    """Training on leaves every name and shape, and so the fingerprint, as it was."""
    model = shutil.copytree(dense, tmp_path / "model")
    options = {"method": method, "text": ids, "work": tmp_path / "work"}
    compress(model, tmp_path / "before", **options)
    trained = load_file(model / "model.safetensors")
    for name, weight in trained.items():
        if "mlp" in name:
            weight.copy_(weight.flip(0))
    save_file(trained, model / "model.safetensors", {"format": "pt"})
    compress(model, tmp_path / "after", **options)
    compress(model, tmp_path / "fresh", **options | {"work": tmp_path / "empty"})
    after, fresh = (load_file(tmp_path / name / FILE) for name in ("after", "fresh"))
    assert after.keys() == fresh.keys()
    assert all(torch.equal(after[name], fresh[name]) for name in fresh)


def test_the_same_tokens_in_other_windows_are_another_request(dense, ids, tmp_path):
    compress(dense, tmp_path / "first", text=ids, work=tmp_path / "work")
    compress(dense, tmp_path / "second", text=ids.reshape(3, -1), work=tmp_path / "work")
    compress(dense, tmp_path / "fresh", text=ids.reshape(3, -1))
    assert (tmp_path / "second" / FILE).read_bytes() == (tmp_path / "fresh" / FILE).read_bytes()


@pytest.mark.parametrize(
    "words",
    [
        {"method": "kfac_svd"},
        {"objective": "bogus"},
        {"ratio": -1.0},
        {"ratio": 1.0},
        {"ratio": float("nan")},
        {"multiple": 0},
        {"windows": -1},
        {"length": 0},
        {"length": 99_999_999},
    ],
)
def test_what_nobody_means_is_refused_at_once(words, dense, ids, tmp_path):
    with pytest.raises(ConfigError):
        compress(dense, tmp_path / "out", text=ids, **words)
    assert not list(tmp_path.iterdir())


def test_the_choice_is_the_best_of_all():
    generator = torch.Generator().manual_seed(5)
    options = {}
    for name in "abcd":
        losses = torch.rand(4, generator=generator).sort(descending=True).values.tolist()
        options[name] = [Option(i + 1, loss, 10 * (i + 1)) for i, loss in enumerate(losses)]
    options["a"].append(Option(None, 0.0, 45))
    for room in range(40, 170, 10):
        fitting = [
            sum(option.loss for option in row)
            for row in product(*options.values())
            if sum(option.parameters for option in row) <= room
        ]
        _, loss, bound = choose(options, room)
        assert bound <= min(fitting) + 1e-9
        assert min(fitting) - 1e-9 <= loss <= min(fitting) + 0.35


def test_refusals_name_what_is_wrong(dense, ids, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="text"):
        compress(dense, out)
    with pytest.raises(PlanError, match="ratio"):
        compress(dense, out, text=ids, ratio=0.99)
    with pytest.raises(CheckpointError, match="lies in"):
        compress(dense, dense / "out", text=ids)
    compress(dense, out, text=ids)
    with pytest.raises(FileExistsError):
        compress(dense, out, text=ids)
    with pytest.raises(CheckpointError, match="compressed already"):
        compress(out, tmp_path / "again", text=ids)


def test_a_weight_that_is_not_finite_is_refused_and_nothing_is_left(dense, ids, tmp_path):
    broken = shutil.copytree(dense, tmp_path / "broken")
    tensors = load_file(broken / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = float("nan")
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"up_proj.weight"):
        compress(broken, tmp_path / "out", text=ids)
    assert not (tmp_path / "out").exists()


def test_a_text_is_cut_into_windows_by_the_tokenizer(dense, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from gacprof.compress.statistics import calibration_ids

    words = {f"w{i}": i for i in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = shutil.copytree(dense, tmp_path / "model")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"w{i % VOCABULARY}" for i in range(50)))
    ids = calibration_ids(text, scan(folder), windows=3, length=20)
    assert ids.tolist() == [list(range(20)), list(range(20, 40))]
    with pytest.raises(ConfigError, match="50 tokens"):
        calibration_ids(text, scan(folder), windows=3, length=64)
    compress(folder, tmp_path / "out", text=text, length=20)
    assert (tmp_path / "out" / "tokenizer.json").exists()
