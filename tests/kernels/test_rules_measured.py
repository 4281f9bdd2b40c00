"""What rules say of an H200's products, beside what was measured on one."""

from __future__ import annotations

from collections import Counter

import pytest

from gacprof.cliffmap.cliffmap import Curve, load_map
from gacprof.core.sizes import Gemm, Side, SizeVerdict, Use, seems_safe
from gacprof.kernels.rules import Rules

RULES = Rules("h200", "2.11.0")
CURVES = [
    curve
    for name in ("h200-measured", "h200-paper")
    for curve in load_map(name).curves
    if curve.axis.dim in ("N", "K") and curve.axis.operator in ("linear", "quantised")
    # rules are those of F.linear, of memory that begins on 16 bytes
    if curve.axis.flags.get("layout", "tn") == "tn" and not curve.axis.flags.get("offset")
]


def by_rules(curve: Curve) -> list[tuple[SizeVerdict, SizeVerdict]]:
    """The verdict by rules and the measured one on each size."""
    axis = curve.axis
    sides = {name: Side(axis.fixed.get(name, 0)) for name in "NK"} | {axis.dim: Side(times=1)}
    gemm = Gemm("", axis.fixed.get("N", 1), axis.fixed.get("K", 1))
    use = Use(gemm, sides["N"], sides["K"], axis.fixed["M"], axis.dtype)
    return list(zip(RULES.judge([use], axis.sizes), curve.sizes, strict=True))


def test_no_size_is_misaligned_by_rules_and_safe_by_the_clock() -> None:
    pairs = Counter((rule.verdict, seen.verdict) for c in CURVES for rule, seen in by_rules(c))
    assert pairs["misaligned", "misaligned"] > 2000
    assert not pairs["misaligned", "safe"] + pairs["safe", "misaligned"]


def test_a_multiple_of_64_may_lose_a_tenth_so_rules_call_none_safe() -> None:
    [curve] = [c for c in CURVES if c.axis.dim == "N" and c.axis.sizes[-1] > 4600]
    seen = curve.by_size[4480]
    assert seen.verdict == "misaligned" and seen.penalty is not None and seen.penalty.low > 0.05


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "float8_e4m3", "tf32"])
def test_rows_of_k_that_split_sectors_are_not_offered_and_mostly_slower(dtype: str) -> None:
    penalties = []
    for curve in CURVES:
        if curve.axis.dim == "K" and curve.axis.dtype == dtype and curve.axis.fixed["M"] > 1:
            for rule, seen in by_rules(curve):
                if rule.cause == "alignment" and rule.verdict == "undecided" and seen.penalty:
                    assert not seems_safe(rule, RULES.tolerance)
                    penalties.append(seen.penalty.value)
    assert len(penalties) >= 2
    assert sum(penalty > 0.02 for penalty in penalties) > 0.75 * len(penalties)


def test_n_of_8_is_enough_where_results_are_wider_than_operands() -> None:
    [curve] = [c for c in CURVES if c.axis.dim == "N" and c.axis.dtype == "int8"]
    pairs = [(rule, seen) for rule, seen in by_rules(curve) if rule.size % 16 == 8]
    assert all(seems_safe(rule, RULES.tolerance) for rule, _ in pairs)
    assert {seen.verdict for _, seen in pairs} == {"safe"}


def test_head_dims_that_cudnn_mostly_serves_worse_are_not_offered() -> None:
    offered = [
        size
        for size in range(64, 257, 8)
        if seems_safe(RULES.head_dim(size, 32, 32, "float16"), RULES.tolerance)
    ]
    assert offered == list(range(64, 257, 16))
    curves = [
        curve
        for curve in load_map("h200-measured").curves
        if curve.axis.dim == "head_dim" and curve.axis.flags["backend"] == "auto"
    ]
    penalties = [
        verdict.penalty.value
        for curve in curves
        for verdict in curve.sizes
        if verdict.size % 16 == 8 and verdict.penalty
    ]
    assert len(penalties) > 30 and min(penalties) > 0.02
