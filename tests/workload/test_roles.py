"""Roles are rows with known words, and split as transformers' own plans of tensor parallelism."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import pytest
from pydantic import ConfigDict, TypeAdapter, ValidationError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from gacprof.checkpoint.inventory import Module
from gacprof.checkpoint.layouts.names import role_of
from gacprof.workload.roles import ROLES, Role, role_of_module

FAMILIES = tomllib.loads(files("gacprof.checkpoint").joinpath("families.toml").read_text("utf-8"))
SPLITS = {
    "colwise": "column",
    "packed_colwise": "column",
    "colwise_gather_output": "column",
    "rowwise": "row",
    "rowwise_split_input": "row",
    "mla_kv_a_proj": "replicated",
}
"""Styles of transformers that say how a weight is shared. Others are of norms, sinks and the blocks
of experts as a whole."""
DIFFERENT = {
    ("qwen3_next", "linear_attn.out_proj"): "transformers gathers; vLLM and SGLang: row-parallel",
    ("qwen3_5_text", "linear_attn.out_proj"): "as qwen3_next",
    ("qwen3_5_moe_text", "linear_attn.out_proj"): "as qwen3_next",
    ("step3p5", "self_attn.g_proj"): "one gate a head, gathered; no name of a role says it",
    ("llama4_text", "experts.gate_up_proj"): "stored as (in, out): its rows are the inputs",
    ("llama4_text", "experts.down_proj"): "stored as (in, out): its columns are the outputs",
    ("llama4", "linear_1"): "of the projector beside the decoder, which engines don't share",
    ("mimo_v2_flash", "self_attn.sinks"): "no matrix",
    ("granite_swa", "self_attn.sinks"): "no matrix",
}


def planned_types() -> list[str]:
    """The types that families.toml lists, and their text models, of which there is a plan."""
    listed: list[str] = []
    for row in FAMILIES["families"].values():
        listed += row["types"]
    names = [*listed, *(f"{name}_text" for name in listed)]
    known = [name for name in dict.fromkeys(names) if name in CONFIG_MAPPING]
    return [name for name in known if CONFIG_MAPPING[name].base_model_tp_plan]


@pytest.mark.parametrize("model_type", planned_types())
def test_weights_are_split_as_transformers_splits_them(model_type: str) -> None:
    plan = CONFIG_MAPPING[model_type].base_model_tp_plan
    for pattern, style in plan.items():
        if style not in SPLITS and style != "packed_rowwise":
            continue
        name = f"model.{pattern.replace('*', '0')}"
        module = Module(name, role_of(name), 0, "dense", 1, 1, "float16", ())
        is_same = role_of_module(module).split == SPLITS.get(style)
        reasons = [
            (kind, ending)
            for kind, ending in DIFFERENT
            if kind == model_type and name.endswith(ending)
        ]
        assert is_same != bool(reasons), (name, style)


def test_there_are_plans_to_compare_with() -> None:
    assert len(planned_types()) >= 50


def test_every_row_of_a_role_has_known_words_and_values() -> None:
    Role.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    rows = TypeAdapter(Role)
    text = files("gacprof.workload").joinpath("roles.toml").read_text("utf-8")
    for key, row in tomllib.loads(text).items():
        assert rows.validate_python({"key": key, "name": key, **row}) == ROLES[key]
    with pytest.raises(ValidationError):
        rows.validate_python({"key": "q", "name": "q", "split": "columns"})
    with pytest.raises(TypeError):
        Role("q", "q", splits="column")  # type: ignore[call-arg]
