"""A call timed in parts: the same computation, models taking turns, parts added up."""

from __future__ import annotations

import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch import nn  # noqa: E402

from gacprof.evaluation.comparison import fit_workload  # noqa: E402
from gacprof.evaluation.summary import Rounds  # noqa: E402
from gacprof.evaluation.workloads import (  # noqa: E402
    MOST_PARTS,
    PART_US,
    BenchWorkload,
    Clock,
    Prefill,
    Runner,
    in_parts,
    parts_of,
)

CPU = Clock(torch.device("cpu"))
LONG_US = 100 * PART_US


def llama(layers: int = 4):
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "vocab_size": 64}
    config = transformers.LlamaConfig(num_hidden_layers=layers, **shape)
    return transformers.LlamaForCausalLM(config).eval()


class Layer(nn.Module):
    def __init__(self, name: str, log: list[str]) -> None:
        super().__init__()
        self.name, self.log = name, log

    def forward(self, x):
        self.log.append(self.name)
        return x + 1


class Stack(Runner):
    """Calls its layers in order, ``order`` in another."""

    def __init__(
        self, name: str, log: list[str], layers: int = 4, order=None, ms: float = 0
    ) -> None:
        self.layers = [Layer(f"{name}{i}", log) for i in range(layers)]
        self._order, self._ms = order or range(layers), ms

    def call(self):
        x = torch.zeros(())
        for i in self._order:
            x = self.layers[i](x)
            time.sleep(self._ms / 1e3)
        self.result = x


def test_a_call_stops_before_layers_and_computes_the_same():
    log: list[str] = []
    stack = Stack("a", log)
    times = in_parts(stack.call, stack.layers[1:3], CPU)
    next(times)
    assert log == ["a0"]
    next(times)
    assert log == ["a0", "a1"]
    assert len(list(times)) == 1 and log == ["a0", "a1", "a2", "a3"]
    assert stack.result == 4
    assert not any(layer._forward_pre_hooks for layer in stack.layers)


def test_two_calls_of_one_model_do_not_stop_each_other():
    stack = Stack("a", log := [])
    first, second = stack.parts(CPU, 2), stack.parts(CPU, 2)
    next(first), next(second)
    assert log == ["a0", "a1"] * 2
    assert len(list(first)) == len(list(second)) == 1


def test_an_error_in_a_part_reaches_the_caller():
    stack = Stack("a", [])
    stack.layers[2].forward = None
    times = stack.parts(CPU, 2)
    next(times)
    with pytest.raises(TypeError):
        next(times)
    assert not any(layer._forward_pre_hooks for layer in stack.layers)


def test_a_models_prefill_in_parts_gives_the_same_logits():
    prefill = Prefill(llama(), torch.ones(1, 8, dtype=torch.long))
    kept = []
    call = prefill.call
    prefill.call = lambda: kept.append(call().logits)
    with torch.inference_mode():
        assert len(list(prefill.parts(CPU, 3))) == 3
        prefill.call()
    assert torch.equal(*kept)


def test_parts_are_ten_milliseconds_and_no_more_than_layers():
    stacks = [Stack("a", [], 12), Stack("b", [], 5)]
    assert parts_of(stacks, CPU, 1.9 * PART_US) == 1
    assert parts_of(stacks, CPU, 3.5 * PART_US) == 3
    assert parts_of(stacks, CPU, LONG_US) == 5
    assert parts_of(stacks[:1], CPU, LONG_US) == MOST_PARTS
    assert parts_of([], CPU, LONG_US) == 1


def test_a_model_that_skips_or_repeats_layers_is_timed_whole():
    for order in (range(2), [0, 1, 1, 2, 3]):
        assert parts_of([Stack("a", []), Stack("b", [], order=order)], CPU, LONG_US) == 1


def test_a_gpu_and_a_compiled_model_are_timed_whole():
    assert parts_of([Stack("a", [])], Clock(torch.device("cuda")), LONG_US) == 1
    compiled = llama()
    layer = compiled.model.layers[1]
    layer._compiled_call_impl = layer._call_impl  # as compile() sets it, which takes seconds
    assert parts_of([Prefill(compiled, None)], CPU, LONG_US) == 1
    assert len(Prefill(llama(), None).layers) == 4


def test_models_take_turns_after_every_part():
    log: list[str] = []
    runners = [[Stack(name, log, ms=11) for name in "abc"]]
    rounds = Rounds([BenchWorkload("prefill", 8, 1)], runners, CPU, 12, 0.0)
    rounds.run(lambda: False)
    (table,) = rounds.tables
    assert table.parts == 4 and table.part_us.shape == (4, 4, 3) and table.us.shape == (4, 3)
    assert np.allclose(table.us, table.part_us.sum(axis=0)) and (table.us > 40_000).all()
    last = log[-12:]
    assert [sorted(last[i : i + 3]) for i in range(0, 12, 3)] == [
        [f"{name}{layer}" for name in "abc"] for layer in range(4)
    ]


def test_a_noise_that_lasts_for_a_part_goes_into_its_block():
    """The same noise for all models within a part, another in the next: whole passes would not
    agree, parts do."""
    draw = np.random.default_rng(0)
    noise = np.exp(draw.normal(0, 0.3, (6, 48, 1)))
    us = 1e4 * noise * np.array([1.0, 0.98, 1.0]) * np.exp(draw.normal(0, 0.002, (6, 48, 3)))
    found = fit_workload(us, range(48))
    assert np.exp(found.log_ratio[1]) == pytest.approx(0.98, abs=0.001)
    assert found.error[1] < 0.001
    assert found.latency_us[0] == pytest.approx(6e4, rel=0.3)


def test_parts_of_unlike_length_count_by_their_length():
    us = np.ones((2, 12, 2))
    us[0] *= 900
    us[1] *= 100
    us[1, :, 1] *= 2
    assert np.exp(fit_workload(us, range(12)).log_ratio[1]) == pytest.approx(1.1)
