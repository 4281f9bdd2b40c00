"""Attention's kernel by heads, batch and lengths, beside recorded launches."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from gacprof.core.errors import ConfigError, GacprofError
from gacprof.diagnosing.explain import explain
from gacprof.kernels.attention import AttentionCall
from gacprof.kernels.dispatch import DispatchTable, SdpaAnswer, load_table, shipped_tables
from gacprof.kernels.flash import key_parts
from gacprof.virtual.ask import dispatch

RECORDS = Path(__file__).parents[1] / "fixtures" / "dispatch" / "sdpa.csv"
LAUNCHES = [*csv.DictReader(RECORDS.read_text(encoding="utf-8").splitlines())]
GPUS = sorted({row["gpu"] for row in LAUNCHES})
SIZES = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim")


def table_of(gpu: str, release: str) -> DispatchTable:
    table = load_table(gpu, release)
    assert table is not None
    return table


def question(row: dict[str, str]) -> dict[str, Any]:
    """A recorded call in the words of ``DispatchTable.sdpa``."""
    words: dict[str, Any] = {name: int(row[name]) for name in SIZES}
    return words | {"dtype": row["dtype"], "mask": row["mask"], "causal": row["causal"] == "True"}


def numbers(answer: SdpaAnswer | None) -> list[str]:
    """The numbers of FlashAttention-2's kernel: template, tile, warps and, if any, parts."""
    assert answer is not None and answer.kernel is not None
    return re.findall(r"\d+", answer.kernel.removeprefix("FlashAttention-2"))


@pytest.mark.parametrize("gpu", GPUS)
def test_the_kernel_of_a_call_is_the_launched_one(gpu: str) -> None:
    for row in LAUNCHES:
        if row["gpu"] != gpu:
            continue
        answer = table_of(gpu, "2.13.0").sdpa(**question(row))
        assert answer is not None
        assert answer.backend == row["backend"], row
        if answer.backend == "flash":
            launched = [row["template"], row["block_m"], row["block_n"], row["warps"]]
            if row["parts"] != "1":
                launched.append(row["parts"])
            assert numbers(answer) == launched, row
        else:
            assert (answer.kernel or "") == row["kernel"], row


@pytest.mark.parametrize("lacking", ["batch", "heads"])
def test_without_heads_and_batch_the_template_alone_is_named(lacking: str) -> None:
    for row in LAUNCHES:
        words = question(row)
        if row["backend"] != "flash":
            continue
        gqa = words["heads"] != words["kv_heads"]
        del words[lacking]
        answer = table_of(row["gpu"], "2.13.0").sdpa(**words, gqa=gqa)
        assert numbers(answer) == [row["template"]], row


@pytest.mark.parametrize(("gpu", "release"), shipped_tables())
def test_keys_are_split_as_every_table_recorded(gpu: str, release: str) -> None:
    table = table_of(gpu, release)
    section = table.sections["fa2"]
    for dtype, mask, causal, gqa, shape in section.keys:
        batch, q_len, kv_len = section.common["shapes"][shape]
        grid = {"batch": batch, "heads": 32, "kv_heads": 8 if gqa else 32}
        for head_dim in (1, 32, 64, 65, 96, 128, 129, 192, 193, 256):
            recorded = section.lookup(head_dim, dtype, mask, causal, gqa, shape)
            if recorded == "refused":
                continue
            parts = key_parts(head_dim, q_len, kv_len, sms=table.profile["sms"], **grid)
            assert parts == recorded["splits"]
            same = table.fa2(head_dim, dtype, "decode" if parts > 1 else "prefill", gqa=gqa)
            if parts > 1 or not causal:
                assert same is not None
                assert (same["tile"], same["warps"]) == (recorded["tile"], recorded["warps"])


def test_one_query_that_is_causal_has_a_kernel() -> None:
    grid = {"batch": 4, "heads": 16}
    causal = table_of("h100", "2.14").sdpa(149, q_len=1, kv_len=1, causal=True, **grid)
    assert causal == table_of("h100", "2.14").sdpa(149, q_len=1, kv_len=1, **grid)
    assert len(numbers(causal)) == 4


@pytest.mark.parametrize(("heads", "kv_heads"), [(5, 4), (4, 8), (8, 3)])
def test_key_heads_that_do_not_divide_are_refused(heads: int, kv_heads: int) -> None:
    with pytest.raises(ConfigError):
        table_of("a100", "2.13").sdpa(64, heads=heads, kv_heads=kv_heads, batch=1)
    with pytest.raises(ConfigError):
        AttentionCall("a100", "sm80", "2.13.0", "float16", 64, heads, kv_heads)
    with pytest.raises(ConfigError):
        explain(64, "a100", dim="head_dim", heads=heads, kv_heads=kv_heads)


def test_explain_names_the_tile_of_its_heads() -> None:
    few, many = (explain(107, "a100", dim="head_dim", heads=heads) for heads in (8, 32))
    assert "tile 64 × 128" in few.now.kernel  # keys split, as launched
    assert "tile 128 × 64" in many.now.kernel
    assert few.warnings


def test_a_release_that_has_no_table_is_named() -> None:
    with pytest.raises(GacprofError, match=r"h100 with torch 2\.16"):
        dispatch("h100", release="2.16")
