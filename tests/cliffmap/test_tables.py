"""Candidates for compressors: good by the same rule as everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

import gacprof
from gacprof.cliffmap.cliffmap import load_map, shipped_maps
from gacprof.cliffmap.tables import candidates
from gacprof.core.errors import GacprofError, MapError
from gacprof.core.sizes import TOLERANCE, seems_safe
from gacprof.diagnosing.explain import explain
from gacprof.diagnosing.safe_ranks import safe_ranks
from gacprof.diagnosing.source import open_source

ASVD = Path(__file__).parents[1] / "fixtures" / "checkpoints" / "asvd_mha_r1"
HEAD_DIM = {"operator": "attention", "dim": "head_dim"}


def test_candidates_are_the_nearest_safe_sizes() -> None:
    verdicts = candidates(107, "a100-published", **HEAD_DIM, count=1)
    assert [v.size for v in verdicts] == [96, 128]
    assert {v.verdict for v in verdicts} == {"safe"}
    two = candidates(128, "a100-published", **HEAD_DIM)
    assert [v.size for v in two] == [96, 128, 160, 192]


def test_candidates_of_several_maps_are_safe_on_all() -> None:
    both = candidates(107, ["a100-published", "h100-published"], **HEAD_DIM, count=99)
    apart = [
        {v.size for v in candidates(107, name, **HEAD_DIM, count=99)}
        for name in ("a100-published", "h100-published")
    ]
    assert {v.size for v in both} == apart[0] & apart[1]


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (107, {"dim": "N", "dtype": "bfloat16"}),
        (10_000, {"dim": "N"}),
        (107, {"operator": "no such"}),
    ],
)
def test_a_size_that_no_curve_covers_is_refused(size: int, options: dict[str, str]) -> None:
    with pytest.raises(MapError):
        candidates(size, "a100-published", **options)


def test_other_dims_tell_curves_apart() -> None:
    verdicts = candidates(4_050, "a100-published", dim="K", fixed={"M": 512})
    assert all(v.size % 16 == 0 for v in verdicts)


def test_the_last_size_of_a_curve_has_candidates() -> None:
    curves = load_map("cpu-example").curves_of("linear", "K", fixed={"M": 256})
    curve = max(curves, key=lambda curve: curve.sizes[-1].size)
    last, fixed = curve.sizes[-1].size, curve.axis.fixed
    verdicts = candidates(last, "cpu-example", dim="K", fixed=fixed)
    assert [v.size for v in verdicts] == curve.with_verdict("safe")[-2:]


def test_of_several_curves_that_of_a_prefill_answers_and_is_named() -> None:
    several = load_map("a100-published").curves_of("linear", "N")
    assert {curve.axis.fixed["M"] for curve in several} == {1, 512, 2048}
    assert all("M=512" in v.reason for v in candidates(4_050, "a100-published"))


@pytest.mark.parametrize("name", shipped_maps())
def test_what_is_known_at_some_token_counts_is_known_without_naming_one(name: str) -> None:
    source = load_map(name)
    for curve in source.curves_of("linear", "K"):
        if curve.axis.dtype != "float16" or curve.unusual.keys() - {"cache"}:
            continue
        tokens, other = curve.axis.fixed["M"], curve.axis.fixed["N"]
        for size in curve.axis.sizes[::16]:
            options: dict[str, Any] = {"dim": "K", "other": other, "dtype": "float16"}
            if explain(size, source, **options, tokens=[tokens]).now.latency_us:
                assert explain(size, source, **options).now.latency_us


@pytest.mark.parametrize("word", ["M=x", "M", "M=", "M=-1", "=512", "M=1.5", ""])
def test_a_word_that_fixes_no_dim_is_refused(word: str) -> None:
    with pytest.raises(MapError):
        candidates(4_050, "a100-published", dim="K", fixed=[word])


def test_words_fix_dims() -> None:
    by_words = candidates(4_050, "a100-published", dim="K", fixed=["M=512", "N=4096"])
    assert by_words == candidates(4_050, "a100-published", dim="K", fixed={"M": 512, "N": 4096})


@pytest.mark.parametrize(
    ("source", "dim", "shape"),
    [
        ("h100", "K", {"M": 1024, "N": 4096}),
        ("h100", "N", {"M": 1024, "K": 4096}),
        ("a100", "K", {"M": 64, "N": 1024}),
        ("rtx4090", "N", {"M": 64, "K": 1024}),
        ("rtx-pro-6000", "K", {"M": 8, "N": 48}),
        ("h200-measured", "K", {"M": 1024, "N": 4096}),
        ("a100-published", "K", {"M": 1, "N": 4096}),
    ],
)
def test_candidates_are_the_sizes_that_explain_calls_good(
    source: str, dim: Literal["N", "K"], shape: dict[str, int]
) -> None:
    tokens, other = shape.values()
    tolerance = open_source(source).tolerance
    for size in (3801, 3808, 3812, 3816, 3824, 3840, 3872, 4097, 4104):
        try:
            answer = explain(size, source, dim=dim, other=other, tokens=[tokens], dtype="float16")
            nearest = candidates(size, source, dim=dim, fixed=shape, dtype="float16")
        except MapError:
            continue  # no size around it was measured, or none is good
        if answer.now.verdict != "unknown":
            assert (size in [v.size for v in nearest]) == seems_safe(answer.now, tolerance)


def test_candidates_of_head_dims_are_those_that_explain_calls_good() -> None:
    for gpu in ("a100", "h100", "rtx5090"):
        good = {v.size for v in candidates(128, gpu, **HEAD_DIM, count=256)}
        for size in (31, 32, 40, 64, 72, 80, 96, 104, 160, 192, 256):
            now = explain(size, gpu, dim="head_dim").now
            assert (size in good) == seems_safe(now, TOLERANCE)


@pytest.mark.parametrize("gpu", ["a100", "h100", "rtx4090"])
def test_safe_ranks_are_sizes_that_explain_calls_good(gpu: str) -> None:
    ranks = safe_ranks((1024, 4096), gpu, dtype="float16", low=90, high=140)
    good = []
    for rank in range(90, 141):
        sides = [("N", 4096), ("K", 1024)]
        answers = [explain(rank, gpu, dim=dim, other=other).now for dim, other in sides]
        if all(seems_safe(answer, TOLERANCE) for answer in answers):
            good.append(rank)
    assert ranks == good


def test_a_plan_takes_candidates() -> None:
    plan = gacprof.plan(ASVD, "h100", objective="pad")
    assert plan.sizes
    for size in filter(None, plan.sizes.values()):
        assert size in [v.size for v in candidates(size, "h100", dim="K", count=1)]


def test_a_gpu_beside_a_map_leaves_what_both_call_good() -> None:
    shape = {"M": 1024, "N": 4096}
    options: dict[str, Any] = {"dim": "K", "fixed": shape, "dtype": "float16"}
    options |= {"count": 999}
    measured = {v.size for v in candidates(4096, "h200-measured", **options)}
    both = {v.size for v in candidates(4096, ["h200-measured", "h200"], **options)}
    assert both and both == {size for size in measured if size % 16 == 0}


@pytest.mark.parametrize(
    ("size", "gpu", "options"),
    [
        (107, "h1000", {}),
        (107, "h100", {"dim": "M"}),
        (107, "h100", {"fixed": {"Z": 3}}),
        (107, "h100", {"dim": "N", "fixed": {"N": 8}}),
        (107, "h100", {"dtype": "int4"}),
        (0, "h100", {}),
        (107, "h100", {"count": 0}),
    ],
)
def test_what_rules_do_not_cover_is_refused(size: int, gpu: str, options: dict[str, Any]) -> None:
    with pytest.raises(GacprofError):
        candidates(size, gpu, **options)
