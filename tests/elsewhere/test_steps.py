"""Attention and routed experts in whole steps: read at their own sizes, never guessed beside them;
and no time of the real package is below what the data sheet allows."""

import json

import pytest
from planted_elsewhere import rows_of

import gacprof
from gacprof.core.errors import GacprofError
from gacprof.devices.datasheet import sheet
from gacprof.elsewhere import data
from gacprof.elsewhere.data import Measurements
from gacprof.reporting.wording import diagnosed

REAL = data.PACKAGE
GQA = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 16384,
}  # fmt: skip
MOE = GQA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
LATENT = {
    "model_type": "deepseek_v3", "hidden_size": 512, "intermediate_size": 1024,
    "num_hidden_layers": 2, "num_attention_heads": 16, "q_lora_rank": 512, "kv_lora_rank": 448,
    "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 64, "vocab_size": 16384,
    "n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 128,
    "first_k_dense_replace": 1,
}  # fmt: skip


def attention_rows(phase):
    """One microsecond a token and head of a prefill; a tenth a head of a decode step."""
    length = {"context": "isl", "generation": "step"}[phase]
    return [
        {
            "batch_size": 1, "num_heads": heads, "num_key_value_heads": 4, "head_dim": 64,
            "window_size": 0, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16",
            "isl": size if length == "isl" else 1, "step": size if length == "step" else 0,
            "latency": size * heads / (1e3 if length == "isl" else 1e4), "kernel_source": "made",
        }
        for size in (1, 16, 64, 256, 1023, 1024, 2048)
        for heads in (2, 4, 8, 16)
    ]  # fmt: skip


ROUTINGS = {"balanced": 0.0004, "power_law_1.01": 0.0005, "power_law_1.2": 0.6}


def expert_rows():
    """Half a microsecond a token and 32 units of width by the median routing; ungated ones, which
    are not these experts, a thousandth of that."""
    return [
        {
            "moe_dtype": "bfloat16", "num_tokens": m, "hidden_size": 512, "inter_size": 1024,
            "topk": 2, "num_experts": 8, "moe_tp_size": tp, "moe_ep_size": 1,
            "distribution": routing, "kernel_source": kernel, "latency": ms * less * m * 32 / tp,
        }
        for m in (1, 16, 64, 256, 1024, 4096)
        for tp in (1, 2, 4, 8)
        for routing, ms in ROUTINGS.items()
        for kernel, less in (("made", 1.0), ("made_nongated", 1e-3))
    ]  # fmt: skip


@pytest.fixture
def tables(write, tmp_path, monkeypatch):
    root = write(rows_of())
    for table, name, rows in (
        ("attention", "context_attention", attention_rows("context")),
        ("attention", "generation_attention", attention_rows("generation")),
        ("moe", "moe", expert_rows()),
    ):
        write(rows, operator=table, name=name)
    made = Measurements(root, "0.12.0", tmp_path / "cache")
    monkeypatch.setattr("gacprof.elsewhere.data.installed", lambda: made)
    return made


def times_of(config, **asked):
    found = gacprof.diagnose(config, gacprof.open_source(gpu="h100"), **asked).times
    assert found is not None
    return found


def part(times, name):
    return next(one for one in times.parts if one.need.name == name)


def test_attention_is_a_prefill_by_its_length_or_a_decode_step_after_its_context(tables):
    attention = part(times_of(GQA, tokens=[1, 512, 1024]), "attention")
    assert attention.need.shape == {"heads": 8, "kv_heads": 4, "head_dim": 64}
    decode, between, whole = (cost.good.value for cost in attention.costs)
    assert decode == pytest.approx(3 * 1023 * 8 / 10)
    assert between == pytest.approx(3 * 512 * 8)
    assert whole == pytest.approx(3 * 1024 * 8)


def test_ranks_share_heads_and_experts_out(tables):
    times = times_of(MOE, tokens=[256], tp=2)
    assert part(times, "routed experts").need.shape["width"] == 512
    assert part(times, "routed experts").costs[0].good.value == pytest.approx(3 * 0.5 * 256 * 16)
    assert "heads 4, kv_heads 2, head_dim 64 is not among what was measured" in str(times.left_out)


@pytest.mark.parametrize(
    ("config", "tokens", "says"),
    [
        (GQA | {"head_dim": 80}, 1024, "head_dim 80 is not among"),
        (GQA | {"num_attention_heads": 64}, 1024, "N=64 is outside what was measured (2 to 16)"),
        (GQA, 8192, "M=8192 is outside what was measured (1 to 2048)"),
        (GQA | {"sliding_window": 512}, 1024, "a sliding window of 512 tokens is not read"),
        (MOE | {"num_experts_per_tok": 4}, 256, "topk 4 is not among"),
        (MOE | {"intermediate_size": 1000}, 256, "what a width of 1000 costs is not known"),
        (MOE | {"num_experts_per_tok": None}, 256, "lacks how many experts a token takes"),
        (LATENT, 256, "latent attention: heads 16 is not among"),
        (LATENT, 256, "routed experts: hidden 512, width 128"),
    ],
)
def test_attention_and_experts_that_were_not_measured_are_named_and_left_out(
    tables, config, tokens, says
):
    times = times_of(config, tokens=[tokens])
    assert says in str(times.left_out) and times.totals[0].unknown >= 1


def test_lint_shows_what_rows_take_where_the_engine_was_measured(tables, run, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(GQA | {"architectures": ["LlamaForCausalLM"]}))
    found = gacprof.lint(config, gpu="h100")
    rows = {row.name: row for row in found.products}
    assert rows["o"].times_us["1024"].value == pytest.approx(
        part(times_of(GQA, tokens=[1024]), "o").costs[0].good.value
    )
    assert rows["lm_head"].times_us["1"] == rows["lm_head"].times_us["1024"]
    assert rows["attention heads"].times_us is None
    assert "1,024 tokens †" in run("lint", config, "--gpu", "h100", "--all")[1]
    assert "†" not in run("lint", config, "--gpu", "h100", "--engine", "sglang", "--all")[1]
    assert all(row.times_us is None for row in gacprof.lint(config).products)


def test_a_step_with_parts_missing_has_the_time_of_the_others(tables, run, tmp_path):
    """Three ranks cannot share eight heads out: the head's product alone is no whole step, and
    the only thing to say is that no engine starts."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(GQA))
    code, out, _ = run("diagnose", config, "--gpu", "h100", "--tp", "3")
    assert code == 1
    assert out.startswith("Refused: 3 ranks cannot share out attention, qkv, o, gate_up and down")
    assert "takes" not in out and "is known" not in out
    for total in times_of(GQA, tp=3).totals:
        assert total.good is None and total.now is None
        assert total.unknown == 5  # qkv, o, gate_up, down and attention
        assert total.timed.low == total.at_least > 0


@pytest.mark.parametrize("width", [1024, 767])
def test_routed_experts_are_not_judged_and_are_counted(tables, width):
    found = gacprof.diagnose(MOE | {"intermediate_size": width}, gpu="h100")
    assert found.totals()["not_judged"] == ["routed experts"]
    said = diagnosed(found.summary())[0]
    assert said.startswith("3 of 5 products judged, none known to be served worse by NVIDIA H100")
    assert said.endswith("; routed experts not judged.")


@pytest.mark.parametrize(("tokens", "read"), [(1, 2), (2, 2), (4, 5), (1024, 8)])
def test_no_bound_is_below_what_the_device_needs(tables, write, tokens, read):
    """The experts' weights at the bandwidth, or the FLOPs at the peak rate of the data sheet."""
    rows = [row | {"latency": 1e-6 * row["num_tokens"]} for row in expert_rows()]
    write(rows, operator="moe", name="moe")
    about, one = sheet("h100"), 3 * 512 * 1024
    moved = 3 * read * one * 2 / (about.values["gb_s"] * 1e3)
    flops = 3 * 2 * one * 2 * tokens / (about.rates["bfloat16"] * 1e6)
    time = part(times_of(MOE, tokens=[tokens]), "routed experts").costs[0].good
    assert time.low >= 0.999 * max(moved, flops)
    assert time.low <= time.value <= time.high


def test_what_a_config_leaves_unquantised_is_timed_in_bf16(tables):
    """gpt-oss as published: experts in mxfp4, attention and head as they are."""
    stated = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
            "lm_head",
        ],
    }  # fmt: skip
    oss = GQA | {
        "model_type": "gpt_oss", "num_local_experts": 8, "num_experts_per_tok": 2,
        "quantization_config": stated,
    }  # fmt: skip
    times = times_of(oss, tokens=[256])
    assert part(times, "o").need.dtype == "bfloat16"
    assert part(times, "o").costs[0].good is not None
    assert part(times, "routed experts").need.dtype == "w4a16_mxfp4"
    assert times.totals[0].good is None  # the tables have no experts in mxfp4


def test_a_diagnosis_of_a_config_begins_with_weights_that_do_not_fit(tables):
    wide = GQA | {"architectures": ["LlamaForCausalLM"], "intermediate_size": 4096}
    found = gacprof.diagnose(wide | {"num_hidden_layers": 16_384}, gpu="h100")
    assert diagnosed(found.summary())[0].startswith("On NVIDIA H100 SXM the model does not fit: ")
    fits = gacprof.diagnose(wide, gpu="h100")
    assert not any("fit" in note for note in fits.notes) and not fits.too_large


def test_a_page_of_a_config_has_a_diagnosis_and_says_why_there_is_no_plan(tables, tmp_path):
    (tmp_path / "model").mkdir()
    config = GQA | {"architectures": ["LlamaForCausalLM"], "intermediate_size": 4096}
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    page = gacprof.report(tmp_path / "model", out=tmp_path / "page", gpu="h100").read_text()
    assert 'id="diagnosis"' in page and 'id="plan"' not in page and "lint --fix" in page
    with pytest.raises(GacprofError, match=r"gacprof lint --fix.*gacprof diagnose"):
        gacprof.plan(tmp_path / "model", gacprof.rule_table("h100"))
