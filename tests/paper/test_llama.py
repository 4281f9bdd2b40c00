"""What stands for Llama-3-8B has its dims, and what stands for its compression its share."""

import pytest
from llama import (
    KEPT,
    LLAMA_3_8B,
    LLAMA_3_8B_EIGHTH,
    inventory_of,
    padded,
    rounded,
    unaligned_ranks,
    unaligned_widths,
)

ENDS = 2 * LLAMA_3_8B.vocabulary * LLAMA_3_8B.hidden


def test_low_rank_and_pruned_models_have_15_percent_fewer_parameters():
    dense = inventory_of(LLAMA_3_8B, {}).parameters - ENDS
    low_rank = inventory_of(LLAMA_3_8B, unaligned_ranks(LLAMA_3_8B)).parameters - ENDS
    assert low_rank / dense == pytest.approx(KEPT, abs=1e-3)
    mlp = 3 * LLAMA_3_8B.hidden * LLAMA_3_8B.intermediate * LLAMA_3_8B.layers
    pruned = inventory_of(LLAMA_3_8B, unaligned_widths(LLAMA_3_8B)).parameters - ENDS
    assert (dense - pruned) / mlp == pytest.approx(1 - KEPT, abs=1e-3)


def test_most_ranks_are_unaligned_and_repairs_are_the_multiples_of_8_next_to_them():
    sizes = unaligned_ranks(LLAMA_3_8B)
    assert len(sizes) == 7 * 32 and sum(rank % 8 != 0 for rank in sizes.values()) > 7 * 16
    for name, size in sizes.items():
        assert padded(sizes)[name] % 8 == 0 and 0 <= padded(sizes)[name] - size < 8
        assert rounded(sizes)[name] % 8 == 0 and abs(rounded(sizes)[name] - size) <= 4


def test_an_inventory_has_a_dim_for_every_size_given():
    sizes = unaligned_ranks(LLAMA_3_8B_EIGHTH)
    found = {
        d.name: d.size for d in inventory_of(LLAMA_3_8B_EIGHTH, sizes).dims if d.kind == "rank"
    }
    assert found == sizes
    widths = unaligned_widths(LLAMA_3_8B_EIGHTH)
    assert {d.name: d.size for d in inventory_of(LLAMA_3_8B_EIGHTH, widths).dims} == widths
