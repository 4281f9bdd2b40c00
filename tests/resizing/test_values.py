"""Ranks raised with the original weights at hand: true information in place of zeros."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gacprof.checkpoint import open_tensors, scan
from gacprof.core.errors import CheckpointError
from gacprof.core.factors import Stored, complete
from gacprof.resizing import realign

Q = "model.layers.{}.self_attn.q_proj".format


@pytest.fixture
def base(tmp_path):
    """Dense q_proj of two layers, 24×24, for ``make_factored``."""
    folder = tmp_path / "base"
    folder.mkdir()
    rng = np.random.default_rng(1)
    source = load_file(tmp_path / "source" / "model.safetensors")
    tensors = {"model.norm.weight": np.ones(24, np.float32)}
    for layer in range(2):
        product = source[f"{Q(layer)}.ALinear.weight"] @ source[f"{Q(layer)}.BLinear.weight"]
        noise = rng.standard_normal((24, 24)).astype(np.float32)
        tensors[f"{Q(layer)}.weight"] = product + noise
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "llama", "hidden_size": 24, "num_attention_heads": 4}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def source(make_factored):
    return make_factored([13, 11])


def product(folder, module):
    reader = open_tensors(folder)
    u, v = (reader.read(f"{module}.{part}.weight") for part in ("ALinear", "BLinear"))
    return u.astype(np.float64) @ v


def test_new_entries_are_the_best_part_of_what_the_factors_left_out(source, base, tmp_path):
    result = realign(source, "minimal", tmp_path / "out", base=base)
    assert not result.exact and "original" in result.meaning
    for layer, change in enumerate(result.resized):
        weight = load_file(base / "model.safetensors")[f"{Q(layer)}.weight"].astype(np.float64)
        before, after = (
            np.linalg.norm(weight - product(folder, Q(layer))) / np.linalg.norm(weight)
            for folder in (source, tmp_path / "out")
        )
        assert change.how == "residual" and change.after == 16
        assert change.residual == pytest.approx((before, after), rel=1e-5)
        left = weight - product(source, Q(layer))
        s = np.linalg.svd(left, compute_uv=False)[change.after - change.before :]
        assert after * np.linalg.norm(weight) == pytest.approx(np.sqrt((s**2).sum()), rel=1e-5)
    old, new = open_tensors(source), open_tensors(tmp_path / "out")
    np.testing.assert_array_equal(  # what was there stays as it was, to the bit
        new.read(f"{Q(0)}.ALinear.weight")[:, :13], old.read(f"{Q(0)}.ALinear.weight")
    )
    np.testing.assert_array_equal(
        new.read(f"{Q(0)}.BLinear.weight")[:13], old.read(f"{Q(0)}.BLinear.weight")
    )
    record = json.loads((tmp_path / "out" / "gacprof.json").read_text())
    assert record["origin"]["base"]["fingerprint"] == scan(base).fingerprint


REAL = ("asvd_mha_r1", "palu_mha_gs4_block1", "svdllm_mha_0.6")


@pytest.mark.parametrize("folder", REAL)
def test_every_tools_factors_come_nearer_to_their_original(folder, tools_checkpoints, tmp_path):
    """Groups too, whose weights are rows of the original's; and each tensor on disk agrees."""
    source, base = tools_checkpoints / folder, tools_checkpoints / "base_mha"
    found = scan(source)
    raised = {d.name: d.size + 9 for d in found.dims if d.kind == "rank" and d.layer == 1}
    result = realign(found, raised, tmp_path / "out", base=base)
    ranks = [change for change in result.resized if change.kind == "rank"]
    assert ranks and all(change.how == "residual" for change in ranks)
    inventory, new, dense = (
        scan(tmp_path / "out"),
        open_tensors(tmp_path / "out"),
        open_tensors(base),
    )
    modules = {dim: module for module in inventory.modules for dim in module.dims}
    for change in ranks:
        before, after = change.residual
        assert after < before
        module, dim = modules[change.dim], inventory.dim(change.dim)
        inner, outer = dim.places
        v = new.read(inner.tensor)[inner.start : inner.start + dim.size].astype(np.float64)
        u = new.read(outer.tensor).astype(np.float64)
        group = [gemm.weight for gemm in module.gemms[1:]].index(outer.tensor)
        rows = slice(group * len(u), (group + 1) * len(u))
        weight = dense.read(f"{module.name}.weight")[rows].astype(np.float64)
        error = np.linalg.norm(weight - u @ v) / np.linalg.norm(weight)
        assert error == pytest.approx(after, abs=1e-3)  # stored in float16


def test_widths_beside_informed_ranks_are_padded_with_zeros(tools_checkpoints, tmp_path):
    """gate's outer factor and down's inner one are resized along both axes at once."""
    source, base = tools_checkpoints / "svdllm_mha_0.6", tools_checkpoints / "base_mha"
    inventory = scan(source)
    mlp = "model.layers.1.mlp"
    ranks = {f"{mlp}.{part}_proj:rank": 120 for part in ("gate", "down")}
    before = {name: inventory.dim(name).size for name in ranks}
    realign(inventory, {**ranks, f"{mlp}:width": 704}, tmp_path / "out", base=base)
    old, new = open_tensors(source), open_tensors(tmp_path / "out")
    u = new.read(f"{mlp}.gate_u_proj.weight")
    assert u.shape == (704, 120) and not u[688:].any() and u[:688].any(axis=0).all()
    rank = before[f"{mlp}.gate_proj:rank"]
    np.testing.assert_array_equal(u[:688, :rank], old.read(f"{mlp}.gate_u_proj.weight"))
    v = new.read(f"{mlp}.down_v_proj.weight")
    assert v.shape == (120, 704) and not v[:, 688:].any() and v[:, :688].any(axis=1).all()


def test_bases_that_do_not_fit_are_refused(source, base, make_factored, tmp_path):
    def refused(base, match):
        with pytest.raises(CheckpointError, match=match):
            realign(source, "minimal", tmp_path / "out", base=base)
        assert not (tmp_path / "out").exists()
        assert not list(tmp_path.glob(".out*"))

    refused(make_factored([13, 11], name="factored"), "no dense layer of that name")
    tensors = load_file(base / "model.safetensors")
    narrow = {f"{Q(1)}.weight": np.ones((24, 20), np.float32)}
    save_file(tensors | narrow, base / "model.safetensors")
    refused(base, r"is \[24, 20\], \[24, 24\] is needed")
    strange = {name: np.roll(tensor, 5, 0) for name, tensor in tensors.items()}
    save_file(strange, base / "model.safetensors")
    refused(base, "compressed from another model")


def test_bfloat16_factors_are_completed_within_their_rounding():
    rng = np.random.default_rng(5)
    weight = rng.standard_normal((30, 20)).astype(np.float32)
    bits = (weight.view(np.uint32) >> 16).astype(np.uint16)
    u, v = np.zeros((30, 1), np.uint16), np.zeros((1, 20), np.uint16)
    found = complete(Stored(bits, "bfloat16"), Stored(u, "bfloat16"), Stored(v, "bfloat16"), 20)
    np.testing.assert_allclose(found.left @ found.right, weight, atol=2**-6)
