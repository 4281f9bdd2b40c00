"""Sizes of GPUs that are not at hand: by tiers, equal to the frozen verdicts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from gacprof.core.errors import ConfigError
from gacprof.core.sizes import Gemm, Interval, Side, Use
from gacprof.devices.datasheet import GPUS
from gacprof.kernels.rules import Rules, gpu_rules, tiers_of

TESTS = Path(__file__).parents[1]
GOLDENS = json.loads(gzip.decompress((TESTS / "goldens" / "rules.json.gz").read_bytes()))
LETTERS = {"safe": "s", "misaligned": "m", "undecided": "u", "unknown": "-"}


def use_of(axis: str, other: int, tokens: int, dtype: str, ranks: int = 1) -> Use:
    sides = {axis: Side(0, 1, ranks)}
    n, k = sides.get("N", Side(other)), sides.get("K", Side(other))
    return Use(Gemm("w", other, other), n, k, tokens, dtype)


@pytest.mark.parametrize("gpu", sorted(GOLDENS["gpus"]))
def test_products_are_judged_as_before(gpu: str) -> None:
    """Int8 with few rows aside: those who serve it pad the rows that torch._int_mm refuses."""
    rules = Rules(gpu)
    for key, answers in GOLDENS["products"].items():
        name, dtype, tokens, *rest = key.split("|")
        if name != gpu or not rest or (dtype == "int8" and tokens != "M=1024"):
            continue
        axis, rows = rest.pop(0), int(tokens.removeprefix("M="))
        first, other = 1, 4096
        if rest:
            other, first = int(rest[0].removeprefix("N=")), int(rest[1].split("-")[0])
        sizes = range(first, first + len(answers["verdict"]))
        verdicts = rules.judge([use_of(axis, other, rows, dtype)], sizes)
        assert "".join(LETTERS[v.verdict] for v in verdicts) == answers["verdict"], key
        assert all(v.penalty is None and v.latency_us is None for v in verdicts)


@pytest.mark.parametrize("gpu", ["a100", "h100", "rtx4090", "rtx5090"])
@pytest.mark.parametrize("ranks", [1, 4])
def test_sizes_on_offer_are_those_of_the_best_tier(gpu: str, ranks: int) -> None:
    rules = Rules(gpu)
    uses = [use_of("N", 4096, 1024, "float16", ranks), use_of("K", 4096, 1024, "float16", ranks)]
    verdicts = rules.judge(uses, range(100, 400))
    best = [verdict.size for verdict in verdicts if verdict.verdict != "misaligned"]
    assert list(rules.sizes(uses, 100, 399)) == best


def test_a_rank_of_107_is_padded_to_128_on_a_hopper() -> None:
    verdicts = Rules("h100").judge([use_of("K", 4096, 1024, "bfloat16")], range(107, 200))
    assert verdicts[0].verdict == "misaligned"
    target = next((v for v in verdicts if v.size > 107 and v.verdict == "safe"), None)
    assert target is not None and target.size == 128


def test_another_side_that_holds_a_product_back_leaves_it_undecided() -> None:
    verdict = Rules("h100").judge([use_of("K", 4095, 1024, "float16")], [128])[0]
    assert verdict.verdict == "undecided"


def test_what_ranks_cannot_share_is_misaligned() -> None:
    verdict = Rules("a100").judge([use_of("N", 4096, 1024, "float16", 8)], [1001])[0]
    assert verdict.verdict == "misaligned"


def test_latencies_are_those_of_others_if_any() -> None:
    class Times:
        provenance = "a stopwatch"

        def latency_us(self, gemm: Gemm, tokens: int, dtype: str) -> Interval:
            return Interval(1.0, 2.0, 3.0)

    product = Gemm("w", 4096, 4096)
    assert Rules("h100").latency_us(product, 1, "float16") is None
    rules = Rules("h100", times=Times())
    assert rules.latency_us(product, 1, "float16") == Interval(1.0, 2.0, 3.0)
    assert "stopwatch" in rules.provenance


@pytest.mark.parametrize("gpu", sorted(GPUS))
def test_every_gpu_of_the_data_sheet_has_tiers(gpu: str) -> None:
    rows = gpu_rules(gpu)
    assert {row["dtype"] for row in rows} == set(GOLDENS["gpus"][gpu]["dtypes"])
    assert all(row["source"] and row["why"] for row in rows)


def test_what_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError):
        Rules("h1000")
    with pytest.raises(ConfigError):
        Rules("h100", torch="1.8")
    with pytest.raises(ConfigError):
        tiers_of("sm9")
    verdict = Rules("a100").judge([use_of("N", 4096, 1024, "float8_e4m3")], [128])[0]
    assert verdict.verdict == "unknown"
