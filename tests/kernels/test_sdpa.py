"""The rule model answers as PyTorch does, by its code and by the published measurements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gacprof.core.errors import MapError, MeasurementError
from gacprof.core.points import Point
from gacprof.kernels.sdpa import Question, ask, choose_backend, question_of


def asked(head_dim: int, **changes: Any) -> Question:
    """The papers' call: batch 4, 32 heads, 2048 tokens, fp16 on an A100 with torch 2.9.1."""
    shape = (4, 32, 2048, head_dim)
    base = Question("sm80", shape, shape, shape, "float16", "2.9.1", 91002)
    return replace(base, **changes)


@pytest.mark.parametrize("arch", ["sm80", "sm90", "sm120"])
@pytest.mark.parametrize("head_dim", [64, 107, 255, 256])
def test_dense_half_precision_is_flash_whatever_the_head_dim(arch: str, head_dim: int) -> None:
    choice = choose_backend(asked(head_dim, arch=arch))
    assert choice.backend == "flash"
    assert choice.pads_to == (None if head_dim % 8 == 0 else -(-head_dim // 8) * 8)


def test_table_b1_which_backend_can_serve_at_all() -> None:
    """Forced MEM_EFFICIENT fails at 107 and only there."""
    sizes = (96, 104, 107, 112, 120, 128)
    assert [d for d in sizes if "efficient" in choose_backend(asked(d)).refusals] == [107]
    assert "no multiple of 8" in choose_backend(asked(107)).refusals["efficient"]


GROUPED = {"k": (4, 8, 2048, 128), "v": (4, 8, 2048, 128)}


def of(torch: str, cudnn: int, arch: str) -> dict[str, Any]:
    return {"torch": torch, "cudnn": cudnn, "arch": arch}


@pytest.mark.parametrize(
    "head_dim, changes, backend",
    [
        # an unaligned head_dim falls to math only where flash is out
        (107, {"mask": "float"}, "math"),
        (107, {"mask": "bool"}, "math"),
        (107, {"dtype": "float32"}, "math"),
        (107, {"v": (4, 32, 2048, 64)}, "math"),
        (107, {"causal": True}, "flash"),
        (107, {"causal": True, "k": (4, 32, 1024, 107), "v": (4, 32, 1024, 107)}, "math"),
        (112, {"mask": "float"}, "efficient"),
        (108, {"dtype": "float32"}, "efficient"),
        (128, {"v": (4, 32, 2048, 64)}, "efficient"),
        (128, {"arch": "sm75"}, "efficient"),
        (128, {"arch": "sm75", "dtype": "bfloat16"}, "math"),
        (107, {"arch": "sm70"}, "math"),
        (107, {"arch": "sm70", "dtype": "float32"}, "efficient"),
        (128, {"torch": "2.6.0", "arch": "sm120"}, "math"),
        (128, {"torch": "2.7.0", "arch": "sm120"}, "flash"),
        (264, {}, "efficient"),
        (128, GROUPED, "flash"),
        (128, GROUPED | {"mask": "float"}, "math"),
        # cuDNN goes first on Hopper and Blackwell with a new torch and cuDNN
        (128, of("2.10.0", 91002, "sm90"), "flash"),
        (128, of("2.11.0+cu130", 91900, "sm90"), "cudnn"),
        (128, of("2.13.0", 92000, "sm100"), "cudnn"),
        (128, of("2.13.0", 92000, "sm80"), "flash"),
        (128, of("2.13.0", 92000, "sm120"), "flash"),
        (128, of("2.9.1", 92000, "sm90"), "flash"),
        (256, of("2.13.0", 92000, "sm90"), "cudnn"),
        (256, of("2.13.0", 92000, "sm100"), "flash"),
        (107, of("2.13.0", 92000, "sm90") | {"mask": "float"}, "math"),
    ],
)
def test_who_serves(head_dim: int, changes: dict[str, Any], backend: str) -> None:
    assert choose_backend(asked(head_dim, **changes)).backend == backend


def test_where_cudnn_refuses_flash_follows() -> None:
    choice = choose_backend(asked(107, **of("2.13.0", 92000, "sm90")))
    assert (choice.backend, choice.pads_to) == ("flash", 112)
    assert "no multiple of 8" in choice.refusals["cudnn"]
    decode = asked(128, q=(4, 32, 1, 128))
    assert choose_backend(replace(decode, torch="2.8.0")).refusals["cudnn"] == "there is one query"
    assert "cudnn" not in choose_backend(decode).refusals


def test_what_the_rules_cannot_know_is_said() -> None:
    assert (
        "cuDNN's version"
        in choose_backend(asked(128, torch="2.13", cudnn=None, arch="sm90")).doubts[0]
    )
    assert "rules are of torch 2.6 to 2.13" in choose_backend(asked(128, torch="2.99.0")).doubts[0]
    assert choose_backend(asked(128)).doubts == ()


def test_switching_flash_off_leaves_math_for_unaligned_dims() -> None:
    choice = choose_backend(asked(107), disabled=("flash",))
    assert (choice.backend, choice.refusals["flash"]) == ("math", "switched off")


@given(
    head_dim=st.integers(1, 300),
    arch=st.sampled_from(["sm70", "sm75", "sm80", "sm86", "sm90", "sm100", "sm120"]),
    dtype=st.sampled_from(["float16", "bfloat16", "float32"]),
    mask=st.sampled_from(["none", "float", "bool"]),
    torch=st.sampled_from(["2.6.0", "2.8.0", "2.9.1", "2.10.0", "2.13.0"]),
    cudnn=st.sampled_from([None, 90100, 91002, 91900]),
)
def test_math_always_can_and_the_chosen_one_is_never_refused(
    head_dim: int, arch: str, dtype: str, mask: str, torch: str, cudnn: int | None
) -> None:
    choice = choose_backend(
        asked(head_dim, arch=arch, dtype=dtype, mask=mask, torch=torch, cudnn=cudnn)
    )
    assert "math" not in choice.refusals
    assert choice.backend not in choice.refusals
    before = choice.order[: choice.order.index(choice.backend)]
    assert all(name in choice.refusals for name in before)
    if choice.pads_to:
        assert 0 < choice.pads_to - head_dim < 8 and choice.pads_to % 8 == 0


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"arch": "avx512"}, "no CUDA architecture"),
        ({"arch": "sm²"}, "no CUDA architecture"),
        ({"torch": "nightly"}, "no torch version"),
        ({"torch": "2." + "9" * 500}, "no torch version"),
        ({"mask": "some"}, "none, float or bool"),
        ({"mask": "float", "causal": True}, "not both"),
        ({"k": (4, 32, 2048, 100)}, "do not fit together"),
    ],
)
def test_a_senseless_question_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MapError, match=message):
        choose_backend(asked(107, **changes))


def test_a_point_asks_its_own_question() -> None:
    point = Point.of(
        "attention",
        {"batch": 4, "heads": 32, "kv_heads": 8, "q_len": 1, "kv_len": 512, "head_dim": 107},
        "bfloat16",
        {"causal": False, "mask": "none"},
    )
    question = question_of(point, "sm90", "2.13.0", 92000)
    assert question.q == (4, 32, 1, 107)
    assert question.k == question.v == (4, 8, 512, 107)
    assert question.grouped
    with pytest.raises(MapError, match="no attention point"):
        question_of(Point.of("linear", {"M": 1, "N": 2, "K": 3}, "float16"), "sm80", "2.9.1")


def test_without_a_gpu_the_live_question_says_what_to_do() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: tests/gpu/test_sdpa_rules.py asks it")
    with pytest.raises(MeasurementError, match="ask the rules"):
        ask(asked(107))
