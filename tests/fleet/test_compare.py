"""Sizes that are safe on all kinds of device, and what each kind loses by taking only those."""

import json

import pytest
from simulated import open_one, suite

from gacprof.cliffmap import CliffMap
from gacprof.core.errors import MapError
from gacprof.extras.fleet.compare import compare
from gacprof.sweeping import build_map_of, run_sweep


@pytest.fixture(scope="module")
def maps(tmp_path_factory):
    """A serves multiples of 8 well, B of 12: time is K·M, a third more elsewhere."""
    folder = tmp_path_factory.mktemp("maps")
    made = []
    for name, period in (("a", 8), ("b", 12)):
        run_sweep(suite(2, 60, 120), open_one(name, period=period), folder / name)
        made.append(build_map_of(folder / name, name))
    return made


def test_the_sizes_safe_on_all_are_those_of_both_periods(maps):
    found = compare(maps)
    assert [c.safe for c in found.curves] == [[72, 96], [72, 96]]  # 120 could be padded to 128
    (own,) = {c.kinds["a"].safe for c in found.curves}
    assert own == len([d for d in range(60, 97) if d % 8 == 0])


def test_the_loss_is_the_mean_of_padding_to_a_shared_size_instead_of_ones_own(maps):
    def padded(d, sizes):
        return min(s for s in sizes if s >= d)

    shared, own = [72, 96], [d for d in range(60, 121) if d % 12 == 0]
    losses = [padded(d, shared) / padded(d, own) - 1 for d in range(60, 97)]
    found = compare(maps)
    kind = found.curves[0].kinds["b"]
    assert kind.loss == pytest.approx(sum(losses) / len(losses), rel=1e-3)
    assert kind.worst == pytest.approx(max(losses), rel=1e-3)
    assert found.loss("b") == pytest.approx(kind.loss) and found.worst("b") == kind.worst


def test_a_price_an_hour_becomes_dollars_a_million_tokens(maps):
    found = compare(maps, {"a": 3.6, "b": 7.2})
    by_m = {curve.curve: curve.kinds for curve in found.curves}
    shared = [72 if d <= 72 else 96 for d in range(60, 97)]
    mean_us = sum(shared) / len(shared)  # at M=1, and twice that for two tokens at M=2
    for kinds in by_m.values():
        assert kinds["a"].usd == pytest.approx(mean_us * 1e-6 * 1e-3 * 1e6, rel=1e-3)
        assert kinds["b"].usd == pytest.approx(2 * kinds["a"].usd, rel=1e-3)
    assert found.usd("a") == pytest.approx(sum(k["a"].usd for k in by_m.values()))
    assert compare(maps).usd("a") is None


def test_where_no_size_is_safe_on_all_there_is_no_loss_to_tell(maps, tmp_path):
    run_sweep(suite(2, 60, 120), open_one("c", period=17), tmp_path / "c")
    found = compare([maps[0], build_map_of(tmp_path / "c", "c")])
    assert found.curves[0].safe == [] and found.curves[0].kinds["a"].loss is None
    assert found.loss("a") is None
    json.dumps(found.as_dict(), allow_nan=False)


def test_curves_that_not_every_map_has_are_named_as_left(maps, tmp_path):
    run_sweep(suite(3, 60, 120), open_one("c"), tmp_path / "c")
    found = compare([maps[0], build_map_of(tmp_path / "c", "c")])
    assert len(found.curves) == 2 and len(found.left) == 1 and "M=3" in found.left[0]


def test_shipped_maps_are_compared():
    found = compare([CliffMap.load("a100-published"), CliffMap.load("h100-published")])
    assert {c.curve.split()[0] for c in found.curves} >= {"attention", "linear"}
    for curve in found.curves:
        for kind in curve.kinds.values():
            assert kind.loss is None or 0 <= kind.loss <= kind.worst


def test_bad_questions_are_answered_in_words(maps, tmp_path):
    with pytest.raises(MapError, match="two maps of different names"):
        compare(maps[:1])
    with pytest.raises(MapError, match="a price for 'x', but the maps are a, b"):
        compare(maps, {"x": 1.0})
    with pytest.raises(MapError, match="no curve in common"):
        compare(maps, operator="attention")
