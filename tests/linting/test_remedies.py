"""What a remedy promises comes of it: each is applied as a user would, and judged anew."""

import pytest
from transformers import CONFIG_MAPPING

from gacprof.core.errors import LintError
from gacprof.demands.configs import TIED, families
from gacprof.linting import lint

GPTQ_128 = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}
NAS = {
    "block_configs": [{"ffn": {"ffn_mult": 2.0 + i}} for i in range(4)],
    "model_type": "nemotron-nas",
}


def cases(llama, qwen):
    pruned = llama | {"intermediate_size": 11469}
    wide = {"hidden_size": 8192, "intermediate_size": 29568, "num_attention_heads": 64}
    nas = {k: v for k, v in llama.items() if k != "intermediate_size"} | NAS
    return [
        (pruned, {"gpu": "h100", "quant": "fp8"}),
        (pruned, {"gpu": "a100", "tp": 3}),
        (llama | wide | {"quantization_config": GPTQ_128}, {"gpu": "h100", "tp": 2}),
        (llama, {"gpu": "v100", "quant": "fp8"}),
        (llama, {"gpu": "b200", "quant": "nvfp4", "engine": "sglang", "tp": 16}),
        (nas, {"gpu": "a100", "tp": 3, "quant": "gguf-q4_k"}),
        (qwen, {"gpu": "h100", "tp": 8, "quant": "fp8-block"}),
        (qwen, {"gpu": "h100", "tp": 24, "engine": "sglang"}),
    ]


def applied(config, asked, remedy):
    """The lint of a remedy that is one option or some sizes."""
    if remedy.kind == "size":
        return lint(config | dict(remedy.config), **asked)
    if remedy.kind == "group":
        name = asked.get("quant") or config["quantization_config"]["quant_method"]
        return lint(config, **asked | {"quant": f"{name}-g{remedy.option.split()[-1]}"})
    if remedy.kind in ("engine", "version"):
        return lint(config, **asked | {"engine": remedy.option.split()[-1]})
    if remedy.kind == "tp":
        return lint(config, **asked | {"tp": int(remedy.option.split()[-1])})
    return lint(config, **asked | {"ep": True}) if remedy.option == "--ep" else None


@pytest.mark.parametrize("number", range(8))
def test_every_remedy_does_what_it_says(number, llama, qwen):
    config, asked = cases(llama, qwen)[number]
    before = lint(config, **asked)
    for remedy in before.remedies:
        after = applied(config, asked, remedy)
        if after is not None:
            assert (remedy.what, after.outcome) == (remedy.what, remedy.outcome)
            row = next(row for row in after.tp_table if (row.tp, row.ep) == (after.tp, after.ep))
            assert (remedy.what, row.worst_tier) == (remedy.what, remedy.tier)
        changed = remedy.config or {}
        assert all(config.get(name) != size for name, size in changed.items())


def test_modules_left_in_bf16_have_the_tier_of_bf16(llama):
    found = lint(llama | {"intermediate_size": 11469}, gpu="h100", quant="fp8")
    assert all(remedy.kind != "ignore" for remedy in found.remedies)  # it would be of a worse tier


def test_a_group_by_number_is_not_the_configs_own(llama):
    stored = llama | {"quantization_config": GPTQ_128}
    assert lint(stored, quant="gptq-g64").quant == "gptq-g64"
    assert lint(stored, quant="gptq-g128").quant == lint(stored, quant="gptq").quant == "gptq"


def test_engines_are_not_recommended_for_gpus_that_they_are_not_made_for(llama):
    found = lint(llama, gpu="v100", quant="fp8")
    assert all(remedy.kind != "engine" for remedy in found.remedies)
    for gpu, quant in (("t4", None), ("a100", "fp8"), ("h100", "nvfp4")):
        assert lint(llama, engine="tensorrt-llm", gpu=gpu, quant=quant).outcome == "unknown"
    assert lint(llama, engine="tensorrt-llm", gpu="h100", quant="fp8").outcome == "ok"


def test_experts_are_not_shared_out_where_there_are_none(llama):
    with pytest.raises(LintError, match="the config has none"):
        lint(llama, tp=8, ep=True)


def test_a_split_size_that_is_missing_leaves_its_product_unknown(llama):
    widths = llama | {"intermediate_size": [14336, 11469] * 16}
    rows = {row.name: row.outcome for row in lint(widths, tp=8).products}
    assert rows["down"] == rows["gate_up"] == "unknown" and rows["o"] == "ok"


@pytest.mark.parametrize("name", sorted(families()))
def test_a_silent_config_has_the_head_that_its_class_means(name):
    if name not in CONFIG_MAPPING or name in ("mistral3", "ministral3"):
        return
    made = CONFIG_MAPPING[name]()
    tied = getattr(getattr(made, "text_config", None) or made, "tie_word_embeddings", None)
    assert tied is None or tied is (name in TIED)
