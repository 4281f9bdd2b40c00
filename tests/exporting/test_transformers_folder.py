"""The custom-code folder: what load_model computes, by transformers alone, without gacprof."""

import json

import numpy as np
import pytest

import gacprof
from gacprof.core.errors import CheckpointError
from gacprof.extras.serve import checking
from gacprof.extras.serve.engines.engine import EngineProcess

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IDS = torch.arange(12)[None] * 7 % 288


@pytest.fixture(autouse=True)
def own_module_cache(monkeypatch, tmp_path):
    """Remote code is copied beside the test, not into the user's cache."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))


@pytest.fixture(scope="module")
def one_engine(tmp_path_factory):
    """One process of transformers for the checks of this file: it imports for seconds."""
    kept = []

    class Kept(EngineProcess):
        def __exit__(self, *error):
            pass

    def start(engine, python, threads, more):
        modules = {"HF_MODULES_CACHE": str(tmp_path_factory.getbasetemp() / "modules")}
        if not kept:
            kept.append(Kept(engine, python, threads, {**more, **modules}))
        return kept[0]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checking, "EngineProcess", start)
        yield
    for process in kept:
        process.close()


def loaded(folder):
    auto = transformers.AutoModelForCausalLM
    return auto.from_pretrained(folder, trust_remote_code=True, torch_dtype=torch.float32).eval()


def logits(model):
    with torch.no_grad():
        return model(IDS).logits.numpy()


def test_a_process_without_gacprof_generates_the_same_tokens(one_engine, everything, tmp_path):
    done = gacprof.export(everything, "transformers", tmp_path / "out", check="engine")
    assert done.check.passed and done.check.error < 1e-5
    assert (done.check.same, done.check.tokens) == (32, 32)
    assert done.check.engine == f"transformers {transformers.__version__}"
    assert done.parameters == gacprof.scan(everything).parameters


def test_the_uniform_folder_is_checked_by_transformers_and_foreign_code_is_not_run(
    one_engine, make_decoder, tmp_path
):
    trap = tmp_path / "run"
    auto = {"AutoModelForCausalLM": "modeling_theirs.Model"}
    folder = make_decoder(widths=(70, 33), auto_map=auto)
    (folder / "modeling_theirs.py").write_text(f"open({str(trap)!r}, 'w')\n")
    done = gacprof.export(folder, "uniform", tmp_path / "out", check="engine")
    assert done.check.passed and done.check.same == 32
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["intermediate_size"] == 72 and config["model_type"] == "llama"
    assert any("padding cost" in note for note in done.notes)
    assert not trap.exists()


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_every_family_gives_the_same_logits(family, make_decoder, tmp_path):
    ranks = {"model.layers.0.self_attn.q_proj": 13, "model.layers.1.mlp.up_proj": 11}
    folder = make_decoder(family=family, widths=(70, 33), ranks=ranks)
    gacprof.export(folder, "transformers", tmp_path / f"out-{family}", check="tensors")
    ours, theirs = gacprof.load_model(folder), loaded(tmp_path / f"out-{family}")
    np.testing.assert_allclose(logits(theirs), logits(ours), atol=1e-5)


def test_heads_are_those_of_the_tensors_and_need_not_divide_the_hidden_size(make_decoder, tmp_path):
    """LLM-Pruner's config keeps the counts from before pruning."""
    folder = make_decoder(heads=((3, 1), (3, 1)))
    gacprof.export(folder, "vllm", tmp_path / "three", check="tensors")
    model = loaded(tmp_path / "three")
    config = model.config
    assert (config.num_attention_heads, config.num_key_value_heads) == (3, 1)
    np.testing.assert_allclose(logits(model), logits(gacprof.load_model(folder)), atol=1e-5)


def test_factored_and_dense_modules_have_classes_of_their_own(everything, tmp_path):
    """vLLM looks at one module of every class, and rewrites them all alike."""
    gacprof.export(everything, "transformers", tmp_path / "classes", check="tensors")
    layers = loaded(tmp_path / "classes").model.layers
    attentions = [type(layer.self_attn).__name__ for layer in layers]
    assert layers[0].self_attn.config.model_type == "gacprof_llama"
    assert attentions == ["LlamaAttention_q_proj_k_proj", "LlamaAttention", "LlamaAttention"]
    mlps = [type(layer.mlp).__name__ for layer in layers]
    assert mlps == ["LlamaMLP", "LlamaMLP_down_proj", "LlamaMLP_gate_proj"]


def test_factors_are_split_where_the_model_is(make_decoder, tmp_path):
    ranks = {f"model.layers.{i}.self_attn.o_proj": 8 for i in range(2)}
    ranks["model.layers.0.self_attn.q_proj"] = 13
    folder = make_decoder(ranks=ranks)
    gacprof.export(folder, "vllm", tmp_path / "tp", check="tensors")
    plan = loaded(tmp_path / "tp").config.base_model_tp_plan
    q, o = "layers.*.self_attn.q_proj", "layers.*.self_attn.o_proj"
    assert [key for key in plan if key.startswith(q)] == [f"{q}.inner", f"{q}.outer", q]
    assert plan[f"{q}.inner"] == "replicate" and plan[f"{q}.outer"] == "colwise"
    assert plan[f"{o}.inner"] == "rowwise" and plan[f"{o}.outer"] == "replicate" and o not in plan


def test_groups_are_not_split(everything, tmp_path):
    """Each group's outputs are some heads, so that no split of them keeps the heads' order."""
    done = gacprof.export(everything, "transformers", tmp_path / "groups", check="tensors")
    assert any("serve it on one device" in note for note in done.notes)
    assert loaded(tmp_path / "groups").config.base_model_tp_plan == {}


def test_the_folder_is_read_by_gacprof_again(everything, tmp_path):
    gacprof.export(everything, "transformers", tmp_path / "again", check="tensors")
    again = gacprof.load_model(tmp_path / "again")
    np.testing.assert_array_equal(logits(again), logits(gacprof.load_model(everything)))


TOOLS = ["asvd_mha_r1", "palu_mha_gs4_block1", "svdllm_mha_0.6", "llmpruner_mha_global_mlp_0.3"]


@pytest.mark.parametrize("name", TOOLS)
def test_the_other_tools_checkpoints(name, tools_checkpoints, tmp_path):
    folder = tools_checkpoints / name
    done = gacprof.export(folder, "vllm", tmp_path / "tool", check="tensors")
    assert done.check.tensors > 0
    ours, theirs = gacprof.load_model(folder, "float32"), loaded(tmp_path / "tool")
    np.testing.assert_allclose(logits(theirs), logits(ours), atol=1e-5)


def test_sliced_models_are_refused(tools_checkpoints, tmp_path):
    folder = tools_checkpoints / "slicegpt_mha_s0.22_r1"
    with pytest.raises(CheckpointError, match="sliced hidden size"):
        gacprof.export(folder, "transformers", tmp_path / "out")


def test_a_bias_that_the_class_lacks_is_refused(make_decoder, tmp_path):
    folder = make_decoder(family="qwen2", ranks={"model.layers.0.self_attn.q_proj": 5})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    with pytest.raises(CheckpointError, match="with a bias"):
        gacprof.export(folder, "transformers", tmp_path / "out")
    assert not (tmp_path / "out").exists()
