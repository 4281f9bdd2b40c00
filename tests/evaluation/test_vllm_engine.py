"""vLLM itself: ``make test-vllm`` makes its environment and names its Python for these tests."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("transformers")

from tiny_models import write_llama

from gacprof.extras.serve.engines.bench import bench_engine
from gacprof.extras.serve.engines.engine import EngineProcess, engine_of

PYTHON = os.environ.get("GACPROF_VLLM_PYTHON")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="vLLM's Python is not named: make test-vllm"),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_llama(
        tmp_path_factory.mktemp("tiny"), hidden_size=128, intermediate_size=160, vocab_size=512,
        max_position_embeddings=256, initializer_range=0.1,
    )  # fmt: skip


def test_vllm_writes_the_same_tokens_as_transformers(tiny):
    written = []
    for name in ("transformers", "vllm"):
        engine = engine_of(name)
        python = engine.python(PYTHON if engine.own_python else None)
        with EngineProcess(engine, python, 1) as process:
            process.open(tiny, 80, "float32", False)
            written.append(process.ask("greedy", ids=list(range(3, 40)), count=32))
    assert written[0] == written[1]


def test_vllm_is_benched(tiny):
    found = bench_engine(
        [tiny], "vllm", python=PYTHON, tokens=(16,), decode_steps=4, rounds=12, dtype="float32"
    )
    assert found.engine.startswith("vllm ") and found.dtype == "float32"
    assert {t.workload for t in found.timings} == {"prefill 16", "decode 16"}
    assert all(t.latency_us > 0 for t in found.timings)
