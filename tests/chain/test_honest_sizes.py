"""A size is judged by what larger ones would take, whatever it was before compression."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoint_making import checkpoint
from planted import TOKENS, planted_map_of, swept_map

from gacprof.checkpoint import Inventory, scan
from gacprof.cliffmap import CliffMap
from gacprof.core.points import Point
from gacprof.diagnosing import diagnose
from gacprof.diagnosing.profiles import LatencyProfile, SizeCost
from gacprof.planning import plan
from gacprof.resizing import realign
from gacprof.sweeping.suite import parse_suite

LAYER = "model.layers.0"
MLP = f"{LAYER}.mlp"
Q = f"{LAYER}.self_attn.q_proj"


def gated(prefix: str, width: int, hidden: int = 64) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj.weight": (width, hidden),
        f"{prefix}.up_proj.weight": (width, hidden),
        f"{prefix}.down_proj.weight": (hidden, width),
    }


def sliced(hidden: int) -> dict[str, tuple[int, ...]]:
    return {
        "model.embed_tokens.weight": (64, hidden),
        **{f"{LAYER}.self_attn.{x}_proj.weight": (64, hidden) for x in "qkv"},
        f"{LAYER}.attn_shortcut_Q": (hidden, 256),
        **gated(MLP, 64, 256),
        f"{LAYER}.self_attn.o_proj.weight": (256, 64),
        f"{LAYER}.mlp_shortcut_Q": (256, 256),
        "lm_head.weight": (64, 256),
    }


HONEST: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # layout: (shapes, a config that says what is stored, the one odd dim)
    "plain": (gated(MLP, 683), {"intermediate_size": 683}, f"{MLP}:width"),
    "gate and up fused": (
        {f"{MLP}.gate_up_proj.weight": (2 * 683, 64), f"{MLP}.down_proj.weight": (64, 683)},
        {"intermediate_size": 683},
        f"{MLP}:width",
    ),
    "moe": (
        gated(f"{MLP}.experts.0", 683),
        {"moe_intermediate_size": 683, "intermediate_size": 5632},
        f"{MLP}.experts.0:width",
    ),
    "asvd, of full rank": (
        {f"{Q}.BLinear.weight": (131, 256), f"{Q}.ALinear.weight": (131, 131)},
        {"truncation_ranks": {Q: 131}},
        f"{Q}:rank",
    ),
    "asvd, just below full rank": (
        {f"{Q}.BLinear.weight": (130, 256), f"{Q}.ALinear.weight": (131, 130)},
        {"truncation_ranks": {Q: 130}},
        f"{Q}:rank",
    ),
    "svd-llm": (
        {f"{Q[:-4]}v_proj.weight": (51, 256), f"{Q[:-4]}u_proj.weight": (256, 51)},
        {},
        f"{Q}:rank",
    ),
    "factor pairs": (
        {f"{Q}.V.weight": (51, 256), f"{Q}.U.weight": (256, 51)},
        {},
        f"{Q}:rank",
    ),
    "palu, a group of full rank": (
        {
            f"{Q}.VT.weight": (41 + 32, 256),
            f"{Q}.U.0.weight": (41, 41),
            f"{Q}.U.1.weight": (41, 32),
        },
        {"head_wise_ranks": {Q: [41, 32]}},
        f"{Q}:rank.0",
    ),
    "slicegpt, not sliced": (sliced(251), {"hidden_size": 251}, "embedding:hidden"),
}


@pytest.fixture(scope="module", params=HONEST)
def odd(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Inventory, CliffMap, str]:
    shapes, config, name = HONEST[request.param]
    folder = tmp_path_factory.mktemp("odd")
    inventory = scan(checkpoint(folder / "source", shapes, config))
    return inventory, planted_map_of(inventory, folder / "run", dtype="float32"), name


def test_an_odd_size_is_misaligned_though_the_config_agrees_with_it(odd):
    inventory, cliff_map, name = odd
    found = diagnose(inventory, cliff_map, tokens=TOKENS)
    judged = next(d for d in found.dims if d.name == name)
    assert judged.verdict == "misaligned" and judged.penalty > 0.1
    assert judged.best_size == -(-judged.size // 8) * 8
    assert judged.advice == f"pad to {judged.best_size}" and judged.lost_us > 0
    assert found.misaligned > 0


def test_the_plan_does_what_the_diagnosis_says_and_then_nothing_more(odd, tmp_path):
    inventory, cliff_map, name = odd
    settings: dict[str, Any] = {"objective": "pad", "tokens": TOKENS}
    made = plan(inventory, cliff_map, **settings)
    choice = next(c for c in made.choices if c.dim == name)
    assert choice.after is None or (choice.after % 8 == 0 and choice.after > choice.before)
    sizes = {name: -(-choice.before // 8) * 8}
    realign(inventory, sizes, tmp_path / "padded")
    padded = scan(tmp_path / "padded")
    found = diagnose(padded, cliff_map, tokens=TOKENS)
    assert next(d for d in found.dims if d.name == name).verdict in ("safe", "unknown")
    again = plan(padded, planted_map_of(padded, tmp_path / "again", dtype="float32"), **settings)
    kept = next(c for c in again.choices if c.dim == name)
    assert kept.after is None or kept.after == kept.before


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
    cliff_map = swept_map(suite, tmp_path / "run", at_multiples_of_32)
    (rank,) = diagnose(inventory, cliff_map, tokens={64: 1.0}).dims
    assert inventory.dims[0].most == 144
    assert rank.verdict == "misaligned" and rank.best_size == 130 and rank.lost_us == 0
    assert rank.advice.startswith("keep") and "the dense weight's rank is 131" in rank.advice


def at_multiples_of_32(point: Point) -> float:
    n, k = point.dim["N"], point.dim["K"]
    rank = n if k == 256 else k
    return (2.0 + n * k / 1e4) * (1.0 if rank % 32 == 0 else 1.8)


def factor_pair(folder: Path, rank: int) -> Inventory:
    shapes = {f"{Q}.V.weight": (rank, 256), f"{Q}.U.weight": (256, rank)}
    return scan(checkpoint(folder, shapes))


def test_a_size_that_the_map_has_not_measured_moves_to_a_safe_one_with_a_warning(tmp_path):
    measured = factor_pair(tmp_path / "measured", 131)
    cliff_map = planted_map_of(measured, tmp_path / "run", dtype="float32")
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
