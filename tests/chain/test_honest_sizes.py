"""A size is judged by what larger ones would take, whatever it was before compression."""

import pytest
from checkpoint_making import checkpoint
from planted import TOKENS, planted_map_of, swept_map

from gacprof.checkpoint import scan
from gacprof.cliffmap.source import SizeCost
from gacprof.diagnosing import diagnose
from gacprof.diagnosing.predict import LatencyProfile
from gacprof.planning import plan
from gacprof.sweeping.suite import parse_suite

LAYER = "model.layers.0"
MLP = f"{LAYER}.mlp"
Q = f"{LAYER}.self_attn.q_proj"


def gated(prefix, width, hidden=64):
    return {
        f"{prefix}.gate_proj.weight": (width, hidden),
        f"{prefix}.up_proj.weight": (width, hidden),
        f"{prefix}.down_proj.weight": (hidden, width),
    }


def sliced(hidden):
    return {
        "model.embed_tokens.weight": (64, hidden),
        **{f"{LAYER}.self_attn.{x}_proj.weight": (64, hidden) for x in "qkv"},
        f"{LAYER}.attn_shortcut_Q": (hidden, 256),
        **gated(MLP, 64, 256),
        f"{LAYER}.self_attn.o_proj.weight": (256, 64),
        f"{LAYER}.mlp_shortcut_Q": (256, 256),
        "lm_head.weight": (64, 256),
    }


def test_a_rank_that_may_grow_no_further_is_not_safe_for_that(tmp_path):
    """On a device that wants multiples of 32, rank 130 of a dense 131 would need 160."""
    shapes = {f"{Q}.BLinear.weight": (130, 256), f"{Q}.ALinear.weight": (131, 130)}
    inventory = scan(checkpoint(tmp_path / "source", shapes))
    tables = [
        {
            "operator": "linear",
            "axis": axis,
            "values": [130, *range(96, 193, 8)],
            "dims": {"M": 64} | other,
            "dtype": "float32",
            "flags": {"bias": False},
        }
        for axis, other in (("N", {"K": 256}), ("K", {"N": 131}))
    ]
    suite = parse_suite({"name": "by-hand", "sweep": tables}, "a test")
    cliff_map = swept_map(suite, at_multiples_of_32)
    (rank,) = diagnose(inventory, cliff_map, tokens={64: 1.0}).dims
    assert inventory.dims[0].most == 144
    assert rank.verdict == "misaligned" and rank.best_size == 130 and rank.lost_us == 0
    assert rank.advice.startswith("keep") and "the dense weight's rank is 131" in rank.advice


def at_multiples_of_32(point):
    n, k = point.dim["N"], point.dim["K"]
    rank = n if k == 256 else k
    return (2.0 + n * k / 1e4) * (1.0 if rank % 32 == 0 else 1.8)


def factor_pair(folder, rank):
    shapes = {f"{Q}.V.weight": (rank, 256), f"{Q}.U.weight": (256, rank)}
    return scan(checkpoint(folder, shapes))


def test_a_size_that_the_map_has_not_measured_moves_to_a_safe_one_with_a_warning(tmp_path):
    measured = factor_pair(tmp_path / "measured", 131)
    cliff_map = planted_map_of(measured, dtype="float32")
    made = plan(factor_pair(tmp_path / "other", 85), cliff_map, objective="pad", tokens=TOKENS)
    (choice,) = made.choices
    assert choice.verdict == "safe" and choice.after > 85 and choice.latency_before_us is None
    assert any("not measured" in w and "85" in w and "not known" in w for w in made.warnings)


@pytest.mark.parametrize(
    ("now", "offered"), [(100, [104, 108]), (99, [104]), (112, [104, 108, 112])]
)
def test_an_undecided_size_is_offered_only_where_the_gain_is_known(now, offered):
    costs = {
        100: SizeCost(100, 14.0, 0.4, 0.3, 0.5, "misaligned"),
        104: SizeCost(104, 10.0, 0.0, 0.0, 0.01, "safe"),
        108: SizeCost(108, 10.1, 0.01, 0.0, 0.04, "undecided"),
        112: SizeCost(112, 10.1, 0.0, 0.0, None, "undecided"),  # stays as it is, not chosen anew
    }
    profile = LatencyProfile(costs, 0.02, scaled=False)
    assert [size for size in costs if profile.offers(size, now)] == offered
