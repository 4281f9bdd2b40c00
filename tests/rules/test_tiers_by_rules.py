"""What the rules say, on the cases that are known from libraries, code and threads."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from gacprof import operators
from gacprof.core.errors import MapError
from gacprof.core.points import Point
from gacprof.devices.datasheet import sheets
from gacprof.rules import NoRuleError, RefusedError, serve, target

HEADS = {"heads": 32, "q_len": 2048}


def best_head_dims(gpu: str, torch: str, **flags: Any) -> list[int]:
    about, found = target(gpu, torch), []
    for d in range(8, 257):
        point = operators.point("attention", HEADS | {"head_dim": d}, "float16", flags)
        served = serve(point, about)
        if served.tier == 1 and not served.open:
            found.append(d)
    return found


def test_half_products_have_three_tiers_by_k_and_n(tier: Any) -> None:
    for gpu in ("a100", "h100", "h200", "b200", "a10", "rtx5090"):
        tiers = [tier(gpu, "linear", M=512, N=4096, K=k) for k in (4096, 104, 106, 107)]
        assert tiers == [1, 1, 2, 3], gpu
        assert tier(gpu, "linear", M=512, N=107, K=4096) == 3


def test_the_published_cost_is_the_architectures_own_and_of_k() -> None:
    def relative(gpu: str, **dims: int) -> float | None:
        point = operators.point("linear", {"M": 512, "N": 4096} | dims, "float16")
        return serve(point, target(gpu, "2.11.0")).relative

    assert [relative("h100", K=k) for k in (104, 106, 107)] == [1.0, 2.1, 3.3]
    assert [relative("h200", K=k) for k in (104, 106, 107)] == [1.0, 2.1, 3.3]
    assert [relative("a100", K=k) for k in (104, 106, 107)] == [1.0, 1.6, 3.0]
    for gpu in ("a10", "l40s", "rtx4090", "rtx5090", "b200", "gb200"):
        assert [relative(gpu, K=k) for k in (104, 106, 107)] == [None] * 3
    assert relative("h100", K=4096, N=107) is None  # nobody published N's
    assert relative("h100", K=107, M=1) is None


def test_ada_wants_sixteens_so_that_2056_is_not_of_the_best_tier(tier: Any) -> None:
    """pytorch/pytorch#181718: on an RTX 4090 2056 (8 mod 16) is slower than 2055 and 2040."""
    at = {n: tier("rtx4090", "linear", "bfloat16", M=n, N=n, K=n) for n in (2048, 2055, 2056)}
    assert at[2048] == 1 and at[2056] == 2 and at[2055] > 1


def test_consumer_blackwell_does_not_split_k_of_few_rows(tier: Any) -> None:
    """sgl-project/sglang#37491: M·N·K below 2^21, N=48, K=5120: a cliff from M=8 to 9."""
    tiers = [tier("rtx5090", "linear", "bfloat16", M=m, N=48, K=5120) for m in (8, 9)]
    assert tiers[0] > tiers[1] == 1
    assert tier("b200", "linear", "bfloat16", M=8, N=48, K=5120) == 1


def test_eight_bit_types_demand_and_prefer(tier: Any) -> None:
    def refused(gpu: str, dtype: str, **dims: int) -> bool:
        try:
            tier(gpu, "quantised", dtype, **dims)
        except RefusedError:
            return True
        return False

    assert refused("h100", "float8_e4m3", M=512, N=4096, K=104)
    assert not refused("h100", "float8_e4m3", M=512, N=4096, K=112)
    assert refused("a100", "int8", M=16, N=4096, K=128)  # torch._int_mm: more than 16 rows
    assert tier("a100", "quantised", "int8", M=32, N=4096, K=120) == 2
    assert tier("a100", "quantised", "int8", M=32, N=4096, K=128) == 1


def test_head_dims_are_the_templates_of_the_release() -> None:
    assert best_head_dims("a100", "2.9.1") == [32, 64, 96, 128, 160, 192, 256]
    assert best_head_dims("a100", "2.11.0") == [32, 64, 96, 128, 192, 256]
    assert best_head_dims("a100", "2.6.0") == [32, 64, 96, 128, 160, 192, 224, 256]


def test_cudnn_goes_first_on_hopper_with_the_cudnn_of_torch_2_11() -> None:
    assert best_head_dims("h100", "2.10.0") == [32, 64, 96, 128, 160, 192, 256]
    assert best_head_dims("h100", "2.11.0") == [128]
    point = operators.point("attention", HEADS | {"head_dim": 104}, "float16")
    assert serve(point, target("h100", "2.11.0")).open  # its steps are not known
    assert best_head_dims("rtx4090", "2.11.0") == [32, 64, 96, 128, 192, 256]


def test_112_is_worse_than_128_and_107_worse_than_both(tier: Any) -> None:
    tiers = [tier("a100", "attention", torch="2.9.1", head_dim=d, **HEADS) for d in (128, 112, 107)]
    assert tiers == [1, 2, 3]


def test_with_a_mask_a_head_dim_that_is_no_eight_falls_to_math(tier: Any) -> None:
    masked = {"mask": "float"}
    assert tier("h100", "attention", torch="2.9.1", flags=masked, head_dim=104, **HEADS) == 1
    point = operators.point("attention", HEADS | {"head_dim": 107}, "float16", masked)
    served = serve(point, target("h100", "2.9.1"))
    assert served.tier > 1 and served.mechanism == "SDPA math"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_triton_loads_rows_as_the_rule_says_on_every_architecture_of_the_sheets(tier: Any) -> None:
    from gacprof.extras.evidence import static

    archs = sorted({sheet.arch for sheet in sheets().values()})
    for row in static.table(["row_copy"], archs, [16, 1]):
        assert row.load_bytes == (16 if row.divisible_by == 16 else 2), row
    assert [tier("a10", "row_copy", rows=64, K=k) for k in (112, 104)] == [1, 2]


@pytest.mark.parametrize("release", ["2.7", "2.7.1", "3.0", "next"])
def test_a_release_whose_wheel_was_not_read_is_refused(release: str) -> None:
    with pytest.raises(MapError, match=r"not known.*2\.6\.0, .*2\.13\.0"):
        target("h100", release)


def test_a_release_may_be_short_or_carry_its_build() -> None:
    assert target("h100", "2.11").torch == target("h100", "2.11.0+cu130").torch == "2.11.0"


def test_what_no_rule_covers_says_so() -> None:
    about = target("a100", "2.11")
    with pytest.raises(MapError, match=r"no rules for fp8: there are .*int8"):
        about.dtype("fp8")
    with pytest.raises(NoRuleError, match="no rule for the operator 'own'"):
        serve(Point.of("own", {"K": 8}, "float16", {}), about)
