"""Of every type of model that transformers has: padded, it is still one that transformers loads."""

import pytest
from model_types import EAGER, EXPERT, SHARED, UNMADE, WIDTH, tiny_of

from gacprof.checkpoint import inventory_of_model, scan
from gacprof.checkpoint.load import load_model
from gacprof.core.errors import CheckpointError
from gacprof.resizing import realign

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers.models.auto.modeling_auto import (  # noqa: E402
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)

TYPES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - UNMADE.keys())
FEW = (
    *("afmoe", "aria_text", "bart", "bloom", "dbrx", "deepseek_v2", "falcon", "gemma3", "gpt2"),
    *("gpt_neo", "gpt_oss", "granitemoe", "granitemoeshared", "hy_v3", "jetmoe", "lfm2", "llama"),
    *("llama4_text", "minimax_m3_vl_text", "mixtral", "nemotron_h", "opt", "phi3", "qwen2_moe"),
    *("recurrent_gemma", "zamba2"),
)
"""One of each way in which configs say widths and files hold experts."""

WIDTHS = {
    "dbrx": {"experts": WIDTH},
    "deepseek_v2": {"mlp": WIDTH, "expert": EXPERT, "shared_expert": 2 * EXPERT},
    "gpt_oss": {"experts": WIDTH},
    "granitemoe": {"experts": WIDTH},
    "granitemoeshared": {"experts": WIDTH, "shared_expert": SHARED},
    "llama4_text": {"experts": WIDTH, "shared_expert": WIDTH},
    "recurrent_gemma": {"mlp": WIDTH},
}
"""All widths of some, whose files and configs say them in ways of their own."""
OURS = ("gpt_oss", "granitemoe", "llama4_text", "qwen2_moe")
"""Odd and padded, these run in our loader too: torch's grouped product takes no rows that are no
multiple of 16 bytes, as 83 are not."""

IDS = torch.randint(3, 90, (2, 8), generator=torch.Generator().manual_seed(1))


def logits_of(model):
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


def close(model, truth):
    return bool((logits_of(model) - truth).abs().max() <= 1e-5 * truth.abs().max())


@pytest.mark.parametrize(
    "kind", [*FEW, *(pytest.param(k, marks=pytest.mark.slow) for k in TYPES if k not in FEW)]
)
def test_padded_it_is_what_plain_transformers_loads_and_computes_the_same(kind, tmp_path):
    model = tiny_of(kind)
    truth = logits_of(model)
    model.save_pretrained(tmp_path / "model")
    sizes = {dim.role: dim.size for dim in scan(tmp_path / "model").dims}
    assert sizes == WIDTHS.get(kind, sizes)
    result = realign(tmp_path / "model", "minimal", tmp_path / "padded")
    left = {dim.name for dim in scan(tmp_path / "padded").dims if dim.size % 8}
    assert all(any(note.startswith(f"{name} stays") for note in result.notes) for name in left)
    assert not left or kind not in WIDTHS
    padded, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "padded", output_loading_info=True, dtype=torch.float32, **EAGER
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert close(padded.eval(), truth)
    for folder in ("model", "padded") if kind in OURS else ():
        assert close(load_model(tmp_path / folder), truth)


@pytest.mark.parametrize("kind", ["deepseek_v2", "gpt_oss", "mixtral", "qwen2_moe"])
def test_experts_of_a_model_in_memory_are_padded(kind):
    model = tiny_of(kind)
    padded = realign(model, "minimal")
    assert close(padded, logits_of(model))
    dims = inventory_of_model(padded).dims
    assert dims and all(dim.size % 8 == 0 for dim in dims)


def test_adapters_of_an_mlps_width_keep_it_as_it_is(tmp_path):
    """Zamba2's adapters have twice the width: gate and up together."""
    tiny_of("zamba2").save_pretrained(tmp_path / "model")
    (dim,) = {dim.name: dim for dim in scan(tmp_path / "model").dims}.values()
    assert dim.padding == "refused" and "adapter" in dim.why


@pytest.mark.parametrize(
    ("kind", "sizes", "why"),
    [
        ("bloom", {f"transformer.h.{i}.mlp:width": 264 for i in (0, 1)}, "no number"),
        ("gpt_oss", {"model.layers.0.mlp.experts:width": 88}, "give them one"),
    ],
)
def test_what_a_config_cannot_say_is_refused_before_anything_is_written(kind, sizes, why, tmp_path):
    """Bloom's width is four times its hidden size; gpt-oss has one width for all layers."""
    tiny_of(kind).save_pretrained(tmp_path / "model")
    with pytest.raises(CheckpointError, match=why):
        realign(tmp_path / "model", sizes, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
