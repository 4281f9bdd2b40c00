"""Others' curves are shown as they are: by engine, with steps, nothing between sizes."""

import json

import pytest
from planted_elsewhere import FACTORS, STEP, M, N, planted_us

from gacprof.core.errors import MapError
from gacprof.elsewhere.curves import Line, MeasuredCurve, measured_curve
from gacprof.elsewhere.data import Measurements

AT = {"N": 512, "K": 4096}


def test_a_curve_holds_each_engines_sizes_and_no_others(measured):
    curve = measured_curve(measured, "h100", "linear", "M", AT)
    assert {line.engine for line in curve.lines} == set(FACTORS)
    for line in curve.lines:
        assert line.sizes == M
        expected = [planted_us(m, 512, 4096, FACTORS[line.engine]) for m in M]
        assert line.latency_us == pytest.approx(expected)
    assert curve.as_dict()["provenance"] == "elsewhere"


def test_steps_are_where_a_size_and_the_next_were_measured(measured):
    curve = measured_curve(measured, "h100", "linear", "M", AT, engine="vllm")
    changes = {step.after: step.change for step in curve.steps}
    assert set(changes) == {1, 16, 256}
    assert changes[256] == pytest.approx(STEP * (257 / 256) ** 0.5 - 1)


@pytest.mark.parametrize(
    ("times", "steps"),
    [
        ((10.0, 10.0, 15.0, 15.0, 16.0), {256: 0.5}),
        ((10.0, 10.0, 15.0, 10.0, 10.0), {}),  # one time off
        ((10.0, 7.0, 10.0, 10.0, 10.0), {}),
        ((10.0, 10.0, 15.0, 15.0, 10.0), {}),  # back at twice the size
        ((10.0, 10.0, 8.0, 8.0, 8.0), {256: -0.2}),
    ],
)
def test_one_time_off_between_equal_ones_is_no_step(times, steps):
    line = Line("vllm", "1", (), (128, 256, 257, 300, 512), times)
    curve = MeasuredCurve("h100", "linear", "M", {}, "bfloat16", "made", (line,))
    assert {s.after: s.change for s in curve.steps} == pytest.approx(steps)


def test_the_newest_version_that_has_the_sizes_counts(write):
    row = {"gemm_dtype": "bfloat16", "k": 64, "kernel_source": "made"}
    write([row | {"m": 1, "n": 32, "latency": 0.001}], version="0.9.0")
    root = write([row | {"m": 1, "n": 64, "latency": 0.002}], version="0.24.0")
    measured = Measurements(root, "0.12.0", root.parent)
    for n, version in ((32, "0.9.0"), (64, "0.24.0")):
        (line,) = measured_curve(measured, "h100", "linear", "M", {"N": n, "K": 64}).lines
        assert line.version == version


def test_encoder_attention_is_shown_by_head_dim(write):
    rows = [
        {"attn_dtype": "bfloat16", "batch_size": 1, "isl": 256, "num_heads": 16, "head_dim": d,
         "latency": us / 1e3, "kernel_source": "made"}
        for d, us in ((64, 10.0), (72, 30.0), (80, 12.0))
    ]  # fmt: skip
    root = write(rows, operator="encoder_attention")
    at = {"batch": 1, "q_len": 256, "heads": 16}
    measured = Measurements(root, "0.12.0", root.parent)
    curve = measured_curve(measured, "h100", "encoder-attention", "head_dim", at)
    assert curve.lines[0].sizes == (64, 72, 80)
    assert curve.lines[0].latency_us == pytest.approx((10.0, 30.0, 12.0))


@pytest.mark.parametrize(
    ("operator", "axis", "fixed", "more", "says"),
    [
        ("moe", "M", {}, {}, "no operator 'moe' is read from elsewhere: linear, attention, enc"),
        ("linear", "head_dim", AT, {}, "linear has the dims M, N, K: give --axis"),
        ("linear", "M", {"N": 512}, {}, "--fixed N=SIZE,K=SIZE"),
        ("linear", "M", {"N": 500, "K": 512}, {}, f"N=500 on h100: there is {N[0]}, {N[1]}"),
        ("linear", "M", AT, {"dtype": "nvfp4"}, "dtype=nvfp4 on h100: there is bfloat16, fp8"),
        ("linear", "M", AT, {"engine": "tgi"}, "no engine 'tgi' was measured: there are sglang, t"),
    ],
)
def test_what_was_not_measured_is_refused_with_what_was(
    measured, operator, axis, fixed, more, says
):
    with pytest.raises(MapError) as refused:
        measured_curve(measured, "h100", operator, axis, fixed, **more)
    assert says in str(refused.value)


def test_the_verb_prints_a_table_with_its_source_and_draws_it(measured, run, tmp_path):
    asked = ("map", "elsewhere", "--gpu", "h100", "--axis", "M", "--fixed", "N=512,K=4096")
    code, out, _ = run(*asked, "--out", tmp_path / "figure")
    assert code == 0
    assert "aiconfigurator-core 0.12.0" in out
    assert "256 → 257: at least +25.2 %" in out
    assert (tmp_path / "figure.svg").stat().st_size > 1000
    given = json.loads(run(*asked, "--json")[1])
    assert given["schema"] == "gacprof.measured-curve/1"
    assert run("map", "elsewhere", "--gpu", "h100", "--fixed", "N=1")[0] == 2
