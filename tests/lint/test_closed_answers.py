"""No ok over anything that nobody looked at: public threads, published models, headers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tool_checkpoints import checkpoint, write_safetensors

from gacprof.core.errors import CheckpointError
from gacprof.lint.lint import lint
from gacprof.lint.report import LintReport, sarif

FIXTURES = Path(__file__).parents[1] / "fixtures"
THREADS = {
    "head-dim-ignored": [("vllm a100", "wrong"), ("sglang a100", "ok")],
    "kv-fp8": [("vllm rtxpro6000", "falls back")],
    "moe-untuned": [("vllm h200 8", "refused")],  # 274 GiB of weights on each rank
    "per-layer-config": [("vllm h100", "unknown"), ("vllm h100 2", "refused")],
    "puzzle-block-configs": [("vllm h100 2", "refused")],  # 8191 over two ranks
    "quant-config-beside/1": [("vllm a100 2", "refused")],
    "quant-config-beside/2": [("vllm a100 2", "wrong")],  # GPTQ's loader checks nothing
    "sglang-gptq-moe-bf16/1": [("sglang h100 4", "refused")],
    "unknown-architecture": [("vllm h100", "refused"), ("llama.cpp any", "unknown")],
    "unlisted-products/1": [("vllm h100", "refused")],  # 628 GiB
    "vision-4304": [("vllm a100 2", "unknown"), ("sglang a100 2", "unknown")],
    "w4afp8-group": [("sglang h100", "wrong")],
}
UNKNOWN = {
    "deepseek-v4-flash": "its experts are in another format (expert_dtype)",
    "llava-1.5-7b": "its text part names another model in place of sizes",
    "qwen3.6-35b-a3b-nvfp4": "mixed precision by layer",
}
"""Published models of which vLLM's answer is not known, and why. The list may only shrink."""
REFUSED = {"openelm-270m": "heads by layer", "qwen-vl-chat-int4": "vLLM dropped its class"}
CONFIGS = sorted((FIXTURES / "configs").glob("*.json"))
LLAMA = {
    **{"model_type": "llama", "hidden_size": 128, "intermediate_size": 384, "vocab_size": 256},
    **{"num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2},
}


def llama(**changed: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    """The shapes of a model of LLAMA's sizes, but for those ``changed`` by role."""
    roles = {**dict.fromkeys("qkvo", (128, 128)), "gate": (384, 128), "up": (384, 128)}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (256, 128)}
    shapes["lm_head.weight"] = (256, 128)
    for layer in range(2):
        for role, shape in {**roles, "down": (128, 384), **changed}.items():
            block = "self_attn" if role in "qkvo" else "mlp"
            shapes[f"model.layers.{layer}.{block}.{role}_proj.weight"] = shape
    return shapes


def linted(folder: Path, shapes: Mapping[str, tuple[int, ...]], **fields: Any) -> LintReport:
    return lint(checkpoint(folder, shapes, {**LLAMA, **fields}), gpu="h100")


def open_gaps(report: LintReport) -> set[str]:
    """The names of what was not accounted for; the report is no ok then."""
    names = {gap.name for gap in report.gaps if gap.grade != "note"}
    assert not names or report.outcome in ("unknown", "wrong", "refused")
    return names


@pytest.mark.parametrize(
    "case, where, outcome", [(case, *answer) for case in THREADS for answer in THREADS[case]]
)
def test_threads_are_answered_as_the_engines_did(case: str, where: str, outcome: str) -> None:
    engine, gpu, *tp = where.split()
    ranks = int(tp[0]) if tp else 1
    assert lint(FIXTURES / "threads" / case, engine=engine, gpu=gpu, tp=ranks).outcome == outcome


@pytest.mark.parametrize(
    "path", sorted((FIXTURES / "configs").glob("*.json")), ids=lambda p: p.stem
)
def test_a_published_model_is_unknown_for_a_reason(path: Path) -> None:
    if path.stem in REFUSED:
        return
    report = lint(path, gpu="h100", tp=2)
    is_open = [gap.why for gap in report.gaps if gap.grade == "unknown"]
    assert bool(is_open) == (path.stem in UNKNOWN), is_open


def test_an_unread_key_ends_an_ok_and_headers_lift_the_doubt(tmp_path: Path) -> None:
    fields = {"layer_widths": [384, 384]}
    assert open_gaps(lint({**LLAMA, **fields}, gpu="h100")) == {"layer_widths"}
    assert linted(tmp_path, llama(), **fields).outcome == "ok"


def test_what_is_accepted_is_named_and_no_answer_of_the_engine_is_shown() -> None:
    config = {**LLAMA, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
    config |= {"intermediate_size": 14336, "vocab_size": 128256}
    assert lint(config, gpu="h100").engine_says
    report = lint({**config, "my_ranks": {"q": 119}}, gpu="h100", accept=["my_ranks", "absent"])
    assert (report.outcome, report.accepted, report.engine_says) == ("ok", ("my_ranks",), "")


def test_tensors_of_other_sizes_or_names_end_an_ok(tmp_path: Path) -> None:
    assert linted(tmp_path / "whole", llama()).tensors == 16
    stale = linted(tmp_path / "stale", llama(gate=(376, 128), up=(376, 128), down=(128, 376)))
    assert open_gaps(stale) == {"gate", "up", "down"}
    odd = {**llama(), "model.layers.0.self_attn.my_ranks": (7, 128)}
    assert linted(tmp_path / "odd", odd).outcome == "unknown"


def test_factor_pairs_are_refused(tmp_path: Path) -> None:
    shapes = llama()
    for layer in range(2):
        q = f"model.layers.{layer}.self_attn.q_proj"
        del shapes[f"{q}.weight"]
        shapes |= {f"{q}.BLinear.weight": (33, 128), f"{q}.ALinear.weight": (128, 33)}
    report = linted(tmp_path, shapes)
    assert report.outcome == "refused" and [gap.kind for gap in report.gaps] == ["class", "storage"]


def test_an_adapter_names_its_base(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, {"base_model.q_proj.lora_A.weight": (8, 128)}, {})
    (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "a/base"}))
    with pytest.raises(CheckpointError, match="adapter of a/base"):
        lint(folder)


def test_a_tower_is_a_note_where_it_stays_plain() -> None:
    tower = {"vision_config": {"hidden_size": 64, "intermediate_size": 100}}
    plain = lint({**LLAMA, **tower}, gpu="h100")
    assert plain.outcome == "ok" and {gap.grade for gap in plain.gaps} == {"note"}
    awq: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
    quantised = {**LLAMA, **tower, "quantization_config": awq}
    assert lint(quantised, gpu="h100").outcome == "unknown"
    ignored = {**awq, "modules_to_not_convert": ["visual"]}
    assert lint({**quantised, "quantization_config": ignored}, gpu="h100").outcome == "pads"


def test_layers_and_names_of_a_folder_are_those_of_its_config(tmp_path: Path) -> None:
    fewer = linted(tmp_path / "fewer", llama(), num_hidden_layers=3)
    more = linted(tmp_path / "more", llama(), num_hidden_layers=1)
    assert open_gaps(fewer) == open_gaps(more) == {"num_hidden_layers"}
    merged = {f"base_model.{name}": shape for name, shape in llama().items()}
    assert open_gaps(linted(tmp_path / "merged", merged)) == {"prefix"}
    biases = {f"model.layers.{layer}.mlp.down_proj.bias": (128,) for layer in range(2)}
    assert open_gaps(linted(tmp_path / "flap", {**llama(), **biases})) == {"down bias"}
    tied = {name: shape for name, shape in llama().items() if name != "lm_head.weight"}
    assert linted(tmp_path / "tied", tied).outcome == "ok"
    untied = linted(tmp_path / "untied", tied, tie_word_embeddings=False)
    assert open_gaps(untied) == {"lm_head"}


def without(shapes: Mapping[str, tuple[int, ...]], layer: str, word: str) -> dict[str, Any]:
    return {name: shape for name, shape in shapes.items() if layer not in name or word not in name}


@pytest.mark.parametrize(
    "old, new, gap",
    [
        ("up_proj", "upp_proj", "up"),
        ("0.self_attn.q_proj", "0.self_attn.query", "layer 1"),
        ("model.layers", "layers", "prefix"),
    ],
)
def test_a_renamed_tensor_is_no_ok(old: str, new: str, gap: str, tmp_path: Path) -> None:
    shapes = {name.replace(old, new): shape for name, shape in llama().items()}
    assert open_gaps(linted(tmp_path, shapes)) == {gap}


def test_a_scale_that_one_layer_lacks_is_no_ok_but_where_it_is_ignored(tmp_path: Path) -> None:
    fp8: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    shapes = llama()
    for name in [name for name in shapes if "proj" in name]:
        shapes[f"{name}_scale"] = (1,)
    assert not open_gaps(linted(tmp_path / "whole", shapes, quantization_config=fp8))
    down = "model.layers.1.mlp.down_proj"
    less = {name: shape for name, shape in shapes.items() if name != f"{down}.weight_scale"}
    assert open_gaps(linted(tmp_path / "less", less, quantization_config=fp8)) == {"layer 1"}
    fp8["ignored_layers"] = [down]
    assert not open_gaps(linted(tmp_path / "ignored", less, quantization_config=fp8))


@pytest.mark.parametrize("word", ["o_proj", "gate_proj", "mlp"])
def test_a_product_that_one_layer_lacks_is_no_ok(word: str, tmp_path: Path) -> None:
    assert linted(tmp_path, without(llama(), "layers.1", word)).outcome == "unknown"


def test_every_expert_is_there(tmp_path: Path) -> None:
    mixtral = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    shapes = without(llama(), "layers", "mlp")
    for layer, expert in product(range(2), range(4)):
        name = f"model.layers.{layer}.block_sparse_moe.experts.{expert}"
        shapes |= {f"{name}.w1.weight": (384, 128), f"{name}.w3.weight": (384, 128)}
        shapes[f"{name}.w2.weight"] = (128, 384)
    assert linted(tmp_path / "whole", shapes, **mixtral).outcome == "ok"
    less = without(shapes, "layers.1", "experts.3.w2")
    assert open_gaps(linted(tmp_path / "less", less, **mixtral)) == {"experts"}


def test_a_format_is_that_of_the_tensors(tmp_path: Path) -> None:
    awq = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
    awq["zero_point"] = True
    plain = linted(tmp_path / "plain", llama(), quantization_config=awq)
    assert open_gaps(plain) == {"awq"}
    packed = {name: shape for name, shape in llama().items() if "proj" not in name}
    for layer in range(2):
        for role, (rows, columns) in {"q": (128, 128), "down": (128, 384)}.items():
            block = "self_attn" if role == "q" else "mlp"
            name = f"model.layers.{layer}.{block}.{role}_proj"
            packed |= {
                f"{name}.qweight": (columns // 8, rows),
                f"{name}.scales": (columns // 64, rows),
            }
            packed[f"{name}.qzeros"] = (columns // 64, rows // 8)
    other = linted(tmp_path / "packed", packed, quantization_config=awq)
    assert "model.layers.0.self_attn.q_proj" in open_gaps(other)


@pytest.mark.parametrize(
    "fields, gap",
    [
        ({"layer_types": ["full_attention"] * 3}, "layer_types"),
        ({"num_experts": 4, "num_experts_per_tok": 8}, "num_experts_per_tok"),
        ({"n_routed_experts": 9, "n_group": 2, "num_experts_per_tok": 2}, "n_group"),
        ({"hybrid_override_pattern": "MX"}, "hybrid_override_pattern"),
        ({"intermediate_size": [384, 256]}, "intermediate_size"),
        ({"layer_widths": "384, 256"}, "layer_widths"),
        ({"rope_scaling": {"type": "longrope", "long_factor": [1.0] * 15}}, "long_factor"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 5]}}, "mrope_section"),
        ({"model_type": "llamma"}, "model_type"),
    ],
)
def test_a_config_that_contradicts_itself_is_no_ok(fields: dict[str, Any], gap: str) -> None:
    assert gap in open_gaps(lint({**LLAMA, **fields}, gpu="h100"))


def test_gaps_stand_in_sarif() -> None:
    log = sarif(lint({**LLAMA, "layer_widths": [384, 7], "hidden_act": "relu6"}, gpu="h100"))
    levels = {row["ruleId"]: row["level"] for row in log["runs"][0]["results"]}
    assert levels["vllm/unaccounted-key"] == "note"
    assert levels["vllm/unaccounted-activation"] == "error"


def published(
    folder: Path, name: str, shapes: dict[str, tuple[int, ...]], **dtypes: str
) -> LintReport:
    """A report on a folder with a published config, and tensors as its files name them."""
    folder.mkdir()
    shutil.copy(FIXTURES / "configs" / f"{name}.json", folder / "config.json")
    write_safetensors(folder / "model.safetensors", shapes, "bfloat16", **dtypes)
    return lint(folder, gpu="h200")


def test_files_of_gpt_oss_hold_experts_in_blocks(tmp_path: Path) -> None:
    """openai/gpt-oss-20b: q, k, v and o have biases, 32 experts lie in one tensor."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (201088, 2880)}
    shapes["lm_head.weight"] = (201088, 2880)
    widths = {"q": (4096, 2880), "k": (512, 2880), "v": (512, 2880), "o": (2880, 4096)}
    for layer in range(24):
        start = f"model.layers.{layer}"
        for role, shape in widths.items():
            shapes[f"{start}.self_attn.{role}_proj.weight"] = shape
            shapes[f"{start}.self_attn.{role}_proj.bias"] = shape[:1]
        shapes[f"{start}.mlp.router.weight"] = (32, 2880)
        for part, rows in (("gate_up", 5760), ("down", 2880)):
            shapes[f"{start}.mlp.experts.{part}_proj_blocks"] = (32, rows, 90, 16)
            shapes[f"{start}.mlp.experts.{part}_proj_scales"] = (32, rows, 90)
    packed = {f"{part}_proj_blocks": "uint8" for part in ("gate_up", "down")}
    assert published(tmp_path / "oss", "gpt-oss-20b", shapes, **packed).outcome == "ok"


def test_files_of_internvl_name_the_text_and_its_tower(tmp_path: Path) -> None:
    """OpenGVLab/InternVL2-2B: InternLM2's names behind language_model, a tower, a projector."""
    shapes: dict[str, tuple[int, ...]] = {
        "language_model.model.tok_embeddings.weight": (92553, 2048),
        "language_model.output.weight": (92553, 2048),
        "vision_model.encoder.layers.0.attn.qkv.weight": (3072, 1024),
        "mlp1.1.weight": (2048, 4096),
    }
    for layer in range(24):
        start = f"language_model.model.layers.{layer}"
        shapes[f"{start}.attention.wqkv.weight"] = (4096, 2048)
        shapes[f"{start}.attention.wo.weight"] = (2048, 2048)
        for part, shape in {"w1": (8192, 2048), "w3": (8192, 2048), "w2": (2048, 8192)}.items():
            shapes[f"{start}.feed_forward.{part}.weight"] = shape
    report = published(tmp_path / "internvl", "internvl2-2b", shapes)
    assert report.outcome == "pads" and [gap.grade for gap in report.gaps] == ["note"]
