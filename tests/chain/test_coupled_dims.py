"""Dims that meet in one product are judged as they fare once the others are aligned."""

import pytest
from checkpoint_making import checkpoint
from planted import FEW, TOKENS, planted_map_of, swept_map

from gacprof.checkpoint import scan
from gacprof.diagnosing import diagnose
from gacprof.planning import Constraints, plan
from gacprof.resizing import realign
from gacprof.sweeping.for_checkpoint import suite_for

MLP = "model.layers.0.mlp"
K_PROJ = "model.layers.0.self_attn.k_proj"
WIDTH, RANKS = f"{MLP}:width", {f"{MLP}.{part}_proj:rank" for part in ("gate", "up", "down")}


def factored(width, rank, hidden=256):
    """An MLP whose weights are all factored: every product with the width has a rank in it."""
    shapes = {
        f"{MLP}.down_proj.ALinear.weight": (hidden, rank),
        f"{MLP}.down_proj.BLinear.weight": (rank, width),
    }
    for part in ("gate", "up"):
        shapes[f"{MLP}.{part}_proj.ALinear.weight"] = (width, rank)
        shapes[f"{MLP}.{part}_proj.BLinear.weight"] = (rank, hidden)
    return shapes


@pytest.fixture(scope="module")
def coupled(tmp_path_factory):
    """Rank 131 and width 683, on a device where what is no multiple of 8 is 40 % slower."""
    folder = tmp_path_factory.mktemp("coupled")
    inventory = scan(checkpoint(folder / "source", factored(683, 131), {"intermediate_size": 683}))
    return inventory, planted_map_of(inventory, dtype="float32")


def test_a_width_that_only_odd_ranks_hide_is_misaligned(coupled):
    found = {d.name: d for d in diagnose(*coupled, tokens=TOKENS).dims}
    assert {name: d.verdict for name, d in found.items()} == dict.fromkeys(
        {WIDTH, *RANKS}, "misaligned"
    )
    assert found[WIDTH].best_size == 688
    assert found[WIDTH].advice == "pad to 688, once the dims beside it are aligned"
    assert all(found[name].advice == "pad to 136" for name in RANKS)


def test_what_the_dims_lose_adds_up_to_what_aligning_them_all_recovers(coupled):
    found = diagnose(*coupled, tokens=TOKENS)
    made = plan(*coupled, objective="pad", tokens=TOKENS)
    assert made.changes == dict.fromkeys(RANKS, 136) | {WIDTH: 688}
    recovered = made.predicted_before_us - made.predicted_after_us
    assert found.recoverable_us == found.lost_us == pytest.approx(recovered, rel=1e-2)


def test_aligning_ones_own_output_again_changes_nothing(coupled, tmp_path):
    inventory, cliff_map = coupled
    realign(inventory, plan(*coupled, objective="pad", tokens=TOKENS), tmp_path / "out")
    out = scan(tmp_path / "out")
    for by in (cliff_map, planted_map_of(out, dtype="float32")):
        assert {d.verdict for d in diagnose(out, by, tokens=TOKENS).dims} == {"safe"}
        assert plan(out, by, objective="pad", tokens=TOKENS).changes == {}


@pytest.mark.parametrize("period", [16, 32])
def test_it_holds_on_a_device_of_another_period(period, tmp_path):
    """Rank 131 goes to 144 or 160, beside which the first map holds no width: it was judged beside
    192, and the plan says so."""

    def answer(point):
        m, n, k = (point.dim.get(axis, 1) for axis in "MNK")
        return (2.0 + m * n * k / 1e6) * (1.4 if n % period or k % period else 1.0)

    def measured(inventory):
        return planted_map_of(inventory, latency=answer, dtype="float32")

    inventory = scan(checkpoint(tmp_path / "source", factored(683, 131), {}))
    cliff_map = measured(inventory)
    made = plan(inventory, cliff_map, objective="pad", tokens=TOKENS)
    assert {size % period for size in made.changes.values()} == {0}
    assert set(made.changes) == {WIDTH, *RANKS}
    assert made.certificate.proved is not any("judged with other sizes" in n for n in _notes(made))
    realign(inventory, made, tmp_path / "out")
    out = scan(tmp_path / "out")
    for by in (cliff_map, measured(out)):
        assert plan(out, by, objective="pad", tokens=TOKENS).changes == {}


def _notes(made):
    return made.certificate.notes


def test_the_proof_is_over_all_joint_sizes_that_the_map_holds(coupled):
    made = plan(*coupled, objective="pad", tokens=TOKENS)
    assert made.certificate.proved and not _notes(made)


def test_a_width_is_judged_beside_the_ranks_that_are_held(coupled):
    """With all ranks held at 131, no width is faster than another: nothing is padded for it."""
    held = Constraints(pinned={"*:rank": "keep"}, fuse=False)
    assert plan(*coupled, objective="pad", tokens=TOKENS, constraints=held).changes == {}


def test_a_width_beside_aligned_ranks_is_judged_as_it_is(tmp_path):
    inventory = scan(checkpoint(tmp_path / "source", factored(683, 136)))
    found = diagnose(inventory, planted_map_of(inventory, dtype="float32"), tokens=TOKENS)
    verdicts = {d.name: d.verdict for d in found.dims}
    assert verdicts[WIDTH] == "misaligned"
    assert next(d for d in found.dims if d.name == WIDTH).advice == "pad to 688"


def test_groups_that_add_up_in_one_product_are_judged_beside_aligned_groups(tmp_path):
    """PaLU's ranks 41 and 43 are 84 rows of VT: neither alone makes that a multiple of 8 by
    becoming one."""
    shapes = {
        f"{K_PROJ}.VT.weight": (84, 256),
        f"{K_PROJ}.U.0.weight": (64, 41),
        f"{K_PROJ}.U.1.weight": (64, 43),
    }
    config = {"head_wise_ranks": {K_PROJ: [41, 43]}}
    inventory = scan(checkpoint(tmp_path / "source", shapes, config))
    cliff_map = planted_map_of(inventory, dtype="float32")
    found = diagnose(inventory, cliff_map, tokens=TOKENS)
    made = plan(inventory, cliff_map, objective="pad", tokens=TOKENS)
    assert {d.best_size for d in found.dims} == {48}
    assert len(made.changes) == 2 and set(made.changes.values()) == {48}
    recovered = made.predicted_before_us - made.predicted_after_us
    assert found.recoverable_us == found.lost_us == pytest.approx(recovered)


def by_steps_of_32(point):
    """µs: products whose N or K is no multiple of 32 take 1.4 times as long."""
    if point.operator != "linear":
        return 50.0
    m, n, k = (point.dim[name] for name in "MNK")
    return 2.0 + m * n * k / 1e6 * (1.4 if n % 32 or k % 32 else 1.0)


def grouped(folder, rank, other):
    """PaLU's two groups of one weight: VT has as many rows as both ranks together."""
    shapes = {
        f"{K_PROJ}.VT.weight": (rank + other, 256),
        f"{K_PROJ}.U.0.weight": (128, rank),
        f"{K_PROJ}.U.1.weight": (128, other),
    }
    return scan(checkpoint(folder, shapes, {"head_wise_ranks": {K_PROJ: [rank, other]}}))


def swept_by_32(inventory):
    return swept_map(suite_for(inventory, [64], dtype="float32", timing=FEW), by_steps_of_32)


def test_groups_on_a_device_whose_steps_are_coarser_than_8(tmp_path):
    """Beside a rank at a multiple of 8, no size of the other makes the sum one of 32, and each
    would look as good as it can be. 60 and 90 are one product: 64 and 96 align all three."""
    inventory = grouped(tmp_path / "source", 60, 90)
    cliff_map = swept_by_32(inventory)
    found = diagnose(inventory, cliff_map, tokens=[64])
    assert {(d.size, d.verdict, d.best_size) for d in found.dims} == {
        (60, "misaligned", 64),
        (90, "misaligned", 96),
    }
    made = plan(inventory, cliff_map, objective="pad", tokens=[64])
    assert sorted(made.changes.values()) == [64, 96]
    realign(inventory, made, tmp_path / "aligned")
    again = scan(tmp_path / "aligned")
    cliff_map = swept_by_32(again)
    assert plan(again, cliff_map, objective="pad", tokens=[64]).changes == {}


def test_groups_are_padded_together_to_what_their_product_is_fast_at(tmp_path):
    """32 and 64 are good sizes each, but 96 rows cost more than 63 odd ones. 20 and 44 are 64 rows,
    which cost less than either."""
    inventory = grouped(tmp_path / "source", 20, 43)
    cliff_map = swept_by_32(inventory)
    made = plan(inventory, cliff_map, objective="pad", tokens=[64])
    assert sum(choice.after for choice in made.choices) == 64
    assert made.predicted_after_us < made.predicted_before_us
    realign(inventory, made, tmp_path / "out")
    assert plan(scan(tmp_path / "out"), cliff_map, objective="pad", tokens=[64]).changes == {}


def test_products_are_measured_beside_aligned_dims_too(coupled):
    """Beside an odd rank no width shows its cliff, so widths are measured at rank 136 as well."""
    points = suite_for(coupled[0], [64], dtype="float32").points("cpu")
    linear = {(p.dim["N"], p.dim["K"]) for p in points if p.operator == "linear"}
    assert {(683, 131), (683, 136), (688, 131), (688, 136)} <= linear
