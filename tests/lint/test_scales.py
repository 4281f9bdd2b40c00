"""Which scale stands beside which weight: cases run or read, and tensors sliced in full."""

from __future__ import annotations

import random
from math import ceil

import pytest

from gacprof.lint.deployment import deploy
from gacprof.lint.judge import Judgement
from gacprof.workload.scales import Entries, Part, SliceError, misplaced_weights

LLAMA = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32000,
    "num_hidden_layers": 2,
}
MOE = {**LLAMA, "model_type": "qwen3_moe", "num_experts": 16, "num_experts_per_tok": 4}


@pytest.mark.parametrize(
    "inputs, group, ranks, misplaced",
    [
        (192, 64, 2, 96),  # run in vLLM: the output was 26 % off
        (256, 64, 2, 0),
        (256, 64, 4, 0),
        (192, 32, 2, 0),
        (13696, 128, 2, 3520),  # Qwen1.5-14B, one group in 107 is split
        (13824, 128, 2, 0),  # as its publisher padded it
        (29568, 128, 2, 7488),  # Qwen2.5-72B
        (29568, 128, 8, 25536),
        (29696, 128, 8, 0),
        (320, 64, 2, 128),  # run in vLLM as AWQ by Marlin, unchecked: 38 % off
        (384, 64, 4, 288),
        (384, 64, 2, 0),
        (512, 64, 4, 0),
        (8256, 128, 1, 64),  # the last, short group has no scale
    ],
)
def test_groups_that_straddle_ranks(inputs: int, group: int, ranks: int, misplaced: int) -> None:
    assert misplaced_weights([Part(inputs // ranks, ranks)], group, entries="floor") == misplaced


@pytest.mark.parametrize(
    "parts, refusal",
    [
        # gate and up of DeepSeek-V2's dense layer: vLLM's own words
        ([Part(10944), Part(10944)], "start (86) + length (86) exceeds dimension size (171)"),
        # q, k and v of 2, 1 and 1 heads of 64 on each of 8 ranks: vLLM's own words
        (
            [Part(128, 8), Part(64, 8), Part(64, 8)],
            "start (2) + length (1) exceeds dimension size (2)",
        ),
        # k of MiMo-V2-Flash on the last of 4 ranks
        (
            [Part(3072, 4), Part(192, 4), Part(128, 4)],
            "start (6) + length (2) exceeds dimension size (6)",
        ),
        ([Part(14784, 2)], "start (116) + length (116) exceeds dimension size (231)"),
    ],
)
def test_blocks_that_do_not_fit(parts: list[Part], refusal: str) -> None:
    with pytest.raises(SliceError) as raised:
        misplaced_weights(parts, 128, entries="ceil")
    assert str(raised.value) == refusal


def test_the_last_part_may_end_within_a_block() -> None:
    assert misplaced_weights([Part(320)], 128, entries="ceil") == 0
    assert misplaced_weights([Part(4096), Part(1024), Part(1000)], 128, entries="ceil") == 0


def test_a_side_that_ranks_do_not_share_holds_all_scales() -> None:
    with pytest.raises(SliceError, match="17 scales are stored, and 16 fit"):
        misplaced_weights([Part(2112)], 128, entries="floor", is_sliced=False)
    assert misplaced_weights([Part(2048)], 128, entries="floor", is_sliced=False) == 0


@pytest.mark.parametrize("entries", ["floor", "ceil"])
def test_tensors_sliced_in_full_say_the_same(entries: Entries) -> None:
    draw = random.Random(0)
    misplaced = 0
    for _ in range(500):
        ranks = draw.choice([1, 2, 3, 4, 8])
        fused = 1 if entries == "floor" else draw.choice([1, 2, 3])
        shared_by = [ranks, draw.choice([1, ranks]), draw.choice([1, ranks])]  # or repeated
        parts = [Part(draw.randrange(1, 40), by) for by in shared_by[:fused]]
        block = draw.choice([2, 4, 8])
        expected = sliced_in_full(parts, ranks, block, entries)
        if expected is None:
            with pytest.raises(SliceError):
                misplaced_weights(parts, block, entries=entries)
        else:
            assert misplaced_weights(parts, block, entries=entries) == expected
            misplaced += expected
    assert misplaced


def sliced_in_full(parts: list[Part], ranks: int, block: int, entries: Entries) -> int | None:
    """The weights that get another scale, None where a slice is too short: all scales in a list."""

    def number(size: int) -> int:
        return size // block if entries == "floor" else ceil(size / block)

    misplaced = 0
    for rank in range(ranks):
        size = sum(part.size for part in parts)
        tensor: list[object] = [None] * number(size)
        owners: list[object] = []
        for index, part in enumerate(parts):
            share = rank * part.ranks // ranks
            stored = [(index, place // block) for place in range(part.size * part.ranks)][::block]
            count, place = number(part.size), number(len(owners))
            scales = stored[share * count : share * count + count]
            if len(scales) < count or place + count > len(tensor):
                return None
            tensor[place : place + count] = scales
            mine = range(share * part.size, (share + 1) * part.size)
            owners += [(index, weight // block) for weight in mine]
        tensor += [None] * len(owners)
        misplaced += sum(tensor[place // block] != owner for place, owner in enumerate(owners))
    return misplaced


def judged(name: str, config: dict[str, object], **options: object) -> Judgement:
    judgements = deploy(config, **options).judgements()  # type: ignore[arg-type]
    return next(judgement for judgement in judgements if judgement.product.name == name)


def test_the_verdict_says_how_much_is_wrong() -> None:
    config = {**LLAMA, "intermediate_size": 13696}
    down = judged("down", config, gpu="a100", tp=2, quantisation="gptq-g128")
    assert down.outcome == "wrong" and down.multiples["K"] % 128 == 0
    assert any("3,520 of 13,696 inputs" in finding.says for finding in down.findings)


@pytest.mark.parametrize(
    "quantisation, width, tp, says",
    [
        ("awq-g128", 29568, 8, "The input size is not aligned"),
        ("int4-g32", 352, 2, "176 is not divisible by group_size 32"),
        ("fp8-block", 384, 2, "input_size_per_partition = 192 is not divisible"),
        ("fp8-block", 29568, 2, "input_size_per_partition = 14784 is not divisible"),
    ],
)
def test_what_is_checked_is_refused(quantisation: str, width: int, tp: int, says: str) -> None:
    config = {**LLAMA, "intermediate_size": width}
    down = judged("down", config, gpu="a100", tp=tp, quantisation=quantisation)
    assert down.outcome == "refused"
    assert any(says in finding.says for finding in down.findings)


@pytest.mark.parametrize(
    "quantisation, tp, outcome, says",
    [
        ("fp8-block", 1, "refused", "start (86) + length (86)"),
        ("fp8-block", 2, "wrong", "2,784 of 21,888 outputs"),
        # compressed-tensors' are checked
        ("ct-fp8-block", 2, "refused", "output_partition_size = 5472"),
    ],
)
def test_gate_and_up_in_blocks(quantisation: str, tp: int, outcome: str, says: str) -> None:
    config = {**LLAMA, "intermediate_size": 10944}
    gate_up = judged("gate_up", config, gpu="h100", tp=tp, quantisation=quantisation)
    assert gate_up.outcome == outcome
    assert any(says in finding.says for finding in gate_up.findings)


@pytest.mark.parametrize("quantisation", ["fp8-block", "gptq-g128"])
@pytest.mark.parametrize("width, tp, outcome", [(704, 2, "refused"), (1408, 4, "falls back")])
def test_experts_take_halved_blocks_of_whole_ones_alone(
    quantisation: str, width: int, tp: int, outcome: str
) -> None:
    config = {**MOE, "intermediate_size": 4096, "moe_intermediate_size": width}
    down = judged("moe.w2", config, gpu="h100", tp=tp, quantisation=quantisation)
    assert down.outcome == outcome
