"""The suite made from a checkpoint measures its own shapes and what they could become."""

import pytest

from gacprof.checkpoint import scan
from gacprof.core.errors import SuiteError
from gacprof.sweeping.for_checkpoint import sizes_near, suite_for


def test_every_product_of_the_model_is_measured_as_it_is(asvd):
    inventory = scan(asvd)
    points = suite_for(inventory, [1, 64], dtype="float32").points("cpu")
    measured = {(p.dim["M"], p.dim["N"], p.dim["K"]) for p in points if p.operator == "linear"}
    for module in inventory.modules:
        for gemm in module.gemms:
            assert {(1, gemm.N, gemm.K), (64, gemm.N, gemm.K)} <= measured


def test_a_rank_is_measured_as_n_of_one_product_and_k_of_the_other(asvd):
    inventory = scan(asvd)
    dim = next(d for d in inventory.dims if d.kind == "rank" and d.size % 8)
    points = suite_for(inventory, [64], dtype="float32").points("cpu")
    up = -(-dim.size // 8) * 8
    axes = {(p.dim["N"], p.dim["K"]): axes for p, axes in points.items() if p.operator == "linear"}
    for feed in dim.feeds:
        gemm = inventory.gemm(feed.weight)
        shape = {"N": gemm.N, "K": gemm.K} | {feed.axis: up}
        assert feed.axis in axes[shape["N"], shape["K"]]


def test_prefill_attention_is_measured_at_the_models_head_dim_and_never_at_a_rank(asvd):
    inventory = scan(asvd)
    points = suite_for(inventory, [1, 64], dtype="float32").points("cpu")
    attention = [p for p in points if p.operator == "attention"]
    head_dim = inventory.attentions[0].head_dim
    assert {p.dim["q_len"] for p in attention} == {64}
    assert min(p.dim["head_dim"] for p in attention) == head_dim


def test_larger_sizes_are_measured_even_where_none_can_be_chosen(asvd):
    """What wastes time shows in larger dims that are faster."""
    inventory = scan(asvd)
    points = suite_for(inventory, [64], dtype="float32").points("cpu")
    measured = {(axis, p.dim[axis]) for p, axes in points.items() for axis in axes}
    for dim in inventory.dims:
        for feed in dim.feeds:
            present = getattr(inventory.gemm(feed.weight), feed.axis)
            assert sum(a == feed.axis and size > present for a, size in measured) >= 2


@pytest.mark.parametrize("size", [1, 7, 8, 9, 107, 112, 1638, 14336])
def test_candidates_lie_on_both_sides_and_the_dim_is_among_them(size):
    sizes = sizes_near(size, 0.25)
    assert size in sizes and all(s > 0 for s in sizes)
    for period in (1, 2, 4, 8, 16) if size % 64 else (16, 32):  # any may be the device's
        above = (size // period + 1) * period
        below = (size - 1) // period * period
        assert above in sizes
        assert below in sizes or below == 0
    assert any(s % 32 == 0 for s in sizes) or size < 26


@pytest.mark.parametrize("tokens", [[], [0], [-1, 5]])
def test_token_counts_must_be_counts(asvd, tokens):
    with pytest.raises(SuiteError, match="token counts"):
        suite_for(scan(asvd), tokens)
