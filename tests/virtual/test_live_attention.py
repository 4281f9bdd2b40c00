"""Attention's tiles and splits beside launches of an installed PyTorch at random questions."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from gacprof.kernels.dispatch import load_table, shipped_tables
from gacprof.virtual import run
from gacprof.virtual.build import find_torch

REPOSITORY = Path(__file__).parents[2]
ASKED = """
import json, sys
sys.path.append(sys.argv[1])
import torch
from torch.nn.functional import scaled_dot_product_attention
from gacprof.virtual.questions import attention_answer, attention_inputs
from gacprof.virtual.run import clear, launches
answers = []
for call in json.load(open(sys.argv[2])):
    lengths = call["batch"], call["q_len"], call["kv_len"]
    heads = call["heads"], call["kv_heads"]
    query, key, _ = attention_inputs(call["head_dim"], call["dtype"], "none", lengths, heads)
    gqa = call["heads"] > call["kv_heads"]
    clear()
    try:
        scaled_dot_product_attention(query, key, key, is_causal=call["causal"], enable_gqa=gqa)
        answers.append(attention_answer(launches()))
    except RuntimeError:  # cuDNN's kernel, which a virtual GPU cannot run
        answers.append("refused")
json.dump(answers, open(sys.argv[3], "w"))
"""


def questions(gpu: str) -> list[dict[str, Any]]:
    """Calls of all head_dims, with few and many heads, queries and keys."""
    draw = random.Random(gpu)
    calls = []
    for _ in range(1000):
        kv_heads, groups = draw.choice((1, 2, 8, draw.randint(1, 16))), draw.choice((1, 1, 3, 8))
        kv_len = draw.choice((1, draw.randint(2, 4000)))
        q_len = draw.choice((1, kv_len, draw.randint(2, 300)))
        call = {"batch": draw.randint(1, 8), "heads": kv_heads * groups}
        call |= {"kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len}
        call |= {"head_dim": draw.randint(1, 256), "causal": draw.random() < 0.5}
        calls.append(call | {"dtype": draw.choice(("bfloat16", "float16"))})
    return calls


@pytest.mark.parametrize("gpu", ["a100", "h100", "b200", "rtx4090", "l4"])
def test_no_tile_and_no_split_is_wrong(gpu: str, cuda_python: Path, tmp_path: Path) -> None:
    release = find_torch(cuda_python).release
    if (gpu, release) not in shipped_tables():
        pytest.skip(f"no table of torch {release} ships")
    table, calls = load_table(gpu, release), questions(gpu)
    asked, answered = tmp_path / "questions.json", tmp_path / "answers.json"
    asked.write_text(json.dumps(calls), encoding="utf-8")
    assert (
        run.virtual(
            gpu, [str(cuda_python), "-c", ASKED, str(REPOSITORY), *map(str, (asked, answered))]
        )
        == 0
    )
    splits = set()
    for call, launched in zip(calls, json.loads(answered.read_text()), strict=True):
        answer = table.sdpa(**call)
        assert (answer.backend == "flash") == isinstance(launched, dict), call
        if answer.backend == "flash":
            expected = [launched["template"], *launched["tile"], launched["warps"]]
            expected += [launched["splits"]] if launched["splits"] > 1 else []
            numbers = re.findall(r"\d+", answer.kernel.removeprefix("FlashAttention-2"))
            assert [*map(int, numbers)] == expected, call
            splits.add(launched["splits"])
    assert len(splits) > 5
