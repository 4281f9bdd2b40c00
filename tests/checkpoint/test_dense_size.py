"""What bounds a rank: the dense weight's, where that is larger."""

from __future__ import annotations

import pytest
from test_layouts import found

LAYER = "model.layers.0"
Q = f"{LAYER}.self_attn.q_proj"

PAIRS = {
    "asvd": (f"{Q}.ALinear.weight", f"{Q}.BLinear.weight"),
    "svd-llm": (f"{LAYER}.self_attn.q_u_proj.weight", f"{LAYER}.self_attn.q_v_proj.weight"),
    "gacprof": (f"{Q}.outer.weight", f"{Q}.inner.weight"),
    "palu": (f"{Q}.U.0.weight", f"{Q}.VT.weight"),
    "factor-pairs": (f"{Q}.U.weight", f"{Q}.V.weight"),
}


@pytest.mark.parametrize("layout", PAIRS)
@pytest.mark.parametrize(
    ("n_out", "n_in", "rank", "dense"),
    [
        (205, 300, 131, 205),  # the dense weight's rank is its smaller side
        (300, 205, 131, 205),
        (131, 300, 131, None),  # of full rank already: it never was larger
        (300, 131, 131, None),
    ],
)
def test_a_rank_was_larger_only_if_it_is_below_the_dense_weights(
    layout: str, n_out: int, n_in: int, rank: int, dense: int | None
) -> None:
    outer, inner = PAIRS[layout]
    name, findings = found(
        {inner: (rank, n_in), outer: (n_out, rank)}, {"truncation_ranks": {Q: rank}}
    )
    assert name == layout
    (only,) = [d for d in findings.dims if d.kind == "rank"]
    assert (only.size, only.dense_size) == (rank, dense)


@pytest.mark.parametrize("layout", [name for name in PAIRS if name != "factor-pairs"])
def test_a_rank_padded_beyond_the_dense_weights_has_no_larger_one(layout: str) -> None:
    outer, inner = PAIRS[layout]
    _, findings = found({inner: (136, 300), outer: (131, 136)})
    assert [(d.size, d.dense_size, d.most) for d in findings.dims] == [(136, None, None)]


def test_each_of_palus_groups_has_its_own_dense_rank() -> None:
    shapes = {
        f"{Q}.VT.weight": (41 + 30, 300),
        f"{Q}.U.0.weight": (41, 41),
        f"{Q}.U.1.weight": (41, 30),
    }
    _, findings = found(shapes, {"head_wise_ranks": {Q: [41, 30]}})
    assert [(d.size, d.dense_size) for d in findings.dims] == [(41, None), (30, 41)]


@pytest.mark.parametrize(("dense", "most"), [(131, 144), (205, 208), (208, 208), (256, 256)])
def test_a_ranks_bound_leaves_room_for_an_aligned_one(dense: int, most: int) -> None:
    outer, inner = PAIRS["asvd"]
    _, findings = found({inner: (100, 300), outer: (dense, 100)})
    assert findings.dims[0].most == most
