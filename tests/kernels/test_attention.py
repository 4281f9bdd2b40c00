"""SDPA's backends: by rules as frozen for 2.11 to 2.13, as recorded after."""

from __future__ import annotations

import gzip
import json
import re
from itertools import product
from pathlib import Path

import pytest

from gacprof.kernels.attention import (
    ATTENTION_TABLES,
    AttentionCall,
    answer_of,
    backend,
    backend_by_rules,
    judge_head_dim,
)
from gacprof.kernels.rules import Rules

TESTS = Path(__file__).parents[1]
RELEASES = ATTENTION_TABLES["releases"]
GOLDENS = json.loads(gzip.decompress((TESTS / "goldens" / "rules.json.gz").read_bytes()))
LETTERS = {"safe": "s", "misaligned": "m", "undecided": "u", "unknown": "-"}


def frozen_choices(release: str) -> list[tuple[AttentionCall, str]]:
    """Calls of head_dim 1 on some architecture, with the first letter of each head_dim's choice."""
    choices = []
    for key, runs in GOLDENS["sdpa"].items():
        arch, torch, cudnn, dtype, mask, heads, lengths = key.split("|")
        if torch != f"torch {release}" or "None" in cudnn:
            continue
        letters = "".join(c * int(n) for n, c in re.findall(r"(\d+)([fecm])", runs.split("?")[0]))
        q_heads, kv_heads = map(int, heads.removeprefix("heads ").split("/"))
        q_len, kv_len = map(int, re.findall(r"\d+", lengths))
        is_masked, is_causal = not mask.startswith("mask none"), mask.endswith("causal")
        shape = (1, q_heads, kv_heads, q_len, kv_len, is_masked, is_causal)
        choices.append((AttentionCall("none", arch, release, dtype, *shape), letters))
    return choices


@pytest.mark.parametrize("release", RELEASES[:3])
def test_choices_are_as_before(release: str) -> None:
    choices = frozen_choices(release)
    assert choices
    for call, letters in choices[::4]:
        for head_dim in (*range(1, 140, 3), 160, 192, 255, 256):
            at = AttentionCall(**{**vars(call), "head_dim": head_dim})
            assert backend_by_rules(at)[0] == letters[head_dim - 1], at


@pytest.mark.parametrize("gpu, arch", [("a100", "sm80"), ("h100", "sm90"), ("b200", "sm100")])
def test_rules_and_records_of_the_newest_release_agree(gpu: str, arch: str) -> None:
    kinds = product(("bfloat16", "float32"), (32, 8), (1, 1024), (True, False))
    for dtype, kv_heads, q_len, mask in kinds:
        for head_dim in (*range(1, 256, 7), 64, 72, 104, 128, 192, 256):
            shape = (head_dim, 32, kv_heads, q_len, 1024, mask, False)
            call = AttentionCall(gpu, arch, RELEASES[-1], dtype, *shape)
            assert answer_of(call) is not None
            assert backend(call) == backend_by_rules(call), call


def test_head_dims_are_judged_as_before() -> None:
    for key, answers in GOLDENS["attention"].items():
        gpu, torch, dtype, lengths, heads = key.split("|")
        if torch != "2.13.0" or "causal" not in lengths or gpu not in ("a100", "h100", "rtx5090"):
            continue
        arch = GOLDENS["gpus"][gpu]["arch"]
        q_heads, kv_heads = map(int, heads.removeprefix("heads ").split("/"))
        for head_dim in (40, 64, 80, 96, 100, 104, 107, 112, 120, 128, 136, 192, 200, 256):
            call = AttentionCall("none", arch, torch, dtype, head_dim, q_heads, kv_heads)
            letter = LETTERS[judge_head_dim(call).verdict]
            assert letter == answers["verdict"][head_dim - 1], (key, head_dim)


def test_a_head_dim_of_107_is_misaligned_and_flash_all_the_same() -> None:
    verdict = Rules("a100").head_dim(107, 32, 32, "float16")
    assert verdict.verdict == "misaligned"
    assert "flash" in verdict.reason
