"""Two checkpoints of one function pass; those of two do not, and what nobody looked at is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from decoders import DECODERS, write_decoder
from safetensors.torch import load_file, save_file
from tool_folders import FIXTURES

from gacprof.check.verify import verify
from gacprof.checkpoint.scan import scan
from gacprof.core.errors import CheckpointError, ConfigError
from gacprof.export.export import export
from gacprof.realigning.realign import realign

ASVD = FIXTURES / "asvd_mha_r1"
DTYPES = ("float32", "bfloat16", "float16")
LAYER = "model.layers.1"
DOWN = f"{LAYER}.mlp.down_proj.weight"

WEIGHTS = "model.safetensors"

State = dict[str, torch.Tensor]


def edited(source: Path, target: Path, edit: Callable[[State], None], **config: Any) -> Path:
    """Copy a checkpoint, change its tensors and settings of its config."""
    shutil.copytree(source, target)
    state = {name: tensor.clone() for name, tensor in load_file(source / WEIGHTS).items()}
    edit(state)
    save_file(state, target / WEIGHTS, {"format": "pt"})
    settings = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(settings | config))
    return target


def nothing(state: State) -> None:
    pass


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("word", ["pad8", "pad16", "fuse"])
def test_a_realigned_checkpoint_is_the_same_function(word: str, dtype: str, tmp_path: Path) -> None:
    out = realign(ASVD, word, tmp_path / "out")
    for result in (verify(ASVD, out, dtype=dtype), verify(out, ASVD, dtype=dtype)):
        assert (result.verdict, result.positions) == ("same", 64)
        assert result.differing == ()
        kinds = [module.kind for module in scan(ASVD).modules]
        assert result.merged == (kinds.count("factored") if word == "fuse" else 0)
        assert (result.padded == 0) == (word == "fuse")


@pytest.mark.parametrize("name", DECODERS)
def test_padding_is_explained_tensor_by_tensor(name: str, tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "a", **DECODERS[name])  # type: ignore[arg-type]
    sizes = {dim.name: dim.size + 3 for dim in scan(source).dims}
    out = realign(source, sizes, tmp_path / "b")
    result = verify(source, out, dtype="bfloat16")
    before, after = scan(source).tensors, scan(out).tensors
    assert result.ok
    assert result.equal + result.padded == len(before)
    assert result.padded == sum(before[name].shape != after[name].shape for name in before) > 0


def test_a_cut_is_another_function(tmp_path: Path) -> None:
    rank = scan(ASVD).dim("model.layers.0.mlp.down_proj:rank")
    cut = verify(ASVD, realign(ASVD, {rank.name: rank.size // 2}, tmp_path / "cut"))
    assert (cut.verdict, cut.ok) == ("different", False)
    assert cut.mean_kl > 0  # type: ignore[operator]


@pytest.mark.parametrize(("times", "verdict"), [(5.0, "different"), (0.2, "undecided")])
def test_the_tolerance_is_the_rounding_that_was_measured(
    times: float, verdict: str, tmp_path: Path
) -> None:
    """Logits that all are larger by a share have an error of that share, but for rounding."""
    source = write_decoder(tmp_path / "a")
    tolerance: Any = verify(source, source).tolerance
    assert 1e-7 < tolerance < 1e-5

    def enlarge(state: State) -> None:
        state["model.norm.weight"] *= 1 + times * tolerance

    result = verify(source, edited(source, tmp_path / "b", enlarge))
    assert result.verdict == verdict
    assert result.max_error == pytest.approx(times * tolerance, abs=tolerance)


def change_one_weight(state: State) -> None:
    state[DOWN][3, 5] += 1e-3


def swap_rows(state: State) -> None:
    state[DOWN][[3, 7]] = state[DOWN][[7, 3]]


def drop_last_mlp(state: State) -> None:
    state[DOWN].zero_()


def enlarge_logits(state: State) -> None:
    state["lm_head.weight"] *= 1.2


def attend_evenly(state: State) -> None:
    state[f"{LAYER}.self_attn.q_proj.weight"].zero_()
    state[f"{LAYER}.self_attn.k_proj.weight"].zero_()


MUTATIONS = [change_one_weight, swap_rows, drop_last_mlp, enlarge_logits, attend_evenly]


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_function_is_never_called_the_same(dtype: str, tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "a")
    others = [edited(source, tmp_path / edit.__name__, edit) for edit in MUTATIONS]
    others.append(edited(source, tmp_path / "eps", nothing, rms_norm_eps=2e-5))
    others.append(edited(source, tmp_path / "theta", nothing, rope_theta=20000.0))
    possible = {"different"} if dtype == "float32" else {"different", "undecided"}
    for other in others:
        result = verify(source, other, dtype=dtype)
        assert result.verdict in possible
        assert result.differing


def permute_units(state: State) -> None:
    order = torch.arange(96).flip(0)
    state[DOWN] = state[DOWN][:, order]
    for name in ("gate_proj", "up_proj"):
        weight = f"{LAYER}.mlp.{name}.weight"
        state[weight] = state[weight][order]


def test_logits_vouch_for_no_weight(tmp_path: Path) -> None:
    """Nobody knows that other tokens would have the same ones."""
    source = write_decoder(tmp_path / "a")
    result = verify(source, edited(source, tmp_path / "b", permute_units))
    assert (result.verdict, len(result.differing)) == ("undecided", 3)
    assert result.max_error is not None
    assert result.tolerance is not None
    assert result.max_error <= result.tolerance


def test_equal_values_in_another_type_are_equal(tmp_path: Path) -> None:
    def widen(state: State) -> None:
        state.update({name: tensor.float() for name, tensor in state.items()})

    result = verify(ASVD, edited(ASVD, tmp_path / "wide", widen), dtype="bfloat16")
    assert (result.verdict, result.equal) == ("same", len(scan(ASVD).tensors))


def test_rows_that_are_not_looked_up_are_named(tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "a")
    embedding = "model.embed_tokens.weight"

    def forget(state: State) -> None:
        looked_up = torch.randint(288, (2, 32), generator=torch.Generator().manual_seed(0))
        rows = torch.ones(288, dtype=torch.bool)
        rows[looked_up] = False
        state[embedding][rows] = 0

    result = verify(source, edited(source, tmp_path / "b", forget))
    assert (result.verdict, result.max_error) == ("undecided", 0)
    assert result.differing == (embedding,)


def test_experts_that_no_token_is_routed_to_are_named(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 96}
    experts = {"num_experts": 8, "num_experts_per_tok": 1, "moe_intermediate_size": 48}
    config = transformers.Qwen3MoeConfig(
        **sizes, **experts, num_key_value_heads=2, head_dim=16, decoder_sparse_step=1
    )
    model = transformers.Qwen3MoeForCausalLM(config)
    router = model.model.layers[0].mlp.gate.weight.data
    router[1:] = 0
    router[1] = -router[0]  # of an input and its negative one is above zero, where the others are
    model.save_pretrained(tmp_path / "a")

    def forget(state: State) -> None:
        for number in range(4, 8):
            state[f"model.layers.0.mlp.experts.{number}.down_proj.weight"].zero_()

    result = verify(tmp_path / "a", edited(tmp_path / "a", tmp_path / "b", forget))
    assert (result.verdict, result.max_error) == ("undecided", 0)
    assert len(result.differing) == 4


def test_a_router_that_rounding_decides_vouches_for_no_expert(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 80}
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size": 48}
    config = transformers.GptOssConfig(
        **sizes, **experts, num_key_value_heads=2, head_dim=16, initializer_range=0.3
    )
    model = transformers.GptOssForCausalLM(config)
    for layer in model.model.layers:
        layer.mlp.router.bias.data.zero_()
        router = layer.mlp.router.weight.data
        router[1] = router[0] * (1 + 1e-7 * torch.randn(64))
    model.save_pretrained(tmp_path / "a")

    def enlarge(state: State) -> None:
        for name in state:
            if name.endswith("experts.down_proj"):
                state[name] *= 1.01

    assert verify(tmp_path / "a", tmp_path / "a").verdict == "same"
    result = verify(tmp_path / "a", edited(tmp_path / "a", tmp_path / "b", enlarge))
    assert (result.verdict, len(result.differing)) == ("undecided", 2)


@pytest.mark.parametrize("setting", [{"max_position_embeddings": 32}, {"eos_token_id": 7}])
def test_settings_that_no_token_reaches_are_named(setting: dict[str, int], tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "a")
    result = verify(source, edited(source, tmp_path / "b", nothing, **setting))
    assert (result.verdict, len(result.differing)) == ("undecided", 1)


def test_padding_that_is_not_zero_is_not_taken_for_padding(tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "a", widths=(90, 90))
    padded = realign(source, "pad8", tmp_path / "b")

    def fill(state: State) -> None:  # no logit shows it: down multiplies these units by zero
        state[f"{LAYER}.mlp.up_proj.weight"][90:] = 1.0

    result = verify(source, edited(padded, tmp_path / "c", fill))
    assert (result.verdict, result.max_error) == ("undecided", 0)
    assert result.differing == (f"{LAYER}.mlp.up_proj.weight",)


def test_a_product_may_be_rounded_once(tmp_path: Path) -> None:
    fused = realign(ASVD, "fuse", tmp_path / "fused")
    name = "model.layers.0.mlp.down_proj.weight"

    def alter(state: State) -> None:
        state[name] *= 1.01

    result = verify(ASVD, edited(fused, tmp_path / "altered", alter))
    assert not result.ok
    assert name in result.differing


VISION = {
    **{"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 45},
    **{"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14},
}
TEXT = {
    **{"model_type": "llama", "hidden_size": 32, "intermediate_size": 83, "vocab_size": 96},
    **{"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2},
}


def test_a_tower_that_reads_no_text_is_compared_by_its_weights(tmp_path: Path) -> None:
    config = transformers.LlavaConfig(text_config=TEXT, vision_config=VISION, image_token_id=5)
    model = transformers.LlavaForConditionalGeneration(config)
    model.save_pretrained(tmp_path / "a")
    padded = realign(tmp_path / "a", "pad8", tmp_path / "b")
    result = verify(tmp_path / "a", padded)
    assert (result.verdict, result.positions) == ("same", 64)
    assert result.padded > 4

    def blind(state: State) -> None:
        [name] = (name for name in state if "vision" in name and name.endswith("fc1.weight"))
        state[name].zero_()

    result = verify(tmp_path / "a", edited(padded, tmp_path / "c", blind))
    assert (result.verdict, result.max_error) == ("undecided", 0)
    assert "vision" in result.differing[0]


def test_models_that_write_no_text_are_compared_by_weights_and_settings(tmp_path: Path) -> None:
    config = transformers.ViTConfig(**{**VISION, "model_type": "vit"})
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "a")
    padded = realign(tmp_path / "a", "pad8", tmp_path / "b")
    result = verify(tmp_path / "a", padded)
    assert (result.verdict, result.positions, result.max_error) == ("same", 0, None)
    assert result.padded > 0
    other = edited(padded, tmp_path / "c", nothing, layer_norm_eps=1e-3)
    assert verify(tmp_path / "a", other).verdict == "undecided"


def test_models_with_a_decoder_behind_an_encoder_are_run(tmp_path: Path) -> None:
    config = transformers.T5Config(
        d_model=32, d_ff=45, d_kv=8, num_heads=4, num_layers=1, vocab_size=96
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path / "a")
    result = verify(tmp_path / "a", realign(tmp_path / "a", "pad8", tmp_path / "b"))
    assert (result.verdict, result.positions) == ("same", 64)


def test_models_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "a")
    with pytest.raises(CheckpointError):
        verify(source, ASVD)  # another vocabulary

    def spoil(state: State) -> None:
        state["model.norm.weight"].fill_(torch.nan)

    with pytest.raises(CheckpointError):
        verify(source, edited(source, tmp_path / "b", spoil))


@pytest.mark.parametrize("dtype", ["float64", "fp8", "int8", "long"])
def test_a_type_without_a_wider_one_is_refused(dtype: str, tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "a")
    with pytest.raises(ConfigError):
        verify(source, source, dtype=dtype)


def test_an_export_holds_the_same_weights_under_other_names(tmp_path: Path) -> None:
    export(ASVD, tmp_path / "exported")
    result = verify(ASVD, tmp_path / "exported")
    assert (result.verdict, result.differing) == ("same", ())
    assert result.equal == len(scan(ASVD).tensors)


def test_another_length_of_groups_than_the_tensors_have_is_seen(tmp_path: Path) -> None:
    source = FIXTURES.parent / "quantised" / "gptq_g64"
    other = Path(shutil.copytree(source, tmp_path / "other"))
    for name in ("config.json", "quantize_config.json"):
        text = (source / name).read_text(encoding="utf-8")
        (other / name).write_text(text.replace('"group_size": 64', '"group_size": 128'), "utf-8")
    assert verify(source, other).verdict == "undecided"


def test_a_width_that_no_layer_has_is_seen(tmp_path: Path) -> None:
    source = FIXTURES.parent / "quantised" / "awq_g64"
    other = realign(source, "pad512", tmp_path / "other")
    assert verify(source, other).verdict == "same"
    config = json.loads((other / "config.json").read_text(encoding="utf-8"))
    (other / "config.json").write_text(json.dumps(config | {"intermediate_size": 320}), "utf-8")
    assert verify(source, other).verdict == "undecided"
