"""Others' times as a source of sizes: verdicts are the rules', times are intervals, and a plan that
rests on them claims no gain that they do not show."""

import json

import pytest
from checkpoint_making import checkpoint
from hypothesis import given
from hypothesis import strategies as st
from planted_elsewhere import FACTORS, planted_us, rows_of

import gacprof
from gacprof.cliffmap.estimate import NOTHING, Estimate
from gacprof.cliffmap.source import Asked, Product, Side
from gacprof.core.errors import GacprofError, MapError
from gacprof.extras.compress.outcome import PhaseTime, times_of
from gacprof.reporting.wording import gained

ASKED = Asked("model", frozenset(), "bfloat16", [1024])


def test_verdicts_are_those_of_the_rules_and_times_those_of_the_tables(measured):
    table, rules = gacprof.open_source(gpu="h100"), gacprof.rule_table("h100")
    assert (table.timed, rules.timed) == (True, False)
    dim = [Product(Side(0, 1), Side(4096)), Product(Side(4096), Side(0, 1))]
    sizes = range(96, 131)
    seen = [view.judge(dim, sizes, None) for view in (table.view(ASKED), rules.view(ASKED))]
    assert seen[0] == seen[1]
    found = table.view(ASKED).latency(4096, 4096, False)
    assert found.latency_us == pytest.approx(planted_us(1024, 4096, 4096))
    assert found.interval.low < found.latency_us < found.interval.high


def test_an_engine_is_named_with_its_version_and_errors(measured):
    view = gacprof.open_source(gpu="h100", engine="sglang").view(ASKED)
    us = planted_us(1024, 512, 512, FACTORS["sglang"])
    assert view.latency(512, 512, False).latency_us == pytest.approx(us)
    (note,) = [note for note in view.notes if note.startswith("times are measured elsewhere")]
    assert "aiconfigurator-core 0.12.0, bfloat16 by sglang 0.24.0" in note and "vllm" not in note
    view = gacprof.open_source(gpu="h100").view(Asked("model", frozenset(), "float32", [1024]))
    assert "there are bfloat16, fp8" in view.latency(512, 512, False, "float32").missing


def test_without_the_measurements_the_rules_answer_and_an_engine_is_refused():
    assert not gacprof.open_source(gpu="h100").timed
    with pytest.raises(MapError, match="pip install"):
        gacprof.open_source(gpu="h100", engine="vllm")
    with pytest.raises(MapError, match="--engine goes with --gpu"):
        gacprof.open_source("h100-published", engine="vllm")


def test_a_plan_by_latency_proves_its_choice_and_calls_its_times_estimates(measured, asvd):
    asked = {"gpu": "h100", "dtype": "bfloat16", "tokens": [1024]}
    made = gacprof.plan(asvd, objective="latency", **asked)
    assert made.certificate.proved
    assert "the times are estimates" in made.certificate.estimated
    assert made.predicted_after_us is not None
    fastest = made.predicted_after_us
    kept = gacprof.plan(asvd, latency_limit_us=2 * fastest, **asked)
    assert kept.predicted_after_us <= 2 * fastest
    assert any("is an estimate, bounds" in note for note in kept.certificate.notes)
    assert not any("may exceed" in note for note in kept.certificate.notes)
    tight = gacprof.plan(asvd, latency_limit_us=1.0001 * fastest, **asked)
    assert any(note.endswith("it may exceed the limit") for note in tight.certificate.notes)
    against = gacprof.plan(asvd, latency_limit_us="dense+20%", **asked)
    (bounds,) = (n for n in against.certificate.notes if "is an estimate, bounds" in n)
    assert "% is an estimate, bounds" in bounds  # of the change, whose shared errors cancel
    with pytest.raises(GacprofError, match="no plan is within"):
        gacprof.plan(asvd, latency_limit_us=fastest / 10, **asked)


def test_what_a_plan_and_a_page_say_of_their_times_is_what_the_source_says(
    measured, asvd, run, tmp_path
):
    asked = "--gpu", "h100", "--dtype", "bf16", "--objective", "latency"
    made = tmp_path / "plan.json"
    said = run("plan", asvd, *asked, "--out", made)[1]
    assert ", by rules, times by others' measurements; " in said
    shown = run("diagnose", asvd, "--gpu", "h100", "--why")[1]
    page = gacprof.report(asvd, out=tmp_path / "page", gpu="h100", plan=made).read_text("utf-8")
    assert "misaligned, by rules, times by others' measurements" in shown
    assert "Judged by rules, times by others&#39; measurements." in page
    assert not [text for text in (said, shown, page) if "by rules, not measured." in text]
    choices = page.partition('aria-label="Choices of the plan"')[2].partition("</table>")[0]
    assert "predicted plan" in choices and "µs" in choices  # times are known, penalties are not
    assert "at most" not in choices
    assert "A tier says which mechanism serves a size" in page  # as of the rule table


def test_a_plan_of_sizes_whose_cost_is_open_claims_nothing(measured, asvd, run, tmp_path):
    out = tmp_path / "plan.json"
    code, said, _ = run(
        "plan", asvd, "--gpu", "h100", "--dtype", "bf16", "--objective", "pad", "--out", out
    )
    assert code == 0
    assert "the time it gains is not known" in said  # N of a factor was never published
    assert "faster" not in said
    (open_one,) = [w for w in json.loads(out.read_text())["warnings"] if "they move to" in w]
    assert "dims have sizes whose cost is not known" in open_one  # there is no map here
    assert "they move to sizes of the best tier" in open_one  # which are undecided, not safe
    assert json.loads(out.read_text())["saved_us"] is None


def test_a_plan_saves_what_a_diagnosis_says_that_its_sizes_save(measured, tmp_path, run):
    shapes = {
        "model.layers.0.mlp.gate_proj.weight": ("bfloat16", (2001, 512)),
        "model.layers.0.mlp.up_proj.weight": ("bfloat16", (2001, 512)),
        "model.layers.0.mlp.down_proj.weight": ("bfloat16", (512, 2001)),
    }
    config = {
        "model_type": "llama", "hidden_size": 512, "intermediate_size": 2001,
        "num_hidden_layers": 1, "num_attention_heads": 8, "vocab_size": 64,
    }  # fmt: skip
    model = checkpoint(tmp_path / "model", shapes, config)
    asked = {"gpu": "h100", "tokens": {1: 3.0, 1024: 1.0}}
    times = gacprof.diagnose(model, **asked).times
    plan = gacprof.plan(model, objective="pad", **asked)
    (prefill,) = plan.saved_in_part  # at one token no cost was published
    whole = times.totals[1].saved
    assert prefill.tokens == 1024
    assert (prefill.low, prefill.value, prefill.high) == pytest.approx(
        (whole.low, whole.value, whole.high)
    )
    assert (prefill.roles, prefill.open) == (["down"], ["gate", "up"])
    said = run("plan", model, "--gpu", "h100", "--objective", "pad", "--tokens", "1,1024",
               "--out", tmp_path / "plan.json")[1]  # fmt: skip
    assert "of down at 1,024 tokens (gate, up: not known)" in said
    assert "the time it gains is not known" not in said
    assert "undecided, though of the best tier: no multiple of 64" in said  # 2008


def test_no_gain_is_claimed_whose_bounds_hold_zero():
    plan = {"predicted_before_us": 100.0, "predicted_after_us": 90.0}
    unsure = gained(plan | {"saved_us": (-5.0, 10.0, 20.0)})
    assert "-10.0 % (-20.0 to +5.0); whether time is gained is not sure" in unsure
    assert "-10.0 % (-20.0 to -5.0)" in gained(plan | {"saved_us": (5.0, 10.0, 20.0)})
    assert "+10.0 % (+5.0 to +20.0)" in gained(plan | {"saved_us": (-20.0, -10.0, -5.0)})
    sure = times_of(PhaseTime(1024, 100.0, 95.0, 90.0, (2.0, 10.0, 20.0)), "")
    assert "of the uncompressed model's 100.0 µs, -10.0 % (-20.0 to -2.0)" in sure
    unsure = times_of(PhaseTime(1024, 100.0, 95.0, 90.0, (-2.0, 10.0, 20.0)), "")
    assert "whether time is gained is not sure" in unsure


@st.composite
def estimates(draw):
    value = draw(st.floats(1.0, 1e4))
    low, high = draw(st.floats(0.3, 1.0)), draw(st.floats(1.0, 3.0))
    own, shared = (value * low, value * high), draw(st.floats(0.0, 1.0))
    return Estimate(value, "", False, 1.0, own=own, shared=shared)


@given(estimates(), estimates(), estimates())
def test_bounds_hold_the_value_add_up_and_a_difference_turned_round_is_its_negative(a, b, c):
    total = (a + b + c).interval
    assert total.low <= total.value <= total.high
    own = [sum(one.own[end] for one in (a, b, c)) for end in (0, 1)]
    assert list((a + b + c).own) == pytest.approx(own)
    here, there = a.saved(b), b.saved(a)
    assert (here.low, here.value, here.high) == pytest.approx(
        (-there.high, -there.value, -there.low)
    )
    assert here.low <= here.value <= here.high
    assert (a + NOTHING).interval.high == pytest.approx(a.interval.high)


def test_what_a_gpu_has_not_is_said(write, measured):
    write(rows_of(), gpu="b60")
    write(rows_of(), gpu="a100_sxm")
    a100 = gacprof.open_source(gpu="a100")
    for call, message in (
        (lambda: gacprof.open_source(gpu="b60"), "others measured 'b60', but it has no rules"),
        (lambda: gacprof.open_source(gpu="v100"), "no GPU 'v100' is known"),
        (lambda: a100.times.levels("fp8"), r"A100.* has no fp8: no times of fp8"),
        (lambda: a100.times.levels("nvfp4"), "^no times of nvfp4"),
    ):
        with pytest.raises(MapError, match=message):
            call()
