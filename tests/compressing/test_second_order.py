"""What is measured of gradients, and the sizes chosen by what cuts add to the loss."""

from itertools import product

import pytest
import torch
from compressing_models import logits_of, work_in

import gacprof
from gacprof.checkpoint import open_tensors, scan
from gacprof.cli.compressing import print_compressed
from gacprof.core.errors import CompressionError, PlanError
from gacprof.core.files import read_json
from gacprof.extras.compress import gradients, sensitivity
from gacprof.extras.compress.choosing import multiples_of
from gacprof.extras.compress.decomposing import Decompositions
from gacprof.extras.compress.factoring import Factoring, targets_of
from gacprof.extras.compress.gradients import Gather
from gacprof.extras.compress.methods import method_named
from gacprof.extras.compress.methods.llmpruner import strongest
from gacprof.extras.compress.methods.method import uniform_rank
from gacprof.extras.compress.outcome import nats
from gacprof.extras.compress.pruning import Pruning
from gacprof.extras.compress.request import CompressRequest
from gacprof.extras.compress.writing import CARD
from gacprof.resizing.output import PROVENANCE


def curves_of(dense, ids, folder, method, gather):
    """By target name: what each rank adds to the loss."""
    work, chosen = work_in(folder, dense, ids), method_named(method, {})
    targets, _ = targets_of(work.reader, chosen)
    found = Decompositions(work, chosen, targets, gather)
    found.prepare()
    return {t: found.of(t) for t in targets}


@pytest.mark.parametrize("method", ["svd", "svd-llm", "kfac-svd"])
@pytest.mark.parametrize("outputs", ["whole", "trace"])
def test_a_curve_is_the_second_order_loss_of_the_cut_weights(
    dense, ids, measured, tmp_path, method, outputs
):
    """By gradients and inputs of the whole model, run by torch alone."""
    reader = open_tensors(dense)
    for target, held in curves_of(
        dense, ids, tmp_path / "work", method, Gather(inputs=True, outputs=outputs)
    ).items():
        x, g = measured[target.name]
        weight = reader.torch(target.weight).double()
        u, v, curve = (held[f"{target.name}/0/{what}"].double() for what in ("u", "v", "loss"))
        for rank in (3, target.even // 2, target.even):
            delta = weight - u[:, :rank] @ v[:rank]
            each = (x @ delta.T).square().sum() * g.square().mean()  # c·I
            if outputs == "whole":
                each = torch.trace((g.T @ g / len(g)) @ delta @ (x.T @ x) @ delta.T)
            assert float(curve[rank]) == pytest.approx(float(each), rel=2e-3)


@pytest.mark.parametrize("method", ["kfac-svd", "palu"])
def test_with_a_text_sizes_are_chosen_by_the_loss_and_add_less_of_it(
    compress, own_map, tmp_path, method
):
    found = {}
    for objective in (None, "energy"):
        out = tmp_path / str(objective)
        found[objective] = compress(method, out, cliff_map=own_map(method), objective=objective)
    ours = found[None]
    assert ours.objective == ours.plan.objective == "loss"
    assert ours.loss_added <= ours.loss_of_requested
    assert ours.aligned == len(ours.plan.choices) and ours.plan.certificate.proved
    assert ours.parameters_after <= found["energy"].parameters_after * 1.02


def test_without_a_map_an_objective_chooses_among_multiples(compress, tmp_path):
    rounded = compress("svd-llm", tmp_path / "rounded", round_to=8)
    assert rounded.removed >= 0.3
    for objective in ("loss", "gscalar", "energy"):
        ours = compress("svd-llm", tmp_path / objective, round_to=8, objective=objective)
        assert all(size is None or size % 8 == 0 for size in ours.sizes.values())
        assert (None in ours.sizes.values()) == (objective != "energy")
        assert ours.removed >= 0.3
        if objective == "energy":
            assert ours.energy_kept >= rounded.energy_kept
        else:
            assert ours.loss_added < ours.loss_of_requested
        assert scan(ours.out).parameters == ours.parameters_after


def test_a_pass_back_with_all_of_g_serves_for_a_forward_pass_and_for_its_trace(
    dense, ids, tmp_path
):
    asked = {"method": "svd-llm", "ratio": 0.3, "calib": ids, "round_to": 8}
    common = asked | {"work": tmp_path / "work"}
    gacprof.compress(dense, tmp_path / "loss", objective="loss", **common)
    for objective in (None, "gscalar"):
        own, ours = tmp_path / f"alone-{objective}", tmp_path / f"shared-{objective}"
        alone = gacprof.compress(dense, own, objective=objective, **asked)
        shared = gacprof.compress(dense, ours, objective=objective, **common)
        for name in ("model.safetensors", "config.json"):
            assert (ours / name).read_bytes() == (own / name).read_bytes()
        assert shared.sizes == alone.sizes and shared.loss_added == pytest.approx(alone.loss_added)
    assert len(list((tmp_path / "work").iterdir())) == 1


def test_a_text_shorter_than_a_layer_is_wide_is_said_and_used(dense, ids, tmp_path):
    few = {"method": "kfac-svd", "ratio": 0.3, "calib": ids[:2], "round_to": 8}
    done = gacprof.compress(dense, tmp_path / "few", objective="loss", **few)
    assert done.thin in done.notes and "2 windows of 32 tokens" in done.thin
    assert "rows of A (inputs) and the" in done.thin and "rows of G (output grad" in done.thin
    assert done.thin.endswith("the loss added is estimated too low: give a longer text")
    assert nats(1e-16) == "0" and nats(0.02414) == "0.02414"
    assert "| loss added, estimated too low (short text) |" in (tmp_path / "few" / CARD).read_text()
    model = gacprof.load_model(tmp_path / "few", dtype="float32")
    assert torch.isfinite(model(ids[:1]).logits).all()


def test_a_cut_that_asvds_search_found_worse_than_its_estimate_costs_what_was_measured(
    dense, ids, tmp_path, monkeypatch
):
    """The second order does not see what a large cut does to a few weights."""
    harmed, at = "model.layers.0.mlp.up_proj", (0.4, 0.6)

    def search(model, work, ids, targets, shares, pair):
        added = {(t.name, s): float(t.name == harmed and s in at) for t in targets for s in shares}
        return {("", 1.0): 3.0} | {variant: 3.0 + more for variant, more in added.items()}

    monkeypatch.setattr(sensitivity, "search", search)
    work, method = work_in(tmp_path / "work", dense, ids), method_named("asvd", {})
    family = Factoring(work, method, None, Gather(inputs=True, outputs="whole"))
    family.prepare()
    for target in family.targets:
        curve = torch.tensor(family.lost[target.dims[0]])
        held = family._found.of(target)[f"{target.name}/0/loss"].float()
        if target.name != harmed:
            assert torch.equal(curve, held)
            continue
        ranks = {share: uniform_rank(target, 1 - share) for share in method.probed}
        for share, rank in ranks.items():
            assert float(curve[rank]) / (2 * ids.numel()) == pytest.approx(1.0) or share not in at
        assert curve[ranks[0.9]] == held[ranks[0.9]] and curve[0] > held[0]
        assert (curve >= held).all()


@pytest.fixture(scope="module")
def pruning(dense, ids, tmp_path_factory):
    work = work_in(tmp_path_factory.mktemp("pruning"), dense, ids)
    family = Pruning(work, method_named("llm-pruner", {}), "taylor", Gather(True, True, "whole"))
    family.prepare()
    return family


def test_of_pruned_units_the_curve_is_the_second_order_loss_of_their_columns(
    dense, measured, pruning
):
    family = pruning
    assert set(family.lost) == {group.dim for group in family.pruned}
    for group in family.pruned:
        assert len(family.lost[group.dim]) == group.count + 1
        for keep in {1, group.count // 2 + 10, group.count - 1, group.count}:
            if keep <= group.count:
                exact = loss_without(dense, measured, family, group, keep)
                assert family.lost[group.dim][keep] == pytest.approx(exact, rel=2e-3, abs=1e-9)


def loss_without(dense, measured, family, group, keep):
    """tr(G·ΔW·(Σ x·xᵀ)·ΔWᵀ) of the columns of the other units: of heads in o, of widths in down."""
    by = next(part for part in group.slices if part.axis == 1)
    x, g = measured[by.tensor.removesuffix(".weight")]
    delta = open_tensors(dense).torch(by.tensor).double()
    kept = strongest(family._importance[group.dim], keep)
    delta.reshape(len(delta), group.count, by.width)[:, kept] = 0
    return float(torch.trace((g.T @ g / len(g)) @ delta @ (x.T @ x) @ delta.T))


def test_the_loss_added_by_pruning_is_the_sum_over_all_that_is_cut(
    dense, ids, measured, pruning, tmp_path, capsys
):
    asked = {"method": "llm-pruner", "ratio": 0.6, "calib": ids, "objective": "loss"}
    done = gacprof.compress(dense, tmp_path / "o", round_to=8, **asked)
    heads = [group for group in pruning.pruned if group.is_heads]
    assert any(done.sizes[group.dim] < group.count for group in heads)
    for found, sizes in (
        (done.loss_added, done.sizes),
        (done.loss_of_requested, done.requested),
    ):
        each = (loss_without(dense, measured, pruning, g, sizes[g.dim]) for g in pruning.pruned)
        assert found == pytest.approx(sum(each) / (2 * ids.numel()), rel=2e-3)
    assert done.loss_added < done.loss_of_requested
    print_compressed(done)
    line = f"loss added, estimated: {nats(done.loss_added)} nats a token ("
    assert line in capsys.readouterr().out
    assert (
        f"| loss added, estimated | {nats(done.loss_added)} nats"
        in (tmp_path / "o" / CARD).read_text()
    )
    assert read_json(tmp_path / "o" / PROVENANCE)["loss_added"] == done.loss_added


def test_a_pruner_chooses_widths_by_the_loss_where_it_is_asked_for(compress, own_map, tmp_path):
    found = {}
    for objective in (None, "loss", "gscalar"):
        out = tmp_path / str(objective)
        m = own_map("llm-pruner")
        found[objective] = compress("llm-pruner", out, cliff_map=m, objective=objective)
        assert found[objective].removed >= 0.3 and found[objective].plan.certificate.proved
    assert found[None].objective == "energy"
    assert found["loss"].plan.objective == found["gscalar"].plan.objective == "loss"


@pytest.mark.parametrize("ratio", [0.15, 0.45])
def test_widths_among_multiples_are_the_best_of_all_that_fit(pruning, tmp_path, ratio):
    """Of every combination of multiples, the heads being the method's own."""
    asked = CompressRequest("model", tmp_path / "o", method="llm-pruner", ratio=ratio, round_to=8)
    own = pruning.requested_sizes(ratio)
    found = multiples_of(pruning, asked, "loss", own)
    heads = [g for g in pruning.pruned if g.is_heads]
    widths = [g for g in pruning.pruned if not g.is_heads]
    assert len(heads) == 3 and all(found[g.dim] == own[g.dim] for g in heads)
    room = pruning.parameters * (1 - ratio) - sum(own[g.dim] * g.parameters for g in heads)
    best = min(
        sum(pruning.lost[g.dim][size] for g, size in zip(widths, sizes, strict=True))
        for sizes in product(range(8, 161, 8), repeat=len(widths))
        if sum(g.parameters * size for g, size in zip(widths, sizes, strict=True)) <= room
    )
    assert sum(pruning.lost[g.dim][found[g.dim]] for g in widths) == pytest.approx(best)


@pytest.mark.parametrize("objective", ["loss", "gscalar", "energy"])
def test_a_pruner_without_a_map_chooses_among_multiples_by_an_objective(
    compress, tmp_path, objective
):
    done = compress("llm-pruner", tmp_path / "o", round_to=8, objective=objective)
    dims = {dim.name: dim.size for dim in scan(done.out).dims if dim.kind == "width"}
    assert {name: done.sizes[name] for name in dims} == dims
    assert all(size % 8 == 0 for size in dims.values()) and done.removed >= 0.3
    assert scan(done.out).parameters == done.parameters_after and done.objective == objective


def test_pairs_are_cut_anew_by_what_cuts_of_their_products_add_to_the_loss(
    unaligned, ids, tmp_path
):
    given = unaligned("svd-llm")
    found = {}
    for name, asked in (("ours", {"method": "kfac-svd", "objective": "loss"}),
                        ("rounded", {"method": "svd-llm"})):  # fmt: skip
        done = gacprof.compress(given, tmp_path / name, ratio=0, calib=ids, round_to=8, **asked)
        assert done.source == str(given) and done.parameters_before == scan(given).parameters
        assert scan(done.out).parameters == done.parameters_after <= done.parameters_before
        assert all(size is None or size % 8 == 0 for size in done.sizes.values())
        change = logits_of(tmp_path / name, ids) - logits_of(given, ids)
        found[name] = torch.linalg.norm(change)
    assert found["ours"] < 0.8 * found["rounded"]
    assert {p.name for p in tmp_path.iterdir()} == {"ours", "rounded"}


@pytest.mark.parametrize("method", ["svd", "kfac-svd"])
def test_a_ratio_of_nought_compares_with_the_ranks_that_the_pairs_came_with(
    compress, ids, tmp_path, capsys, method
):
    first = compress("kfac-svd", tmp_path / "pairs", round_to=8, objective="loss")
    assert None in first.sizes.values() and len(set(first.sizes.values())) > 3
    asked = {"method": method, "ratio": 0, "calib": ids, "round_to": 8}
    again = gacprof.compress(tmp_path / "pairs", tmp_path / "again", objective="loss", **asked)
    assert again.requested == first.sizes == again.sizes
    assert again.parameters_after == again.parameters_before
    assert again.loss_added == pytest.approx(0, abs=1e-6)
    print_compressed(again)
    said = capsys.readouterr().out
    assert (
        "no size changed" in said
        and "at the given sizes)" in said
        and "the method's own" not in said
    )
    fewer = gacprof.compress(tmp_path / "pairs", tmp_path / "fewer", **asked | {"round_to": 16})
    for name, rank in first.sizes.items():  # the method's rounding, of the ranks that were given
        most = 16 * (rank // 16) if rank is not None and rank >= 16 else rank
        assert fewer.sizes[name] == most or rank < 16
    print_compressed(fewer)
    said = capsys.readouterr().out
    moved = sum(first.sizes[name] != size for name, size in fewer.sizes.items())
    assert f"{moved} of 21 sizes moved from the given" in said


def test_what_has_no_estimate_of_the_loss_is_refused(compress, own_map, unaligned, tmp_path):
    with pytest.raises(CompressionError, match="by magnitude has no estimate"):
        compress(
            "llm-pruner", tmp_path / "a", cliff_map=own_map("llm-pruner"), objective="loss",
            score="magnitude",
        )  # fmt: skip
    with pytest.raises(CompressionError, match="objective loss needs a calibration text"):
        compress("svd", tmp_path / "b", cliff_map=own_map("svd"), objective="loss", calib=None)
    with pytest.raises(PlanError, match="calibration text"):
        gacprof.plan(unaligned("svd-llm"), own_map("svd-llm"), objective="loss")


def test_gradients_that_are_not_finite_are_refused_in_one_line():
    slopes = gradients.Slopes.of(torch.tensor([[1.0, float("inf"), 0.0, 0.0]]), True)
    with pytest.raises(CompressionError, match="gradients of the outputs of 'q' are not finite"):
        slopes.covariance("q")
