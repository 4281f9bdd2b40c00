"""The products of a checkpoint as one tensor-parallel rank runs them."""

from __future__ import annotations

from pathlib import Path

from decoders import write_decoder

from gacprof.checkpoint.scan import inventory_of
from gacprof.workload.products import Products


def test_more_ranks_than_kv_heads_repeat_them(tmp_path: Path) -> None:
    """Two of 8 TP ranks hold each of 4 heads of keys and values: none holds half of one."""
    folder = write_decoder(
        tmp_path / "dense",
        heads=[(8, 4), (8, 4)],
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    inventory = inventory_of(folder)
    head_dim = inventory.attentions[0].head_dim
    products = Products(inventory, {1: 1.0}, tp=8)
    lengths = {
        module.role: [gemm and (gemm.N, gemm.K) for gemm in products.local_gemms(module)]
        for module in inventory.modules
    }
    hidden = lengths["q"][0][1]  # type: ignore[index]
    assert lengths["q"] == lengths["k"] == lengths["v"] == [(head_dim, hidden)]
    assert lengths["o"] == [(hidden, head_dim)]
