"""Models in memory: the same sizes and function as through files; the input is left alone."""

import warnings

import numpy as np
import pytest

import gacprof
from gacprof.checkpoint import inventory_for, scan
from gacprof.core.errors import CheckpointError, PlanError
from gacprof.resizing import realign

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from gacprof.checkpoint.layers import FactorPair, GroupedFactors  # noqa: E402
from gacprof.checkpoint.load import load_model  # noqa: E402

IDS = torch.randint(0, 500, (2, 24), generator=torch.Generator().manual_seed(0))


def logits_of(model):
    with torch.no_grad():
        return model(IDS).logits.float().numpy()


def state_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


FACTORED = ("asvd_mha_r1", "palu_mha_gs4_block1", "svdllm_mha_0.6")
REAL = (*FACTORED, "llmpruner_mha_global_mlp_0.3", "slicegpt_mha_s0.22_r1")


@pytest.mark.filterwarnings("ignore:the mlp widths")
@pytest.mark.parametrize("folder", REAL)
def test_a_padded_copy_computes_the_same_and_the_input_is_left_alone(folder, tools_checkpoints):
    model = load_model(tools_checkpoints / folder, "float32")
    before, logits, config = state_of(model), logits_of(model), model.config.to_dict()
    padded = gacprof.realign(model, "optimal")
    assert padded is not model and type(padded) is type(model)
    np.testing.assert_allclose(logits_of(padded), logits, atol=1e-5)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert model.config.to_dict() == config
    sizes = {d.name: d.size for d in inventory_for(padded).dims}
    assert sizes and all(size % 16 == 0 for size in sizes.values())
    for module in padded.modules():
        if isinstance(module, torch.nn.Linear):
            assert (module.out_features, module.in_features) == module.weight.shape
        elif isinstance(module, FactorPair):
            assert module.rank == module.inner.out_features == module.outer.in_features
        elif isinstance(module, GroupedFactors):
            assert module.ranks == [outer.in_features for outer in module.outer]


@pytest.mark.parametrize("folder", REAL)
def test_dims_of_a_loaded_model_are_those_of_its_file(folder, tools_checkpoints):
    live = inventory_for(load_model(tools_checkpoints / folder))
    stored = scan(tools_checkpoints / folder)
    assert {d.name: d.size for d in live.dims} == {d.name: d.size for d in stored.dims}
    assert live.attentions == stored.attentions
    assert [g for m in live.modules for g in (m.name, m.role, m.kind)] == [
        g for m in stored.modules for g in (m.name, m.role, m.kind)
    ]


def test_a_plan_made_from_the_file_fits_the_loaded_model(tools_checkpoints, tmp_path):
    from test_resize_run import plan_for

    source = tools_checkpoints / "palu_mha_gs4_block1"
    k = "model.layers.1.self_attn.k_proj"
    plan = plan_for(source, {f"{k}:rank.0": 64, f"{k}:rank.1": 56})
    plan.save(tmp_path / "plan.json")
    model = load_model(source, "float32")
    for given in (plan, tmp_path / "plan.json"):
        resized = gacprof.realign(model, given)
        assert resized.get_submodule(k).ranks == [64, 56]
        assert resized.config.head_wise_ranks[k] == [64, 56]
    with pytest.raises(PlanError, match="does not fit"):
        gacprof.realign(resized, plan)


def test_files_and_memory_give_the_same_bits(tools_checkpoints, tmp_path):
    source = tools_checkpoints / "asvd_mha_r1"
    realign(source, "minimal", tmp_path / "out")
    stored = load_model(tmp_path / "out").state_dict()
    live = gacprof.realign(load_model(source), "minimal").state_dict()
    assert stored.keys() == live.keys()
    for name, tensor in stored.items():
        assert tensor.dtype == live[name].dtype and torch.equal(tensor, live[name])


@pytest.mark.parametrize(
    ("folder", "asked", "more"),
    [
        ("asvd_mha_r1", "fuse", 671_712),
        ("llmpruner_mha_global_mlp_0.3", "uniform", 364_032),
        ("palu_mha_gs4_block1", gacprof.Padding(32), 92_928),
    ],
)
def test_a_model_takes_all_that_a_checkpoint_does(tools_checkpoints, folder, asked, more):
    model = load_model(tools_checkpoints / folder)
    before, after = (
        sum(p.numel() for p in each.parameters()) for each in (model, gacprof.realign(model, asked))
    )
    assert after - before == more


@pytest.mark.parametrize(
    "asked",
    [5, None, ["uniform"], gacprof.Padding(0), gacprof.Fuse(("x",)), {"nowhere:rank": 8},
     {"model.layers.0.mlp:width": 0}],
)  # fmt: skip
def test_what_is_nothing_to_realign_to_is_refused_and_changes_nothing(tools_checkpoints, asked):
    model = load_model(tools_checkpoints / "asvd_mha_r1")
    before = state_of(model)
    with pytest.raises(PlanError):
        gacprof.realign(model, asked, inplace=True)
    with pytest.raises(PlanError, match="save what you get"):
        gacprof.realign(model, "minimal", "somewhere")
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_in_place_the_model_itself_changes(tools_checkpoints):
    model = load_model(tools_checkpoints / "svdllm_mha_0.6", torch.bfloat16)
    logits = logits_of(model)
    embedding = model.model.embed_tokens.weight
    assert gacprof.realign(model, "minimal", inplace=True) is model
    assert all(d.size % 8 == 0 for d in inventory_for(model).dims)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.model.embed_tokens.weight is embedding  # what keeps its size stays as it is
    np.testing.assert_allclose(logits_of(model), logits, atol=0.1)


def test_fusing_in_memory_gives_a_plain_model_that_saves_and_loads(tools_checkpoints, tmp_path):
    model = load_model(tools_checkpoints / "palu_mha_gs4_block1", "float32")
    sizes = {d.name: None for d in inventory_for(model).dims if d.kind == "rank"}
    fused = gacprof.realign(model, sizes)
    np.testing.assert_allclose(logits_of(fused), logits_of(model), atol=1e-4)
    fused.save_pretrained(tmp_path / "fused")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "fused").eval()
    np.testing.assert_allclose(logits_of(plain), logits_of(fused), atol=1e-5)


def test_original_weights_fill_ranks_in_memory_too(tools_checkpoints):
    path, dim = tools_checkpoints / "base_mha", "model.layers.0.self_attn.q_proj:rank"
    base = load_model(path, "float32")
    model = load_model(tools_checkpoints / "svdllm_mha_0.6", "float32")
    q, original = dim.removesuffix(":rank"), base.model.layers[0].self_attn.q_proj.weight
    for given in (base, path):
        raised = gacprof.realign(model, {dim: 116}, base=given)
        before, after = (
            torch.dist(original, pair.outer.weight @ pair.inner.weight)
            for pair in (model.get_submodule(q), raised.get_submodule(q))
        )
        assert after < 0.8 * before


def test_a_common_width_is_written_to_the_config(tmp_path):
    model = pruned([50, 50], 50, tie_word_embeddings=True)
    padded = gacprof.realign(model, "minimal")
    assert padded.config.intermediate_size == 56 and model.config.intermediate_size == 50
    assert padded.lm_head.weight is padded.model.embed_tokens.weight  # still tied
    padded.save_pretrained(tmp_path / "padded")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "padded").eval()
    np.testing.assert_allclose(logits_of(again), logits_of(model), atol=1e-5)


def pruned(widths, declared, **more):
    """A model whose layers were cut in memory, its config as it was before."""
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=declared, num_hidden_layers=len(widths),
        num_attention_heads=2, vocab_size=512, **more,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    for layer, width in zip(model.model.layers, widths, strict=True):
        for linear in (layer.mlp.gate_proj, layer.mlp.up_proj):
            linear.weight.data = linear.weight.data[:width].clone()
        layer.mlp.down_proj.weight.data = layer.mlp.down_proj.weight.data[:, :width].clone()
    return model


@pytest.mark.parametrize("inplace", [False, True])
def test_a_config_that_was_left_at_an_old_width_says_the_new_one(inplace):
    model = pruned([50, 50], 64)
    logits = logits_of(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        padded = gacprof.realign(model, "minimal", inplace=inplace)
    assert padded.config.intermediate_size == 56
    assert {layer.mlp.config.intermediate_size for layer in padded.model.layers} == {56}
    assert {layer.mlp.gate_proj.out_features for layer in padded.model.layers} == {56}
    np.testing.assert_allclose(logits_of(padded), logits, atol=1e-5)


@pytest.mark.parametrize("inplace", [False, True])
def test_widths_that_no_config_can_say_are_told(inplace):
    """A config has one width for all layers: it stays, and that is no secret."""
    model = pruned([50, 41], 64)
    with pytest.warns(UserWarning, match="widths are 48, 56, the config says .* 64.*refuses"):
        padded = gacprof.realign(model, "minimal", inplace=inplace)
    assert padded.config.intermediate_size == 64
    with pytest.warns(UserWarning, match="one for all layers"):
        gacprof.realign(pruned([50, 50], 50), {"model.layers.0.mlp:width": 56})


def test_what_has_no_data_or_no_place_is_refused():
    with torch.device("meta"):
        config = transformers.LlamaConfig(hidden_size=32, intermediate_size=50, num_hidden_layers=1)
        empty = transformers.LlamaForCausalLM(config)
    with pytest.raises(CheckpointError, match="no data"):
        gacprof.realign(empty, "minimal")
    with pytest.raises(CheckpointError, match="not a model with a state dict"):
        gacprof.realign(object(), "minimal")
