"""On a GPU, the rule model and PyTorch itself agree about every kind of call."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from gacprof.kernels.sdpa import Question, ask, choose_backend  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="asks PyTorch on a CUDA device"),
]

HEAD_DIMS = (1, 7, 8, 32, 64, 96, 100, 104, 107, 108, 112, 128, 192, 200, 256, 264)


def at_hand() -> Question:
    major, minor = torch.cuda.get_device_capability()
    shape = (1, 4, 128, 64)
    return Question(
        f"sm{major}{minor}", shape, shape, shape, "float16", torch.__version__,
        torch.backends.cudnn.version(),
    )  # fmt: skip


def variants() -> list[Question]:
    base, listed = at_hand(), []
    masks = ("none", "float", "bool")
    dtypes = ("float16", "bfloat16", "float32")
    for d, dtype, mask in itertools.product(HEAD_DIMS, dtypes, masks):
        shape = (1, 4, 128, d)
        listed.append(replace(base, q=shape, k=shape, v=shape, dtype=dtype, mask=mask))
    for d in HEAD_DIMS:
        q, short, grouped = (1, 4, 128, d), (1, 4, 64, d), (1, 2, 128, d)
        plain = replace(base, q=q, k=q, v=q)
        listed.append(replace(plain, causal=True))
        listed.append(replace(plain, k=short, v=short, causal=True))
        listed.append(replace(plain, k=grouped, v=grouped))
        listed.append(replace(plain, v=(1, 4, 128, 48)))
        listed.append(replace(plain, q=(1, 4, 1, d)))
        listed.append(replace(plain, k=(1, 4, 1, d), v=(1, 4, 1, d)))
    return listed


@pytest.mark.parametrize("question", variants() if torch.cuda.is_available() else [], ids=str)
def test_rules_and_live_agree(question: Question) -> None:
    by_rules, live = choose_backend(question), ask(question)
    assert by_rules.backend == live.backend, live.refusals
    assert by_rules.pads_to == live.pads_to
    assert set(by_rules.refusals) == set(live.refusals), live.refusals
