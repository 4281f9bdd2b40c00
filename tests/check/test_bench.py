"""Benches: rounds as they are compared, and real models on the CPU."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoders import write_decoder
from hypothesis import given, settings
from hypothesis import strategies as st

from gacprof.check.bench import FEWEST_ROUNDS, Timing, bench, compare
from gacprof.check.models import StaticDecode, loaded, random_ids
from gacprof.core.errors import MeasurementError
from gacprof.devices.environment import read_environment

SEEDS = range(200)
H200 = Path(__file__).parents[1] / "fixtures/h200/bench.json"


def rounds(seed: int, effect: float, count: int = 40, noise: float = 0.02) -> np.ndarray:
    """Times [rounds, (model, other, replicate)] whose rounds drift together by 20 %."""
    rng = np.random.default_rng(seed)
    logs = rng.normal(0, noise, (count, 3)) + rng.normal(0, 0.2, (count, 1))
    logs[:, 1] += effect
    return np.exp(8 + logs)


@cache
def comparisons(effect: float) -> list[list[Timing]]:
    """Two models and a replicate of the first, compared once a seed."""
    return [compare(["a", "b"], "w", rounds(seed, effect)) for seed in SEEDS]


def verdicts(effect: float) -> list[str]:
    return [timings[1].verdict for timings in comparisons(effect)]


@cache
def recorded() -> dict[str, list[Timing]]:
    """What one H200 took for four Llamas and the first of them again, compared, by workload."""
    bench_result = json.loads(H200.read_text())
    times: dict[str, list[list[float]]] = {}
    for timing in [*bench_result["timings"], *bench_result["replicates"]]:
        times.setdefault(timing["workload"], []).append(timing["times_us"])
    models = bench_result["models"]
    return {name: compare(models, name, np.array(rows).T) for name, rows in times.items()}


def test_equal_models_are_undecided_and_so_is_the_replicate() -> None:
    assert verdicts(0.0).count("undecided") >= 0.99 * len(SEEDS)
    for effect in (0.0, 0.05):
        assert {timings[2].verdict for timings in comparisons(effect)} == {"undecided"}


def test_a_model_that_its_place_in_memory_makes_surely_slower_is_undecided() -> None:
    captured = recorded()["decode 32, captured"]
    assert captured[-1].ratio.high < 1  # the same model twice
    for timings in recorded().values():
        assert timings[-1].verdict == "undecided"
    rng = np.random.default_rng(0)
    for place in (-0.002, 0.003):
        times = np.exp(rng.normal([0.0, place, 0.002], 0.0005, (40, 3)))
        assert [t.verdict for t in compare(["a", "b"], "w", times)[1:]] == ["undecided"] * 2


@pytest.mark.parametrize("workload", ["prefill 1024", "decode 32, captured"])
def test_models_that_a_gpu_runs_more_slowly_are_found(workload: str) -> None:
    verdicts = {timing.model: timing.verdict for timing in recorded()[workload][1:-1]}
    assert verdicts == dict.fromkeys(("ragged-mlp", "ragged-heads", "dense"), "slower")


def test_a_decode_that_waits_for_the_host_hides_what_a_model_takes() -> None:
    ragged_mlp, ragged_heads, dense = recorded()["decode 32"][1:-1]
    assert ragged_mlp.verdict == dense.verdict == "undecided"
    assert ragged_heads.verdict == "slower"


def test_a_difference_beyond_the_noise_is_decided_with_its_sign() -> None:
    assert verdicts(-0.05).count("faster") == len(SEEDS)
    assert verdicts(0.05).count("slower") == len(SEEDS)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    ratios = [timings[1].ratio for timings in comparisons(0.05)]
    hits = [ratio.low <= np.exp(0.05) <= ratio.high for ratio in ratios]
    assert 0.9 <= np.mean(hits) <= 0.99


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.integers(0, 10**6), st.floats(0.1, 10))
def test_units_and_drift_of_rounds_change_no_ratio(seed: int, unit: float) -> None:
    times = rounds(seed, 0.01)
    drift = np.random.default_rng(seed + 1).uniform(0.5, 2, (len(times), 1))
    first = compare(["a", "b"], "w", times)
    second = compare(["a", "b"], "w", times * drift * unit)
    for a, b in zip(first, second, strict=True):
        assert a.verdict == b.verdict
        assert b.ratio.value == pytest.approx(a.ratio.value)


def test_models_are_timed_at_both_workloads(tmp_path: Path) -> None:
    small = write_decoder(tmp_path / "small", widths=(16, 16))
    large = write_decoder(tmp_path / "large", widths=(16,) * 12)
    result = bench([small, large], prefill=8, decode=2, seconds=0.0, device="cpu")
    assert result.models == ("small", "large") and result.rounds == FEWEST_ROUNDS
    assert result.parameters[0] < result.parameters[1]
    assert result.environment.kind == "cpu" and result.dtype == "float32"
    assert [(t.workload, t.model) for t in result.timings] == [
        ("prefill 8", "small"),
        ("prefill 8", "large"),
        ("decode 2", "small"),
        ("decode 2", "large"),
    ]
    assert [t.verdict for t in result.timings[::2]] == ["reference", "reference"]
    assert len(result.replicates) == 2
    for timing in result.timings:
        assert len(timing.times_us) == result.rounds and min(timing.times_us) > 0
        assert timing.busy_share is None
    only = bench([small], prefill=4, decode=0, seconds=0.0, device="cpu")
    assert len(only.timings) == 1


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError):
        bench([write_decoder(tmp_path / "m")], device="cuda:77")
    with pytest.raises(MeasurementError):
        bench([])


MISTRAL = {"family": "mistral", "max_position_embeddings": 64}


def static_decode(folder: Path, device: str, steps: int, **decoder: Any) -> StaticDecode:
    model = loaded(write_decoder(folder, **decoder), "float32", torch.device(device))
    return StaticDecode(model, random_ids(288, (2, 8)).to(device), steps)


def run_twice(decode: StaticDecode) -> list[list[object]]:
    """The tokens of two runs, each as it leaves them step by step."""
    runs = []
    with torch.inference_mode():
        for _ in range(2):
            decode.prepare()
            tokens = [decode.token.tolist()]
            for _ in range(decode.steps):
                decode.take_step()
                tokens.append(decode.token.tolist())
            runs.append(tokens)
    return runs


@pytest.mark.parametrize(
    "decoder",
    [
        {},
        {"family": "qwen3", "heads": ((4, 2), (2, 1))},
        {**MISTRAL, "sliding_window": 4},
        {**MISTRAL, "sliding_window": 32},
    ],
    ids=["llama", "heads by layer", "full window", "window not reached"],
)
def test_steps_in_fixed_memory_decode_the_tokens_of_eager_decoding(
    tmp_path: Path, decoder: dict[str, Any]
) -> None:
    decode = static_decode(tmp_path / "m", "cpu", 12, **decoder)
    address = decode.cache.layers[0].keys.data_ptr()
    ids = decode.ids
    for _ in range(decode.steps + 1):
        logits = decode.model(input_ids=ids, use_cache=False).logits
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
    eager = ids[:, decode.ids.shape[1] :]
    assert len(eager.unique()) > 3
    assert run_twice(decode) == 2 * [[tokens.tolist() for tokens in eager.split(1, dim=1)]]
    assert decode.cache.layers[0].keys.data_ptr() == address


def test_a_window_that_moves_while_decoding_is_not_captured(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError):
        static_decode(tmp_path / "m", "cpu", 12, **MISTRAL, sliding_window=16).capture()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_captured_step_decodes_the_tokens_of_the_uncaptured_one(tmp_path: Path) -> None:
    decode = static_decode(tmp_path / "m", "cuda", 12)
    uncaptured = run_twice(decode)
    decode.capture()
    assert run_twice(decode) == uncaptured


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_is_busier_in_a_captured_decode(tmp_path: Path) -> None:
    if read_environment("cuda:0").kind == "virtual":
        pytest.skip("a virtual GPU has no times")
    result = bench([write_decoder(tmp_path / "m")], prefill=8, decode=4, seconds=0.0, device="cuda")
    assert result.not_captured == ""
    shares = {timing.workload: timing.busy_share or 0.0 for timing in result.timings}
    assert 0 < shares["decode 4"] < shares["decode 4, captured"] <= 1
