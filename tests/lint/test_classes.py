"""Whether an engine has a config's class, of classes that people asked about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_facts.sources import names_in

from gacprof.checkpoint.coverage import NEUTRAL, Gap
from gacprof.checkpoint.from_config import TABLES, ConfigSizes
from gacprof.kernels.requirements import load_engine, plain_version
from gacprof.lint.classes import class_gaps, class_table, rows

QWEN2_CUT = {  # a thread's: heads of 128 left after pruning the hidden size to 1792
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 1792,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
}
TOOL = Path(__file__).parents[2] / "tools" / "engine_facts"
MAINSTREAM = (TOOL / "mainstream.txt").read_text(encoding="utf-8").split()
UNKNOWN_TO_VLLM = {
    *("ministral", "minimax", "bamba", "dots1"),  # it has none, or none any more
    *("phimoe", "kimi_k25"),  # it names them otherwise than transformers
    *("hunyuan_v1_dense", "hunyuan_v1_moe"),  # it runs transformers' code, which no plan splits
}


def gaps(config: dict[str, Any], engine: str = "vllm", version: str | None = None) -> list[Gap]:
    """What is said of a class; where none is stated a note tells which one is taken."""
    found = class_gaps(ConfigSizes(config), load_engine(engine, version))
    return [gap for gap in found if gap.name != "architectures"]


def grade(name: str, model_type: str, engine: str = "vllm", version: str | None = None) -> str:
    """The grade of the only gap that a class has; empty where it has none."""
    keys = load_engine(engine, version).required.get(name, ())
    config = {"architectures": [name], "model_type": model_type, **dict.fromkeys(keys, 1)}
    found = gaps(config, engine, version)
    assert len(found) < 2
    return found[0].grade if found else ""


@pytest.mark.parametrize(
    "name, model_type",
    [
        ("QWenLMHeadModel", "qwen"),
        ("BaichuanForCausalLM", "baichuan"),
        ("AquilaForCausalLM", "aquila"),
        ("XverseForCausalLM", "xverse"),
        ("InternLMForCausalLM", "internlm"),
        ("Grok1ForCausalLM", "grok-1"),
        ("MiniMaxText01ForCausalLM", "minimax_text_01"),
        ("Plamo2ForCausalLM", "plamo2"),
        ("MptForCausalLM", "mpt"),  # in transformers, but its attention is its own
        ("CodeGenForCausalLM", "codegen"),
        ("LlamaPrunedForCausalLM", "llama"),
    ],
)
def test_a_class_that_vllm_dropped_or_never_had_is_refused(name: str, model_type: str) -> None:
    assert grade(name, model_type) == "refused"


@pytest.mark.parametrize("name", ["BambaForCausalLM", "Dots1ForCausalLM", "JetMoeForCausalLM"])
def test_a_class_of_transformers_that_vllm_does_not_list_is_unknown(name: str) -> None:
    model_type = rows("transformers", "native")[name][0]
    assert grade(name, model_type) == "unknown"


def test_a_class_that_vllm_runs_by_transformers_code_is_noted() -> None:
    # It fuses q, k, v and gate, up of such a class as of its own; SGLang fuses nothing.
    assert grade("SmolLM3ForCausalLM", "smollm3") == "note"
    assert grade("SmolLM3ForCausalLM", "smollm3", "sglang") == "unknown"
    # transformers has no plan to split it: what vLLM doesn't fuse stays whole on each rank
    assert grade("GPTBigCodeForCausalLM", "gpt_bigcode") == "unknown"


def test_the_versions_that_had_a_dropped_class_serve_it() -> None:
    assert grade("QWenLMHeadModel", "qwen", version="0.23.0") == ""
    assert grade("QWenLMHeadModel", "qwen", version="0.23.1") == "refused"


def test_at_a_version_that_nobody_read_a_missing_class_is_unknown() -> None:
    assert grade("LlamaPrunedForCausalLM", "llama", version="0.30.0") == "unknown"


@pytest.mark.parametrize("version", ["0.8.4", "0.33.1", "0.40"])
def test_outside_of_the_versions_that_were_read_any_class_is_unknown(version: str) -> None:
    (gap,) = gaps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "vllm", version)
    assert (gap.kind, gap.name, gap.grade) == ("class", "vllm", "unknown")
    assert version in gap.why and "0.33.0" in gap.why


@pytest.mark.parametrize("version", ["0.8.5", "0.8.5.post1", "0.33.0rc1", "0.33.0"])
def test_the_oldest_and_the_newest_version_were_read(version: str) -> None:
    assert grade("LlamaForCausalLM", "llama", version=version) == ""


def test_a_version_that_is_older_than_a_class_has_it_not() -> None:
    """vLLM 0.13.0 lacked Grok-1 and 0.14.0 had it; between them nobody looked."""
    assert grade("Grok1ForCausalLM", "grok-1", version="0.14") == ""
    assert grade("Grok1ForCausalLM", "grok-1", version="0.13.1") == "unknown"
    assert grade("Grok1ForCausalLM", "grok-1", version="0.13.0") == "refused"
    assert grade("Grok1ForCausalLM", "grok-1", version="0.10") == "refused"


@pytest.mark.parametrize(
    "name, model_type, engine, lacking, having",
    [
        ("Qwen3_5ForCausalLM", "qwen3_5_text", "vllm", "0.26.0", "0.27.0"),
        ("Qwen3VLForConditionalGeneration", "qwen3_vl", "vllm", "0.10.2", "0.11.0"),
        ("Exaone4ForCausalLM", "exaone4", "vllm", "0.8.5", "0.10.0"),
        ("Glm4MoeForCausalLM", "glm4_moe", "sglang", "0.4.9.post2", "0.4.10"),  # post-releases vary
    ],
)
def test_a_version_without_a_class_may_run_transformers_code(
    name: str, model_type: str, engine: str, lacking: str, having: str
) -> None:
    assert grade(name, model_type, engine, lacking) == "unknown"
    assert grade(name, model_type, engine, having) == ""


def test_a_class_that_vllm_lists_since_a_version_is_noted_since_then() -> None:
    assert grade("SmolLM3ForCausalLM", "smollm3", version="0.10.1") == "note"
    assert grade("SmolLM3ForCausalLM", "smollm3", version="0.10.0") == "unknown"


def test_between_the_first_and_the_last_time_that_a_class_was_away_it_is_unknown() -> None:
    """vLLM 0.27.0 to 0.31.0 call it ExaoneMoeForCausalLM alone."""
    grades = {
        at: grade("ExaoneMoEForCausalLM", "exaone_moe", version=at) for at in ("0.29", "0.32")
    }
    assert grades == {"0.29": "unknown", "0.32": ""}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_class_is_there_after_the_version_that_lacked_it(engine: str) -> None:
    read, oldest = (plain_version(class_table(engine)[key]) for key in ("read", "oldest"))
    for since, lacking in rows(engine, "since").values():
        assert oldest <= plain_version(lacking) < plain_version(since) <= read


def test_of_a_base_class_only_the_engine_is_named() -> None:
    (gap,) = gaps({"architectures": ["Qwen3Model"], "model_type": "qwen3"})
    assert gap.grade == "unknown" and "transformers" not in gap.why


def test_engines_have_other_classes() -> None:
    assert grade("QWenLMHeadModel", "qwen", "llama.cpp") == ""
    assert grade("MptForCausalLM", "mpt", "transformers") == ""
    assert grade("MptForCausalLM", "mpt", "sglang") == "refused"
    assert grade("MptForCausalLM", "mpt", "tensorrt-llm") == "unknown"


def test_a_class_of_another_model_type_is_unknown() -> None:
    assert grade("Qwen3_5ForConditionalGeneration", "qwen3_5_moe_text") == "unknown"
    assert grade("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe") == ""


def test_a_type_that_transformers_does_not_have_may_stand_beside_any_class() -> None:
    assert grade("LlamaForCausalLM", "Yi") == ""


def test_without_a_class_that_of_the_model_type_counts() -> None:
    assert gaps({"model_type": "llama"}) == gaps({"model_type": "qwen3_omni_moe"}) == []
    assert [gap.grade for gap in gaps({"model_type": "smollm3"})] == ["note"]
    assert [gap.grade for gap in gaps({"model_type": "spark"})] == ["unknown"]


def test_code_of_a_checkpoint_is_unknown() -> None:
    code = {"AutoModelForCausalLM": "modeling_spark.SparkForCausalLM"}
    config = {"architectures": ["SparkForCausalLM"], "model_type": "spark", "auto_map": code}
    assert [gap.grade for gap in gaps(config)] == ["unknown"]
    assert [gap.grade for gap in gaps(config | {"auto_map": code}, "sglang")] == ["unknown"]


def test_an_adapter_is_refused_with_the_name_of_its_base() -> None:
    (gap,) = gaps({"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-8B"})
    assert gap.grade == "refused" and "Qwen/Qwen3-8B" in gap.why


def test_a_class_that_never_reads_a_stated_head_dim_builds_another_one() -> None:
    """Of more heads' entries it takes a part (vLLM 0.33.0 loads them); fewer it refuses."""
    (gap,) = gaps(QWEN2_CUT)
    assert (gap.name, gap.grade) == ("head_dim", "wrong") and "128" in gap.why
    assert "112" in gap.why  # 1792 / 16: what the engine builds
    assert [gap.grade for gap in gaps(QWEN2_CUT | {"head_dim": 96})] == ["refused"]
    assert gaps(QWEN2_CUT | {"head_dim": 112}) == []
    as_qwen3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    assert gaps(QWEN2_CUT | as_qwen3) == []
    assert gaps(QWEN2_CUT, "transformers") == []


def test_a_key_that_the_class_reads_of_every_config_is_required() -> None:
    """vLLM 0.33.0 ends with an AttributeError where transformers saved a config without it."""
    lfm2 = {"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2"}
    (gap,) = gaps(lfm2)
    assert (gap.name, gap.grade) == ("conv_dim", "refused")
    assert gaps(lfm2 | {"conv_dim": 2048}) == gaps(lfm2, "sglang") == []


def test_a_class_that_takes_silu_alone_refuses_another_activation() -> None:
    llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "relu6"}
    assert [gap.grade for gap in gaps(llama)] == ["refused"]
    assert [gap.grade for gap in gaps(llama | {"hidden_act": "swish"})] == ["refused"]
    assert gaps(llama | {"hidden_act": "silu"}) == []


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    "name, model_type",
    [("DeepseekV3ForCausalLM", "deepseek_v3"), ("DeepseekV4ForCausalLM", "deepseek_v4")],
)
def test_latent_attention_has_no_heads_of_its_own(name: str, model_type: str, engine: str) -> None:
    config = {"architectures": [name], "model_type": model_type, "hidden_size": 7168}
    heads = {"num_attention_heads": 128, "num_key_value_heads": 1, "head_dim": 64}
    assert gaps(config | heads, engine) == []


def test_names_out_of_a_config_are_bounded_and_in_one_line() -> None:
    (gap,) = gaps({"architectures": ["A\x1b[31m\n" + "B" * 500], "model_type": "llama"})
    assert gap.why.isprintable() and len(gap.why) < 200


@pytest.mark.parametrize("names", [None, [], {}, 7, [None], ""])
def test_what_is_no_class_counts_as_none(names: Any) -> None:
    assert gaps({"architectures": names, "model_type": "llama"}) == []


@pytest.mark.parametrize("model_type", MAINSTREAM)
def test_mainstream_types_have_a_class_that_vllm_runs(model_type: str) -> None:
    types = rows("transformers", "native").items()
    for name in (name for name, its in types if model_type in its):
        is_unknown = model_type in UNKNOWN_TO_VLLM
        assert grade(name, model_type) in (["unknown"] if is_unknown else ["", "note"])


def test_no_size_of_families_is_called_neutral() -> None:
    sizes = {key for keys in TABLES["fields"].values() for key in keys}
    assert not sizes & set(NEUTRAL["keys"])


def test_a_class_reads_what_the_files_read_that_it_takes_layers_from() -> None:
    sources = {
        "models/a.py": "from .b import BAttention, helper\nfrom . import c\nwidth = config.width",
        "models/b.py": "from engine.models.d import tool\nhead_dim = getattr(config, 'head_dim')",
        "models/c.py": "experts = text_config.get('num_experts', other.field)",
        "engine/models/d.py": "unread = config.unread",
    }
    assert names_in(sources, "models/a") == {"width", "head_dim", "get", "num_experts"}
