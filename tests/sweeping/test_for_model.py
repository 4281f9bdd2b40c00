"""Suites of a checkpoint hold what diagnosing and planning ask for."""

from __future__ import annotations

from pathlib import Path

import pytest
from decoders import write_decoder

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import inventory_of
from gacprof.core.errors import MeasurementError
from gacprof.sweeping.for_model import sizes_around, sizes_near, suite_for_model, suite_for_ranks
from gacprof.workload.products import PADDED_TO, Products, padded_neighbours

FIXTURES = Path(__file__).parents[1] / "fixtures" / "checkpoints"


@pytest.fixture(scope="module")
def asvd() -> Inventory:
    return inventory_of(FIXTURES / "asvd_mha_r1")


def points_of(inventory: Inventory, **options: object) -> set[tuple[int, int, int]]:
    suite = suite_for_model(inventory, [1, 64], **options)  # type: ignore[arg-type]
    return {
        tuple(axis.point(size).dims[name] for name in "MNK")  # type: ignore[misc]
        for axis in suite.axes
        if axis.operator == "linear"
        for size in axis.sizes
    }


def test_every_product_is_measured_as_it_is(asvd: Inventory) -> None:
    points = points_of(asvd)
    for module in asvd.modules:
        for gemm in module.gemms:
            assert {(1, gemm.N, gemm.K), (64, gemm.N, gemm.K)} <= points
        if len(module.gemms) > 1:
            assert (64, module.out_features, module.in_features) in points


def test_sizes_around_a_dim_are_measured_in_all_its_products(asvd: Inventory) -> None:
    points = points_of(asvd)
    products = Products(asvd, {1: 1.0, 64: 1.0})
    for dim in asvd.dims:
        for size in sizes_around(dim, 0.25):
            assert all(
                (use.tokens, *(use.at(size) or ())) in points for use in products.uses_of(dim)
            )


@pytest.mark.parametrize("multiple", PADDED_TO)
def test_sizes_are_measured_beside_neighbours_padded_as_diagnosing_takes_them(
    asvd: Inventory, multiple: int
) -> None:
    points = points_of(asvd)
    products = Products(asvd, {1: 1.0, 64: 1.0})
    for dim in asvd.dims:
        if dim.size % 16:
            neighbours = padded_neighbours(asvd, dim, multiple)
            for use in products.uses_of(dim, neighbours):
                shapes = [use.at(size) or () for size in sizes_around(dim, 0.25)]
                assert {(use.tokens, *shape) for shape in shapes} <= points


def test_tp_ranks_measure_their_share(asvd: Inventory) -> None:
    points = points_of(asvd, tp=2)
    gates = [m for m in asvd.modules if m.role == "gate"]
    for module in gates:
        last = module.gemms[-1]
        assert (64, last.N // 2, last.K) in points


def test_dtype_is_the_checkpoints_unless_named(asvd: Inventory) -> None:
    stored = {axis.dtype for axis in suite_for_model(asvd, [1]).axes}
    named = {axis.dtype for axis in suite_for_model(asvd, [1], dtype="bfloat16").axes}
    assert stored == {asvd.main_dtype}
    assert named == {"bfloat16"}


@pytest.mark.parametrize("size", [3, 77, 107, 128, 1368, 4096, 11008])
def test_near_sizes_hold_the_next_multiples_on_both_sides(size: int) -> None:
    near = sizes_near(size, 0.25)
    assert size in near
    for step in (8, 16):
        if step <= size and (size % 64 or size < 1024 or step == 16):
            assert {size // step * step, -(-size // step) * step} <= near
    assert all(abs(other - size) <= max(16, 0.25 * size) for other in near)


def test_ranks_are_both_sides_of_a_factor_pair(tmp_path: Path) -> None:
    dense = inventory_of(write_decoder(tmp_path / "dense"))
    suite = suite_for_ranks(dense, (16, 24), [32])
    module = next(m for m in dense.modules if m.role == "gate")
    over_n = [a for a in suite.axes if a.dim == "N" and a.fixed["K"] == module.in_features]
    over_k = [a for a in suite.axes if a.dim == "K" and a.fixed["N"] == module.out_features]
    assert over_n[0].sizes[0] == over_k[0].sizes[0] == 16
    assert over_n[0].sizes[-1] > 24
    with pytest.raises(MeasurementError):
        suite_for_ranks(dense, (24, 16))
