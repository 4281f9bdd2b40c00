"""Plans for an engine: widths at the multiples of its rows, and what else it would serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formula_source import FormulaSource, teeth_of, write_checkpoint
from safetensors.numpy import save_file

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import scan
from gacprof.core.errors import ConfigError, PlanError
from gacprof.lint.lint import lint
from gacprof.lint.multiples import EngineMultiple
from gacprof.planning.plan import Plan, load_plan
from gacprof.planning.planner import plan
from gacprof.realigning.realign import realign

HIDDEN, HEADS, VOCAB, GROUP = 512, 8, 128, 64
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HIDDEN // HEADS,
    "vocab_size": VOCAB,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "torch_dtype": "float16",
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True}
WIDTH = "model.layers.0.mlp:width"


def awq_linear(name: str, n: int, k: int) -> dict[str, np.ndarray[Any, Any]]:
    """AutoAWQ's tensors of a layer: eight outputs in a word, a scale for each group of inputs."""
    return {
        f"{name}.qweight": np.full((k, n // 8), -2004318072, np.int32),
        f"{name}.qzeros": np.full((k // GROUP, n // 8), -2004318072, np.int32),
        f"{name}.scales": np.ones((k // GROUP, n), np.float16),
    }


def awq_checkpoint(folder: Path, width: int, experts: int = 0) -> Inventory:
    layer = "model.layers.0"
    tensors = {
        name: np.zeros((VOCAB, HIDDEN), np.float16)
        for name in ("model.embed_tokens.weight", "lm_head.weight")
    }
    for part in "qkvo":
        tensors |= awq_linear(f"{layer}.self_attn.{part}_proj", HIDDEN, HIDDEN)
    mlps = [f"{layer}.mlp.experts.{i}" for i in range(experts)] or [f"{layer}.mlp"]
    for mlp in mlps:
        tensors |= awq_linear(f"{mlp}.gate_proj", width, HIDDEN)
        tensors |= awq_linear(f"{mlp}.up_proj", width, HIDDEN)
        tensors |= awq_linear(f"{mlp}.down_proj", HIDDEN, width)
    config = {**CONFIG, "intermediate_size": width, "quantization_config": AWQ}
    if experts:
        tensors[f"{layer}.mlp.gate.weight"] = np.zeros((experts, HIDDEN), np.float16)
        config |= {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
        config |= {"moe_intermediate_size": width, "num_experts": experts, "num_experts_per_tok": 2}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return scan(folder)


@pytest.fixture
def awq(tmp_path: Path) -> Inventory:
    return awq_checkpoint(tmp_path / "awq", width=320)


def choice_of(chosen: Plan, dim: str = WIDTH) -> Any:
    return next(choice for choice in chosen.choices if choice.dim == dim)


@pytest.mark.parametrize("tp, width, row", [(1, 320, 64), (2, 384, 128), (4, 512, 256)])
def test_ranks_get_whole_groups(awq: Inventory, tp: int, width: int, row: int) -> None:
    chosen = plan(awq, "h100", engine="vllm", tp=tp)
    choice = choice_of(chosen)
    assert choice.after == width
    assert choice.required == EngineMultiple(row, "awq-group")
    assert chosen.outcome == "ok" and not chosen.unmended


@pytest.mark.parametrize("objective", ["quality", "pad"])
def test_stored_quantised_widths_are_only_padded(awq: Inventory, objective: Any) -> None:
    chosen = plan(awq, "h100", engine="vllm==0.33.0", tp=2, objective=objective)
    assert chosen.sizes == {WIDTH: 384}


def test_without_an_engine_ranks_hold_whole_groups(awq: Inventory) -> None:
    chosen = plan(awq, "h100", tp=2)
    assert chosen.sizes == {WIDTH: 384} and not chosen.engine and not chosen.alternatives
    assert plan(awq, "h100").sizes == {}


def test_an_engine_suffices_where_the_source_knows_nothing(awq: Inventory) -> None:
    source = FormulaSource(teeth_of(8), measured={(1, 1, 1)})
    with pytest.raises(PlanError, match="knows nothing"):
        plan(awq, source, tp=2)
    assert plan(awq, source, tp=2, engine="vllm").sizes == {WIDTH: 384}


def test_multiples_of_the_user_and_of_the_engine_both_hold(awq: Inventory) -> None:
    assert choice_of(plan(awq, "h100", engine="vllm", tp=2, multiple=96)).after == 384
    assert choice_of(plan(awq, "h100", engine="vllm", tp=2, multiple=80)).after == 640


def test_the_planned_checkpoint_is_served(awq: Inventory, tmp_path: Path) -> None:
    assert lint(awq.path, gpu="h100", tp=2).outcome == "refused"
    chosen = plan(awq, "h100", engine="vllm", tp=2, out=tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == chosen
    out = realign(awq, tmp_path / "plan.json", tmp_path / "out")
    assert lint(out, gpu="h100", tp=2).outcome == chosen.outcome == "ok"


def test_what_padding_a_width_does_not_mend_is_named(awq: Inventory) -> None:
    """On 16 ranks 32 inputs of the attention's output are half a group."""
    config = {**awq.config, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 32}
    heads = Path(awq.path) / "config.json"
    heads.write_text(json.dumps(config))
    chosen = plan(heads.parent, "h100", engine="vllm", tp=16)
    assert chosen.outcome == "refused"
    assert {line.partition(":")[0] for line in chosen.unmended} >= {"o"}


def test_experts_are_offered_whole_or_in_finer_groups(tmp_path: Path) -> None:
    inventory = awq_checkpoint(tmp_path / "experts", width=192, experts=4)
    chosen = plan(inventory, "h100", engine="vllm", tp=2)
    assert set(chosen.sizes.values()) == {256}
    assert [r.kind for r in chosen.alternatives if r.outcome == "ok"] == ["ep", "tp", "size"]
    assert "groups" in {remedy.kind for remedy in chosen.alternatives}
    whole = plan(inventory, "h100", engine="vllm", tp=2, ep=2)
    assert whole.sizes == {} and whole.outcome == "ok"


def test_plain_widths_are_what_each_engine_requires(tmp_path: Path) -> None:
    """SGLang's activation wants a multiple of 4 of gate and of up, each, on every rank."""
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
    for part in "qkvo":
        shapes[f"model.layers.0.self_attn.{part}_proj.weight"] = (HIDDEN, HIDDEN)
    for part in ("gate", "up"):
        shapes[f"model.layers.0.mlp.{part}_proj.weight"] = (515, HIDDEN)
    shapes["model.layers.0.mlp.down_proj.weight"] = (HIDDEN, 515)
    folder = write_checkpoint(tmp_path / "plain", shapes, {**CONFIG, "intermediate_size": 515})
    source = FormulaSource(teeth_of(1))
    assert plan(folder, source).sizes == {}
    assert plan(folder, source, engine="vllm", tp=4).sizes == {WIDTH: 516}
    assert plan(folder, source, engine="sglang", tp=4).sizes == {WIDTH: 528}


def test_ranks_that_an_engine_has_no_use_for_are_refused(awq: Inventory) -> None:
    with pytest.raises(ConfigError, match="ep 2"):
        plan(awq, "h100", engine="vllm", tp=2, ep=2)
    with pytest.raises(ConfigError, match="no engine"):
        plan(awq, "h100", engine="vllmm")
