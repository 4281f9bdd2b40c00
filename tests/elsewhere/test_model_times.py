"""What a model's products take by others' measurements: sums, bounds, and what stays open."""

import json

import pytest
from checkpoint_making import checkpoint
from planted_elsewhere import FACTORS, planted_us, rows_of

import gacprof
from gacprof.core.errors import MapError
from gacprof.reporting.wording import diagnosed

CONFIG = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 16384,
    "torch_dtype": "bfloat16",
}  # fmt: skip
PRODUCTS = {"qkv": (1024, 512), "o": (512, 512), "gate_up": (2048, 512), "down": (512, 1024)}


def times_on(model, gpu, engine=None, **asked):
    found = gacprof.diagnose(model, gacprof.open_source(gpu=gpu, engine=engine), **asked).times
    assert found is not None
    return found


def by_name(times):
    return {part.need.name: part for part in times.parts}


def sizes(part):
    return part.need.shape["N"], part.need.shape["K"]


def test_a_config_alone_gives_what_a_decode_step_and_a_prefill_take_at_least(measured):
    times = times_on(CONFIG, "h100")
    products = {n: p for n, p in by_name(times).items() if p.need.kind == "product"}
    shapes = {n: (*sizes(p), p.need.count) for n, p in products.items()}
    expected = {n: (*shape, 3) for n, shape in PRODUCTS.items()} | {"lm_head": (16384, 512, 1)}
    assert shapes == expected
    for total in times.totals:
        m = total.tokens
        layers = 3 * sum(planted_us(m, n, k) for n, k in PRODUCTS.values())
        least = layers + planted_us(1, 16384, 512)
        assert total.good is None  # the tables here have no attention
        assert 0.5 * least < total.at_least < least
        assert (total.saved, total.open, total.unknown) == (None, 0, 1)
    assert times.sources == tuple(f"{engine} 0.24.0" for engine in sorted(FACTORS))


def test_an_engine_a_dtype_and_ranks_change_what_is_asked(measured):
    times = times_on(CONFIG, "h100", engine="sglang", dtype="fp8", tokens=[1024], tp=2)
    found = by_name(times)
    assert sizes(found["down"]) == (512, 512)
    assert found["down"].need.dtype == "fp8"
    assert found["lm_head"].need.dtype == "bfloat16"  # engines leave the head as it is
    value = found["o"].costs[0].good.value
    assert value == pytest.approx(3 * planted_us(1024, 512, 256, FACTORS["sglang"] / 2))


def test_what_a_misaligned_width_costs_is_published_or_open_never_zero(measured):
    wide = {"hidden_size": 4096, "intermediate_size": 14335, "num_attention_heads": 32}
    times = times_on(CONFIG | wide, "h100")
    down = by_name(times)["down"]
    decode, prefill = down.costs
    assert down.good == {"N": 4096, "K": 14336}
    assert decode.now is None
    assert "not published" in decode.missing
    assert 0 < prefill.saved.low < prefill.saved.value < prefill.saved.high
    # odd K on H100: x3.3 as published (arXiv 2604.09595), x5.7 beside the time of others
    assert prefill.now.value == pytest.approx(3.3 * prefill.good.value, rel=0.01)
    assert (
        prefill.now.low < 3.4 * prefill.good.value and prefill.now.high > 5.6 * prefill.good.value
    )
    assert all(total.open > 0 and total.now is None for total in times.totals)
    other = by_name(times_on(CONFIG | wide, "b300"))["down"].costs[1]  # no such chip was published
    assert other.now is None and "gacprof sweep --for" in other.missing


def test_what_a_product_smaller_than_the_published_one_gains_may_be_nothing(measured):
    """The published factor is of a product of tens of µs: it does not multiply launches."""
    times = times_on(CONFIG | {"intermediate_size": 1001}, "h100", tokens=[1024])
    (cost,) = by_name(times)["down"].costs
    assert cost.saved.low <= 0 < cost.saved.value < cost.saved.high
    assert cost.now.low <= cost.good.high
    small = {"hidden_size": 128, "intermediate_size": 129, "num_attention_heads": 2}
    times = times_on(CONFIG | small | {"num_key_value_heads": 2}, "h100", tokens=[512])
    (cost,) = by_name(times)["down"].costs
    assert planted_us(512, 128, 136) < 10
    assert cost.good is not None and cost.now is None and "mostly the launch" in cost.missing
    assert times.totals[0].saved is None


def test_what_has_no_time_is_named_and_left_out_of_the_totals(measured):
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2, "model_type": "mixtral"}
    times = times_on(CONFIG | experts | {"vocab_size": 262144}, "h100")
    assert times.totals[0].unknown == 3
    said = "\n".join(times.left_out)
    assert "N=262144 is outside what was measured" in said
    assert "routed experts: hidden 512, width 1024, experts 8, topk 2 is not among" in said
    assert "attention: heads 8, kv_heads 4, head_dim 64 is not among" in said


def test_a_quantisation_that_was_not_measured_is_refused_by_name(measured):
    packed = CONFIG | {
        "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}
    }
    with pytest.raises(MapError, match=r"no times of bnb .*--dtype"):
        times_on(packed, "h100")
    assert times_on(packed, "h100", dtype="bf16").totals


def weights(folder, width=1024):
    shapes = {"lm_head.weight": ("bfloat16", (4096, 256))}
    for i in range(2):
        layer = f"model.layers.{i}"
        for name in "qkvo":
            shapes[f"{layer}.self_attn.{name}_proj.weight"] = ("bfloat16", (256, 256))
        for name, shape in (("gate", (width, 256)), ("up", (width, 256)), ("down", (256, width))):
            shapes[f"{layer}.mlp.{name}_proj.weight"] = ("bfloat16", shape)
    config = CONFIG | {
        "hidden_size": 256, "intermediate_size": width, "num_attention_heads": 2,
        "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 4096,
        "architectures": ["LlamaForCausalLM"],
    }  # fmt: skip
    return checkpoint(folder / "model", shapes, config)


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_diagnose_of_a_config_prints_bounds_and_sources(measured, run, config_file):
    code, out, _ = run("diagnose", config_file, "--gpu", "h100", "--engine", "vllm")
    assert code == 0  # all sizes are good; that no whole step has a time is no finding
    assert out.startswith("No size is known that NVIDIA H100 SXM serves worse, by rules")
    first, second = (line for line in out.splitlines() if line.startswith("By others"))
    assert first.endswith("without attention (products as engines fuse them, vllm).")
    assert second.endswith("without attention.")
    why = run("diagnose", config_file, "--gpu", "h100", "--engine", "vllm", "--why")[1]
    assert "measured elsewhere by vllm 0.24.0" in why
    given = json.loads(run("diagnose", config_file, "--gpu", "h100", "--json")[1])
    assert given["schema"] == "gacprof.diagnosis/1"
    total = given["times"]["totals"][0]
    assert total["good"] is None
    assert total["at_least"] == total["timed"]["low"] > 0
    parts = [part["costs"][0]["good"] for part in given["times"]["parts"]]
    added = sum(good["value"] for good in parts if good)
    assert total["timed"]["value"] == pytest.approx(added)  # what is printed of parts adds up
    good = given["times"]["parts"][0]["costs"][0]["good"]
    assert good["low"] < good["high"]


@pytest.mark.parametrize(("width", "code"), [(1024, 0), (1001, 1)])
def test_misaligned_sizes_are_a_finding_of_weights_and_configs_alike(
    measured, run, tmp_path, width, code
):
    model = weights(tmp_path, width)
    ended = run("diagnose", model, "--gpu", "h100", "--json")
    assert ended.code == code and json.loads(ended.out)["times"]["totals"]
    assert run("diagnose", model / "config.json", "--gpu", "h100")[0] == code
    assert "no times: no measurements of 'l4'" in run("diagnose", model, "--gpu", "l4", "--why")[1]


@pytest.mark.parametrize(
    ("head_dim", "code", "said"),
    [(128, 0, "No size is known"), (107, 1, "head_dim 107 is one"), (100, 1, "head_dim 100 is one"),
     (104, 0, "head_dim 104 is undecided")],
)  # fmt: skip
def test_a_configs_head_dim_is_judged_as_a_checkpoints(run, config_file, head_dim, code, said):
    config_file.write_text(json.dumps(CONFIG | {"head_dim": head_dim}))
    found = run("diagnose", config_file, "--gpu", "h100")
    assert (found.code, said in found.out) == (code, True), found.out
    latent = {"model_type": "deepseek_v2", "kv_lora_rank": 512, "qk_rope_head_dim": 64,
              "qk_nope_head_dim": 128, "v_head_dim": 128}  # fmt: skip
    config_file.write_text(json.dumps(CONFIG | latent))
    first = run("diagnose", config_file, "--gpu", "h100").out.splitlines()[0]
    assert "attention's head_dim not judged" in first


def test_without_measurements_sizes_are_judged_by_rules_and_what_installs_them_is_named(
    run, config_file
):
    code, out, _ = run("diagnose", config_file, "--gpu", "rtx4090")
    assert code == 0 and "pip install 'gacprof[elsewhere]'" in out
    assert "by rules, not measured, of 5 products judged" in out.splitlines()[0]
    gptq = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}
    config_file.write_text(json.dumps(CONFIG | gptq))
    first = run("diagnose", config_file, "--gpu", "rtx4090").out.splitlines()[0]
    assert first.startswith("1 of 5 products judged") and "down not judged" in first
    config_file.write_text(json.dumps(CONFIG | {"quantization_config": {"quant_method": "fp8"}}))
    code, _, err = run("diagnose", config_file, "--gpu", "a100-40gb")
    assert code == 2 and "has no rules for these products; 'gacprof lint" in err
    config_file.write_text(json.dumps(CONFIG | {"intermediate_size": 1001}))
    code, out, _ = run("diagnose", config_file, "--gpu", "rtx4090")
    assert code == 1 and "intermediate_size 1001 → " in out.splitlines()[0]
    code, out, _ = run("gpus")
    assert code == 0 and "pip install 'gacprof[elsewhere]'" in out


def test_a_page_has_the_steps_with_bounds_and_sources(measured, tmp_path):
    text = gacprof.report(weights(tmp_path), out=tmp_path / "page", gpu="h100").read_text()
    for said in ('href="#steps"', "whole steps on h100_sxm, in bfloat16, measured elsewhere by",
                 "vllm 0.24.0", "a step of 1,024 tokens", "good sizes save"):  # fmt: skip
        assert said in text


def test_bad_requests_are_one_line(measured, run, config_file):
    for arguments, says in (
        (("--gpu", "h100", "--engine", "tgi"), "no engine 'tgi'"),
        (("--gpu", "h100", "--dtype", "nvfp4"), "no times of nvfp4"),
        (("--gpu", "mi300"), "no GPU 'mi300' is known"),
        (("--map", "h100-published", "--engine", "vllm"), "--engine goes with --gpu"),
    ):
        code, _, err = run("diagnose", config_file, *arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert says in err


def test_gpus_lists_rules_maps_and_measurements(measured, write, run):
    write(rows_of(), gpu="rtx_pro_6000_server")
    rows = {row["gpu"]: row for row in json.loads(run("gpus", "--json")[1])["gpus"]}
    assert rows["h100"]["shipped_map"] == "h100-published"
    assert rows["h100"]["engines"] == ["sglang", "trtllm", "vllm"]
    assert rows["b300"]["engines"] == ["vllm"]
    assert rows["l4"]["rows"] == 0
    assert [name for name in rows if "6000" in name] == ["rtx-pro-6000"]
    assert list(gacprof.gpus().to_frame()["gpu"]) == list(rows)
    assert "0.24.0" in run("gpus", "--gpu", "h100")[1]
    assert run("gpus", "--gpu", "z9")[0] == 2


def test_a_configs_diagnosis_says_in_python_what_its_parts_say(measured):
    """Of gate and up in one product 2008 outputs are good, of down a width of 1004 is not."""
    found = gacprof.diagnose(CONFIG | {"intermediate_size": 1001}, gpu="h100")
    odd = [p.need.name for p in found.times.parts if p.misaligned]
    assert odd == ["gate_up", "down"]
    good = {part.need.name: part.good for part in found.times.parts}
    assert good["gate_up"]["N"] == 2 * good["down"]["K"] == 2 * 1008
    assert "2 of 5 products have sizes that are not of the best tier" in repr(found)
    assert found.as_dict()["totals"] == {
        "products": 5, "judged": 5, "not_judged": [], "refused": [],
        "misaligned": 2, "open": 2, "unknown": 1, "head_dims_safe": [],
        "head_dims_misaligned": [], "head_dims_undecided": [64],
    }  # fmt: skip
    frame = found.to_frame()
    assert list(frame[frame["misaligned"].eq(True)]["part"].unique()) == odd
    headline, *rest = diagnosed(found.summary())
    assert "serves worse: intermediate_size 1001 → 1008, by rules" in headline
    steps = [one for one in rest if one.startswith("By others")]
    assert steps and all("at good sizes" in one and "as it is, not known (" in one for one in steps)
