"""What realign promises: the function stays, the config says the new sizes, nothing is left over;
where it cannot promise that, it refuses and writes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from decoders import write_decoder
from safetensors.torch import load_file, save_file
from tool_checkpoints import Shapes, checkpoint, write_safetensors
from tool_folders import restored
from transformers import GPT2Config, GPT2LMHeadModel

from gacprof.checkpoint.config import sizes_refusal
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.factors import FACTORS, Factors
from gacprof.checkpoint.load import load_model
from gacprof.checkpoint.scan import scan
from gacprof.checkpoint.writer import OutputTensor
from gacprof.core.errors import GacprofError
from gacprof.realigning import realign as realigning
from gacprof.realigning.realign import realign

LAYER = "model.layers.0"
Q = f"{LAYER}.self_attn.q_proj"


def mlp(module: str, width: int, hidden: int = 64, down: bool = True) -> Shapes:
    """The weights of a gated MLP."""
    shapes = {f"{module}.{part}_proj.weight": (width, hidden) for part in ("gate", "up")}
    if down:
        shapes[f"{module}.down_proj.weight"] = (hidden, width)
    return shapes


def config_of(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def is_refused(source: Path, sizes: Any, out: Path) -> bool:
    """Whether realign refuses the sizes and leaves nothing, not even a hidden folder."""
    before = sorted(out.parent.iterdir())
    try:
        realign(source, sizes, out)
    except GacprofError:
        return sorted(out.parent.iterdir()) == before
    return False


@pytest.mark.parametrize("between", ["V.bias", "V.weight_scale", "norm.weight"])
@pytest.mark.parametrize("sizes", ["fuse", "pad8", {f"{Q}:rank": 9}])
def test_a_tensor_between_two_factors_keeps_them_as_they_are(
    sizes: Any, between: str, tmp_path: Path
) -> None:
    """An ``nn.Sequential`` of two ``nn.Linear`` has a bias between its factors."""
    pair = {f"{Q}.V.weight": (13, 32), f"{Q}.U.weight": (64, 13), f"{Q}.U.bias": (64,)}
    plain = checkpoint(tmp_path / "plain", pair)
    assert not is_refused(plain, sizes, tmp_path / "padded")
    source = checkpoint(tmp_path / "source", {**pair, f"{Q}.{between}": (13,)})
    assert f"{Q}.{between}" in scan(source).dim(f"{Q}:rank").why
    assert is_refused(source, sizes, tmp_path / "out")


@pytest.mark.parametrize("beside", ["scaling", "weight", "U.0.bias"])
def test_a_merge_loses_no_tensor_beside_the_factors(beside: str, tmp_path: Path) -> None:
    """A scale, the weight that an adapter is added to, the bias of one of two groups."""
    shapes = {f"{Q}.VT.weight": (26, 32)} | {f"{Q}.U.{i}.weight": (32, 13) for i in range(2)}
    plain = checkpoint(tmp_path / "plain", shapes)
    assert set(scan(realign(plain, "fuse", tmp_path / "merged")).tensors) == {f"{Q}.weight"}
    others = {"scaling": (), "weight": (64, 32), "U.0.bias": (32,)}
    source = checkpoint(tmp_path / "source", {**shapes, f"{Q}.{beside}": others[beside]})
    assert is_refused(source, "fuse", tmp_path / "out")


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_merged_weight_gets_no_bias_that_its_class_lacks(has_bias: bool, tmp_path: Path) -> None:
    pair = {f"{Q}.V.weight": (13, 32), f"{Q}.U.weight": (64, 13), f"{Q}.U.bias": (64,)}
    source = checkpoint(tmp_path / "source", pair, {"attention_bias": has_bias})
    assert is_refused(source, "fuse", tmp_path / "out") == (not has_bias)


def test_every_number_of_the_config_that_says_a_width_follows(tmp_path: Path) -> None:
    """GPT-2's own, and one that another tool left beside it."""
    widths = {"n_inner": 51, "intermediate_size": 51}
    config = GPT2Config(n_embd=32, n_head=2, n_layer=1, vocab_size=96, **widths)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "source")
    written = config_of(realign(tmp_path / "source", "pad8", tmp_path / "out"))
    assert {name: written[name] for name in widths} == dict.fromkeys(widths, 56)


@pytest.mark.parametrize("size", [0, -8, 24.5, "24", True, 2**30, None])
def test_sizes_that_are_none_are_refused(size: Any, tmp_path: Path) -> None:
    source = checkpoint(
        tmp_path / "source",
        {f"{LAYER}.mlp.up_proj.weight": (100, 32), **mlp(f"{LAYER}.mlp", 100, 32)},
    )
    (dim,) = scan(source).dims
    assert is_refused(source, {dim.name: size}, tmp_path / "out")


def test_a_bias_between_factors_that_the_user_names_is_seen(tmp_path: Path) -> None:
    shapes = {f"{Q}.down.weight": (13, 32), f"{Q}.down.bias": (13,), f"{Q}.up.weight": (64, 13)}
    source = checkpoint(tmp_path / "source", shapes)
    inventory = scan(source, factors=("{module}.up.weight", "{module}.down.weight"))
    with pytest.raises(GacprofError):
        realign(inventory, "fuse", tmp_path / "out")


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
@pytest.mark.parametrize("sizes", ["fuse", "pad8", {f"{Q}:rank": 9}])
def test_factors_whose_scales_are_not_known_are_not_computed_with(
    sizes: Any, dtype: str, tmp_path: Path
) -> None:
    shapes = {f"{Q}.V.weight": (13, 32), f"{Q}.U.weight": (64, 13)}
    write_safetensors(tmp_path / "source" / "model.safetensors", shapes, dtype)
    assert is_refused(tmp_path / "source", sizes, tmp_path / "out")


@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_row_of_factors_has_an_order_only_where_it_says_so(
    is_ordered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an order a cut takes the best factors, not the first entries."""
    order = {"ordered": True} if is_ordered else {}
    row = Factors("mine", r"(?P<module>.+)\.B\.weight", "{module}.A.weight", **order)
    monkeypatch.setattr("gacprof.checkpoint.layouts.factors.FACTORS", [row])
    monkeypatch.setattr("gacprof.checkpoint.layouts.describe.FACTORS", [row])
    (tmp_path / "source").mkdir()
    torch.manual_seed(0)
    factors = {f"{Q}.B.weight": torch.randn(13, 32), f"{Q}.A.weight": torch.randn(64, 13)}
    save_file(factors, tmp_path / "source" / "model.safetensors")
    out = realign(tmp_path / "source", {f"{Q}:rank": 9}, tmp_path / "out")
    new = load_file(out / "model.safetensors")
    product = factors[f"{Q}.A.weight"].double() @ factors[f"{Q}.B.weight"].double()
    error = product - new[f"{Q}.A.weight"].double() @ new[f"{Q}.B.weight"].double()
    best = torch.linalg.svdvals(product)[9:].norm()
    assert (float(error.norm()) < 1.001 * float(best)) != is_ordered


def test_the_tools_that_sort_their_factors_say_so() -> None:
    assert {row.layout for row in FACTORS if row.ordered} == {"palu", "asvd", "svd-llm"}


SHARED = f"{LAYER}.mlp.shared_experts"
EXPERTS = [f"{LAYER}.mlp.experts.{i}" for i in range(3)]
MIXTURE = {"model_type": "deepseek_v2", "moe_intermediate_size": 51, "n_shared_experts": 2}


def mixture(folder: Path) -> Path:
    """Three experts of 51, and two shared ones in one MLP of 102."""
    shapes = dict(mlp(SHARED, 102))
    for expert in EXPERTS:
        shapes |= mlp(expert, 51)
    return checkpoint(folder, shapes, MIXTURE)


def mixture_sizes(expert: int, shared: int) -> dict[str, int | None]:
    return {f"{name}:width": expert for name in EXPERTS} | {f"{SHARED}:width": shared}


@pytest.mark.parametrize(
    "sizes",
    [
        mixture_sizes(56, 104),
        mixture_sizes(48, 102),
        {f"{EXPERTS[0]}:width": 56},
        {f"{SHARED}:width": 112},
    ],
)
def test_widths_that_the_configs_number_cannot_say_are_refused(
    sizes: dict[str, int | None], tmp_path: Path
) -> None:
    source = mixture(tmp_path / "source")
    assert "moe_intermediate_size" in sizes_refusal(scan(source), sizes)
    assert is_refused(source, sizes, tmp_path / "out")


def test_an_encoders_layers_keep_one_width(tmp_path: Path) -> None:
    """transformers takes one for all, and ``load_model`` builds decoders only."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in ("bert.encoder.layer.0", "bert.encoder.layer.1"):
        shapes[f"{layer}.intermediate.dense.weight"] = (51, 64)
        shapes[f"{layer}.output.dense.weight"] = (64, 51)
    config = {"model_type": "bert", "intermediate_size": 51}
    source = checkpoint(tmp_path / "source", shapes, config)
    first, second = (dim.name for dim in scan(source).dims)
    assert is_refused(source, {first: 56}, tmp_path / "out")
    out = realign(source, {first: 56, second: 56}, tmp_path / "out")
    assert config_of(out) == {**config, "intermediate_size": 56}


@pytest.mark.parametrize("sizes", [mixture_sizes(56, 112), mixture_sizes(48, 96), "pad8"])
def test_shared_experts_stay_the_multiple_that_the_config_says(sizes: Any, tmp_path: Path) -> None:
    source = mixture(tmp_path / "source")
    out = realign(source, sizes, tmp_path / "out")
    width = scan(out).dim(f"{EXPERTS[0]}:width").size
    assert scan(out).dim(f"{SHARED}:width").size == 2 * width
    assert config_of(out) == {**MIXTURE, "moe_intermediate_size": width}


@pytest.mark.parametrize("word", ["pad8", "uniform"])
def test_double_wide_mlps_stay_twice_as_wide(word: str, tmp_path: Path) -> None:
    """Gemma 4's layers without keys and values of their own."""
    shapes = {**mlp(f"{LAYER}.mlp", 171), **mlp("model.layers.1.mlp", 342)}
    config = {"model_type": "gemma4_text", "intermediate_size": 171, "use_double_wide_mlp": True}
    source = checkpoint(tmp_path / "source", shapes, config)
    assert scan(source).warnings == ()
    out = realign(source, word, tmp_path / "out")
    assert [dim.size for dim in scan(out).dims] == [176, 352]
    assert config_of(out) == {**config, "intermediate_size": 176}


def test_experts_stay_where_others_of_their_width_are_not_understood(tmp_path: Path) -> None:
    """LongCat-Flash stores gate and up of its zero experts, which have no down."""
    shapes = dict(mlp(f"{LAYER}.mlps.0", 83))
    for expert in EXPERTS:
        shapes |= mlp(expert, 51)
    shapes |= mlp(f"{LAYER}.mlp.experts.3", 51, down=False)
    config = {"model_type": "longcat_flash", "ffn_hidden_size": 83, "expert_ffn_hidden_size": 51}
    source = checkpoint(tmp_path / "source", shapes, config)
    out = realign(source, "pad8", tmp_path / "out")
    assert config_of(out) == {**config, "ffn_hidden_size": 88}
    assert {dim.size for dim in scan(out).dims if dim.role == "expert"} == {51}
    assert is_refused(source, {f"{EXPERTS[0]}:width": 56}, tmp_path / "other")


TABLES: dict[str, dict[str, Any]] = {
    "per_layer_config": {"per_layer_config": {"1": {"intermediate_size": 100}}},
    "list": {"block_configs": [{"ffn": None}, {"ffn": 100}]},
    "modules": {"my_sizes": {"layers.1.mlp": 100}},
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_size_that_a_table_of_the_config_says_is_not_left_behind(
    kind: str, tmp_path: Path
) -> None:
    source = write_decoder(tmp_path / "source", widths=(96, 100), **TABLES[kind])
    (key,) = TABLES[kind]
    assert key in sizes_refusal(scan(source), {"model.layers.1.mlp:width": 104})
    assert is_refused(source, "pad8", tmp_path / "out")
    other_layer = {f"{LAYER}.mlp:width": 104}
    assert realign(source, other_layer, tmp_path / "out").exists()


@pytest.mark.parametrize("fault", ["shape", "config"])
def test_what_was_written_is_read_back(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = mixture(tmp_path / "source")

    def write_stored(folder: Path, inventory: Inventory, tensors: Iterable[OutputTensor]) -> None:
        shutil.copy(source / "model.safetensors", folder)

    if fault == "shape":
        monkeypatch.setattr(realigning, "write_weights", write_stored)
    else:
        stored = {"config.json": config_of(source)}
        monkeypatch.setattr(realigning, "mirrored_files", lambda *_: stored)
    assert is_refused(source, "pad8", tmp_path / "out")


def test_a_head_dim_that_the_config_cannot_tell_is_named_and_written(tmp_path: Path) -> None:
    """Three heads of 16 on a hidden size of 64: transformers would take 21."""
    heads = {"num_attention_heads": 3, "num_key_value_heads": 3}
    source = write_decoder(tmp_path / "source", widths=(50, 50), heads=[(3, 3)] * 2, **heads)
    stated = config_of(source)
    assert stated["head_dim"] == 16 and not scan(source).warnings
    del stated["head_dim"]
    (source / "config.json").write_text(json.dumps(stated))
    assert any("head_dim" in warning for warning in scan(source).warnings)
    out = realign(source, "pad8", tmp_path / "out")
    assert config_of(out) == {**stated, "intermediate_size": 56, "head_dim": 16}
    ids = torch.arange(12)[None]
    torch.testing.assert_close(load_model(out)(ids).logits, load_model(source)(ids).logits)


@pytest.mark.parametrize("word", ["pad8", "pad16"])
@pytest.mark.parametrize("kind", ["no dim", "none may change", "all are aligned"])
def test_padding_that_changes_nothing_is_refused(kind: str, word: str, tmp_path: Path) -> None:
    shapes: dict[str, Shapes] = {
        "no dim": {f"{LAYER}.mlp.Wi.weight": (171, 64)},
        "none may change": mlp(f"{LAYER}.mlp", 171),
        "all are aligned": mlp(f"{LAYER}.mlp", 176),
    }
    config = {"model_type": "llama"} if kind == "none may change" else None
    source = checkpoint(tmp_path / "source", shapes[kind], config)
    assert is_refused(source, word, tmp_path / "out")


def test_entries_that_many_weights_share_are_not_cut_without_an_order(tmp_path: Path) -> None:
    sliced = restored("slicegpt_mha_s0.22_r1", tmp_path)
    hidden = {dim.name: dim.size - 8 for dim in scan(sliced).dims if dim.kind == "hidden"}
    assert hidden and is_refused(sliced, hidden, tmp_path / "out")
    experts = f"{LAYER}.mlp.experts"
    shapes = {f"{experts}.gate_up_proj": (3, 64, 102), f"{experts}.down_proj": (3, 51, 64)}
    config = {"model_type": "llama4_text", "intermediate_size": 51}
    stacked = checkpoint(tmp_path / "stacked", shapes, config)
    assert is_refused(stacked, {f"{experts}:width": 48}, tmp_path / "out")
    assert realign(stacked, {f"{experts}:width": 56}, tmp_path / "out").exists()


def test_a_plan_may_give_a_decoders_mlps_other_widths_than_the_config_says(tmp_path: Path) -> None:
    """``load_model`` and ``export`` build them layer by layer, and scan says so."""
    source = write_decoder(tmp_path / "source")
    sizes = {f"{LAYER}.mlp:width": 80}
    assert sizes_refusal(scan(source), sizes) == ""
    out = realign(source, sizes, tmp_path / "out")
    assert scan(out).warnings and load_model(out)(torch.arange(12)[None]).logits.isfinite().all()
