"""Predictions of whole steps: products from a map, the rest from one bench."""

import json
from dataclasses import replace

import pytest
from planted import PLANTED, TOKENS, planted_latency

from gacprof.checkpoint import scan
from gacprof.core.errors import PlanError
from gacprof.core.points import Point
from gacprof.evaluation.predictions import predictions
from gacprof.evaluation.summary import BenchResult, ModelTiming
from gacprof.planning import plan
from gacprof.reporting.wording import by_phase
from gacprof.resizing import realign

REST_US = {1: 300.0, 64: 900.0}
"""What a step of the planted machine takes besides the products of its weights."""


def step_us(folder, tokens, call_us=0.0, shape=0.0):
    """The planted machine's step: rest, products, and what each call and each shape adds."""
    gemms = [gemm for module in scan(folder).modules for gemm in module.gemms]
    shapes = {(gemm.N, gemm.K) for gemm in gemms}
    products = sum(product_us(tokens, gemm.N, gemm.K) for gemm in gemms)
    return (REST_US[tokens] + products + call_us * len(gemms)) * (1 + shape * len(shapes))


def product_us(m, n, k):
    return planted_latency(Point.of("linear", {"M": m, "N": n, "K": k}, "float32"))


def timing(name, folder, tokens, ratio=None, **costs):
    us = step_us(folder, tokens, **costs)
    kind = "decode" if tokens == 1 else "prefill"
    return ModelTiming(
        name, f"{kind} 64", kind, 64, 0.99 * us, us, 1.01 * us, (us,), "reference", ratio
    )


def bench_of(folders, **changed):
    first, timings = folders[0], []
    for folder in folders:
        for tokens in TOKENS:
            ratio = None
            if folder != first:
                middle = step_us(folder, tokens) / step_us(first, tokens)
                ratio = (middle - 0.005, middle, middle + 0.005)
            timings.append(timing(folder.name, folder, tokens, ratio))
    known = {
        "models": tuple(f.name for f in folders), "parameters": (1,) * len(folders),
        "dtype": "float32", "batch": 1, "decode_steps": 1, "rounds": 12,
        "timings": tuple(timings), "replicates": (), "environment": PLANTED, "timer": "planted",
        "sources": tuple(map(str, folders)),
    }  # fmt: skip
    return BenchResult(**(known | changed))


@pytest.fixture
def bench(asvd, tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(bench_of([asvd]).as_dict()))
    return path


@pytest.mark.parametrize("costs", [{}, {"call_us": 3.0}, {"shape": 0.001}])
def test_the_predicted_interval_holds_what_the_step_takes(
    asvd, planted_map, bench, tmp_path, costs
):
    made = plan(asvd, planted_map, tokens=TOKENS, bench=bench)
    assert made.changes
    realign(asvd, made, tmp_path / "out")
    assert [phase.workload for phase in made.phases] == ["decode", "prefill:64"]
    for phase in made.phases:
        (step,) = phase.steps
        before, after = (step_us(f, phase.tokens, **costs) for f in (asvd, tmp_path / "out"))
        assert step.low <= after / before - 1 <= step.high
        assert step.high - step.low < 0.2
    assert "of the whole step" in by_phase(made.as_dict())


def test_without_a_bench_the_share_of_the_whole_is_told_as_unknown(asvd, planted_map):
    made = plan(asvd, planted_map, tokens=TOKENS)
    assert all(phase.after_us < phase.before_us and not phase.steps for phase in made.phases)
    said = by_phase(made.as_dict())
    assert "--bench" in said and said.count(" −") == len(made.phases) and "+" not in said


def test_a_relative_limit_is_on_the_whole_step_where_a_bench_tells_it(asvd, planted_map, bench):
    free = plan(asvd, planted_map, tokens=TOKENS, bench=bench)
    prefill = free.phases[-1]
    of_products = prefill.after_us / prefill.before_us - 1
    of_whole = (prefill.after_us - prefill.before_us) / step_us(asvd, 64)
    assert of_products < 2 * of_whole < 0  # products are less than half of this step
    share = of_whole * 1.02
    made = plan(
        asvd, planted_map, tokens=TOKENS, bench=bench, latency_limit_us=f"prefill:64={share:.5%}"
    )
    saved = made.phases[-1].after_us - made.phases[-1].before_us
    assert saved <= share * step_us(asvd, 64) * (1 - 1e-6)


def test_a_bench_that_tells_nothing_of_the_model(asvd, planted_map, tmp_path):
    path = tmp_path / "b.json"
    for changed, why in (
        ({"dtype": "bfloat16"}, "bfloat16"), ({"sources": ("nowhere",)}, "times none of")
    ):  # fmt: skip
        path.write_text(json.dumps(bench_of([asvd], **changed).as_dict()))
        with pytest.raises(PlanError, match=why) as error:
            plan(asvd, planted_map, tokens=TOKENS, bench=path)
        assert "\n" not in str(error.value)
    path.write_text(json.dumps(bench_of([asvd], timings=()).as_dict()))  # other token counts
    made = plan(asvd, planted_map, tokens=TOKENS, bench=path)
    assert not any(phase.steps for phase in made.phases)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "bench --json"),
        ("[]", "bench --json"),
        ("\x00", "bench --json"),
        ("{}", "it has no 'environment'"),
        ('{"timings": [{}]}', "bench --json"),
        ('{"schema": "gacprof.error/1", "message": "no GPU"}', r"a bench that failed \(no GPU\)"),
    ],
)
def test_a_file_that_is_no_bench_is_refused_in_words(asvd, planted_map, tmp_path, text, said):
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(PlanError, match=said):
        plan(asvd, planted_map, tokens=TOKENS, bench=tmp_path / "b.json")


def test_a_bench_says_whether_what_was_predicted_held(asvd, planted_map, bench, tmp_path):
    made = plan(asvd, planted_map, tokens=TOKENS, bench=bench)
    out = tmp_path / "out"
    realign(asvd, made, out)
    told = list(predictions(bench_of([asvd, out])))
    assert len(told) == len(TOKENS)
    assert all(sentence.endswith("it held") for sentence in told)
    slower = timing(out.name, out, 64, (1.5, 1.51, 1.52))
    (missed,) = predictions(bench_of([asvd, out], timings=(slower,)))
    assert missed.endswith("it was missed")
    wide = timing(out.name, out, 64, (0.5, 1.51, 1.6))
    (left,) = predictions(bench_of([asvd, out], timings=(wide,)))
    assert left.endswith("is open")
    assert not list(predictions(bench_of([out, asvd])))  # nothing was predicted of it


def test_a_bench_of_a_busy_machine_bounds_the_products_share_alone(asvd, planted_map, tmp_path):
    """Products take the same, whatever disturbed the step: the change is between their share of
    what was timed and that of all of them."""
    path = tmp_path / "b.json"
    slow = [replace(t, **{n: 5 * getattr(t, n) for n in ("low_us", "latency_us", "high_us")})
            for t in bench_of([asvd]).timings]  # fmt: skip
    note = "the machine is busy, and differences hide in that"
    path.write_text(json.dumps(bench_of([asvd], timings=tuple(slow), notes=(note,)).as_dict()))
    made = plan(asvd, planted_map, tokens=TOKENS, bench=path)
    realign(asvd, made, tmp_path / "out")
    for phase in made.phases:
        (step,) = phase.steps
        before, after = (step_us(f, phase.tokens) for f in (asvd, tmp_path / "out"))
        assert step.low <= after / before - 1 <= step.high
