"""What each published method does by itself, and how it names and stores it."""

import json

import pytest
import torch
from compressing_models import logits_of
from schemas import check

import gacprof
from gacprof.checkpoint import open_tensors, scan
from gacprof.cli.compressing import print_compressed
from gacprof.core.errors import CompressionError
from gacprof.extras.compress import run, sensitivity
from gacprof.extras.compress.methods.asvd import least_sensitive
from gacprof.extras.compress.methods.method import TargetLayer, uniform_rank


def target(name, out=256, into=256, groups=1):
    return TargetLayer(name, f"{name}.weight", None, out, into, "float16", 0, "q", groups)


# --- structure, against what the tools' own code wrote


def pattern(names):
    """Names without layer numbers: {"self_attn.q_proj.ALinear.weight", …}."""
    return {name.split(".", 3)[-1] for name in names if name.startswith("model.layers.")}


@pytest.mark.parametrize(
    ("method", "fixture"),
    [
        ("asvd", "asvd_mha_r1"),
        ("svd-llm", "svdllm_mha_0.6.headers"),
        ("palu", "palu_mha_gs4_block1.headers"),
    ],
)
@pytest.mark.slow
def test_tensors_are_named_as_the_original_tools_name_them(
    unaligned, fixtures, tmp_path, method, fixture
):
    manifest = json.loads((fixtures / "checkpoints" / fixture / "manifest.json").read_text())
    theirs = pattern(manifest["state_dict"])
    ours = pattern(scan(unaligned(method)).tensors)
    buffers = {name for name in theirs if "rotary" in name or "bias" in name}
    groups = {name for name in theirs if ".U.1." in name}  # as many as the model has heads
    dense_or_not = {n for n in ours ^ theirs if method == "asvd"}  # the search decides which
    assert ours - theirs - dense_or_not == set()
    assert theirs - ours - buffers - groups - dense_or_not == set()


@pytest.mark.parametrize(
    ("ratio", "shape", "rank"),
    [
        (0.2, (4096, 4096), 1638),
        (0.2, (14336, 4096), 2548),
        (0.4, (256, 256), 76),
        (0.4, (688, 256), 111),
        (0.6, (4096, 4096), 819),
        (0.1, (1024, 4096), 737),
    ],
)
def test_uniform_ranks_are_those_that_the_tools_choose(ratio, shape, rank):
    assert uniform_rank(target("q", *shape), ratio) == rank


# --- ASVD's search


def test_the_least_sensitive_weights_are_cut_most():
    targets = [target("a"), target("b")]
    losses = {("a", 0.5): 9.0, ("a", 0.9): 8.0, ("b", 0.5): 2.0, ("b", 0.9): 1.0}
    assert least_sensitive(targets, 0.2, losses) == {"b": 0.5}
    assert least_sensitive(targets, 0.28, losses) == {"b": 0.5, "a": 0.9}
    assert least_sensitive(targets, 0.04, losses) == {"b": 0.9}


def test_a_ratio_below_what_asvd_searches_is_refused():
    with pytest.raises(CompressionError, match=r"cannot be met: ASVD keeps at least 0\.4"):
        least_sensitive([target("a")], 0.7, {("a", 0.4): 1.0})


def test_dense_weights_of_asvd_are_null_as_the_schema_says(dense, ids, tmp_path, monkeypatch):
    def search(model, work, ids, targets, shares, pair):
        cuts = {(t.name, s): 9.0 * (".0." in t.name) - s for t in targets for s in shares}
        return {**cuts, sensitivity.WHOLE: 0.0}

    monkeypatch.setattr(sensitivity, "search", search)
    asked = {"method": "asvd", "ratio": 0.3, "calib": ids, "round_to": 8}
    done = gacprof.compress(dense, tmp_path / "out", **asked)
    assert done.requested["model.layers.0.mlp.up_proj:rank"] is None
    check({"schema": "gacprof.compress-result/1", **done.as_dict()})
    check(json.loads((tmp_path / "out" / "gacprof.json").read_text()))


@pytest.mark.slow
def test_sensitivity_is_the_loss_with_that_weight_alone_cut(dense, ids, tmp_path):
    work = tmp_path / "work"
    gacprof.compress(dense, tmp_path / "out", method="asvd", ratio=0.2, calib=ids, work=work)
    (folder,) = work.iterdir()
    losses = {
        (n, s): loss for n, s, loss in json.loads((folder / "sensitivities.json").read_text())
    }
    assert len(losses) == (3 * 7 + 1) * 6 + 1  # and the model whole
    from safetensors.torch import load_file

    for name, layer in (("model.layers.1.mlp.up_proj", "00001"), ("lm_head", "head")):
        (file,) = folder.glob(f"factors-{layer.lstrip('0')}.safetensors")
        held = load_file(file)
        model = gacprof.load_model(dense)
        module = model.get_submodule(name)
        out, into = module.weight.shape
        rank = uniform_rank(target(name, out, into), 0.5)
        module.weight.copy_(held[f"{name}/0/u"][:, :rank] @ held[f"{name}/0/v"][:rank])
        with torch.no_grad():
            logits = model(ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        assert losses[name, 0.5] == pytest.approx(float(loss), rel=2e-3)


# --- PaLU


def test_palu_at_full_rank_is_the_dense_model(dense, ids, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "_cache", lambda *models: None)  # which refuses it
    for size in (1, 4):
        out = tmp_path / str(size)
        result = gacprof.compress(
            dense, out, method="palu", ratio=1e-9, calib=ids, options={"group_size": size},
            round_to=16,
        )  # fmt: skip
        assert set(result.sizes.values()) == {16 * min(size, 2)}
        error = (logits_of(out, ids[:2]) - logits_of(dense, ids[:2])).abs().max()
        assert error < 1e-3


def test_palu_says_what_became_of_the_cache_and_of_the_parameters(dense, ids, tmp_path, capsys):
    asked = {"method": "palu", "calib": ids}
    grown = gacprof.compress(dense, tmp_path / "o", ratio=0.1, **asked)
    ranks = sum(grown.sizes.values())
    assert grown.cache == (3 * 2 * 32, ranks) and ranks <= 0.9 * 192
    assert grown.parameters_after > grown.parameters_before
    assert grown.as_dict()["cache_entries"] == {"before": 192, "after": ranks}
    print_compressed(grown)
    said, change = capsys.readouterr().out, f"192 → {ranks}, {100 * ranks / 192 - 100:+.1f} %"
    parameters = f"{grown.parameters_before:,} → {grown.parameters_after:,}"
    both = f"parameters {parameters}; cache entries a token {change}"
    assert f"palu: {both} (10.0 % were asked for)" in said
    assert f"more parameters than the model ({both})" in said
    assert f"| cache entries a token | {change} |" in (tmp_path / "o" / "README.md").read_text()
    with pytest.raises(CompressionError, match=r"192 → 192 entries a token, 237,216 → 243,360 par"):
        gacprof.compress(dense, tmp_path / "p", ratio=0.01, round_to=32, **asked)
    assert not (tmp_path / "p").exists()


def test_every_group_of_heads_is_factored_by_itself(dense, ids, tmp_path):
    work = tmp_path / "work"
    gacprof.compress(
        dense, tmp_path / "o", method="palu", ratio=0.4, calib=ids, options={"group_size": 1},
        work=work,
    )  # fmt: skip
    reader, original = open_tensors(tmp_path / "o"), open_tensors(dense)
    name = "model.layers.1.self_attn.k_proj"
    ranks = scan(tmp_path / "o").config["head_wise_ranks"][name]
    inner = reader.torch(f"{name}.VT.weight")
    weight = original.torch(f"{name}.weight")
    start = 0
    for i, rank in enumerate(ranks):
        part = reader.torch(f"{name}.U.{i}.weight") @ inner[start : start + rank]
        own, other = weight[i * 16 : (i + 1) * 16], weight[(1 - i) * 16 : (2 - i) * 16]
        assert torch.linalg.norm(part - own) < torch.linalg.norm(own)
        assert torch.linalg.norm(part - other) > torch.linalg.norm(other)
        start += rank


def test_palus_ratio_counts_latent_entries(unaligned):
    config = scan(unaligned("palu")).config
    assert config["architectures"] == ["PaluLlamaForCausalLM"]
    ranks = config["head_wise_ranks"]
    total = sum(sum(groups) for groups in ranks.values())
    assert 0.7 * 6 * 32 - 6 <= total <= 0.7 * 6 * 32


# --- all


def test_svd_llm_loses_less_of_the_output_than_plain_svd(unaligned, dense, ids):
    reference = logits_of(dense, ids)
    errors = (
        torch.linalg.norm(logits_of(unaligned(m), ids) - reference) for m in ("svd-llm", "svd")
    )
    whitened, plain = errors
    assert whitened < plain
