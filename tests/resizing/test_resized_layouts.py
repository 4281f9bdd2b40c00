"""The tools' layouts at sizes that no fixture has: fewer kv heads, biases, odd groups.

Each checkpoint is made from a small model of transformers whose own weights become the product
of the factors (or the pruned weights), so that model's logits are the truth.
"""

import json
import sys
import types

import numpy as np
import pytest
from safetensors.numpy import save_file

from gacprof.checkpoint import scan
from gacprof.resizing import realign

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from gacprof.checkpoint.load import load_model  # noqa: E402

IDS = torch.randint(0, 90, (2, 12), generator=torch.Generator().manual_seed(0))
HEADS, KV_HEADS, HEAD_DIM = 6, 2, 8


def dense(kind):
    """Two layers, hidden 48, six heads that share two kv heads, MLP 86."""
    config = transformers.AutoConfig.for_model(
        kind, hidden_size=HEADS * HEAD_DIM, intermediate_size=86, num_hidden_layers=2,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, vocab_size=90,
        max_position_embeddings=32, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.2
    return model


def linears(model):
    for name, module in model.model.layers.named_modules():
        if isinstance(module, torch.nn.Linear):
            yield f"model.layers.{name}", module


def factors(weight, rank):
    u, s, v = torch.linalg.svd(weight.data, full_matrices=False)
    root = s[:rank].sqrt()
    return (u[:, :rank] * root).contiguous(), (root[:, None] * v[:rank]).contiguous()


def palu(folder):
    """Qwen2 with biases; two groups of ranks 5 and 7."""
    model, tensors, ranks = dense("qwen2"), {}, {}
    for name, module in linears(model):
        if not name.endswith(("k_proj", "v_proj")):
            continue
        height, inner, ranks[name] = module.out_features // 2, [], [5, 7]
        for i, rank in enumerate(ranks[name]):
            rows = slice(i * height, (i + 1) * height)
            u, v = factors(module.weight[rows], rank)
            module.weight.data[rows] = u @ v
            inner.append(v)
            tensors[f"{name}.U.{i}.weight"] = u
            tensors[f"{name}.U.{i}.bias"] = module.bias.data[rows].clone()
        tensors[f"{name}.VT.weight"] = torch.cat(inner)
    replaced = tuple(f"{name}.{part}" for name in ranks for part in ("weight", "bias"))
    tensors |= {n: t for n, t in model.state_dict().items() if n not in replaced}
    save_file({n: t.numpy() for n, t in tensors.items()}, folder / "model.safetensors")
    config = model.config.to_dict() | {"model_type": "paluqwen2", "head_wise_ranks": ranks}
    (folder / "config.json").write_text(json.dumps(config))
    return logits_of(model)


def svd_llm(folder):
    """A pickled Mistral whose k and v factors declare another rank than they have."""
    model = dense("mistral")
    pairs = {}
    for name, module in linears(model):
        rank = min(module.weight.shape) * 3 // 5
        u, v = factors(module.weight, rank)
        module.weight.data = u @ v
        pairs[name] = u, v
    truth = logits_of(model)
    for name, (u, v) in pairs.items():
        parent, _, child = name.removesuffix("_proj").rpartition(".")
        owner = model.get_submodule(parent)
        delattr(owner, f"{child}_proj")
        outer, inner = (
            torch.nn.Linear(*u.shape[::-1], False),
            torch.nn.Linear(*v.shape[::-1], False),
        )
        outer.weight.data, inner.weight.data = u, v
        if child in "kv":
            outer.in_features = inner.out_features = 3 * len(v)
        setattr(owner, f"{child}_u_proj", outer)
        setattr(owner, f"{child}_v_proj", inner)
    torch.save({"model": model, "tokenizer": None}, folder / "mistral_whitening_only_0.6.pt")
    return truth


def per_layer(folder):
    """A pickled Llama as LLM-Pruner's llama3.py leaves it, in transformers' own classes.

    The second layer lost half of its heads, each layer has a width of its own.
    """
    model = dense("llama")
    for layer, (width, groups) in zip(model.model.layers, [(77, 2), (51, 1)], strict=True):
        attention, mlp = layer.self_attn, layer.mlp
        q, kv = groups * HEADS // KV_HEADS * HEAD_DIM, groups * HEAD_DIM
        for module, rows in ((attention.q_proj, q), (attention.k_proj, kv), (attention.v_proj, kv)):
            module.weight.data = module.weight.data[:rows].clone()
        attention.o_proj.weight.data = attention.o_proj.weight.data[:, :q].clone()
        for module in (mlp.gate_proj, mlp.up_proj):
            module.weight.data = module.weight.data[:width].clone()
        mlp.down_proj.weight.data = mlp.down_proj.weight.data[:, :width].clone()
        attention.num_heads, attention.num_key_value_heads = q // HEAD_DIM, groups
    truth = logits_of(model)
    torch.save({"model": model, "tokenizer": None}, folder / "pytorch_model.bin")
    return truth


def logits_of(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits.numpy()


MAKERS = {"palu": palu, "svd-llm": svd_llm, "per-layer-widths": per_layer}


@pytest.mark.parametrize("layout", MAKERS)
def test_it_is_recognised_loaded_and_realigned_as_the_fixtures_are(layout, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    truth = MAKERS[layout](source)
    found = scan(source)
    assert found.layout == layout
    kv = {attention.kv_heads for attention in found.attentions}
    assert kv == ({1, 2} if layout == "per-layer-widths" else {2})
    scale = np.abs(truth).max()
    np.testing.assert_allclose(logits_of(load_model(source)), truth, atol=1e-5 * scale)
    realign(source, "minimal", tmp_path / "padded")
    padded = scan(tmp_path / "padded")
    assert {d.name: d.size for d in padded.dims} == {
        d.name: -(-d.size // 8) * 8 for d in found.dims
    }
    np.testing.assert_allclose(logits_of(load_model(tmp_path / "padded")), truth, atol=1e-5 * scale)
    if layout != "per-layer-widths":
        realign(source, "fuse", tmp_path / "fused")
        plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "fused").eval()
        np.testing.assert_allclose(logits_of(plain), truth, atol=1e-5 * scale)


def test_none_of_the_tools_modules_is_imported(tmp_path, monkeypatch):
    """A pickle that names classes of a package that exists is read all the same, without it."""
    package = types.ModuleType("component_of_a_tool")
    monkeypatch.setitem(sys.modules, package.__name__, package)
    model = dense("llama")
    attention = model.model.layers[0].self_attn
    kind = type("Attention", (type(attention),), {"__module__": package.__name__})
    package.Attention = kind  # torch.save looks it up there
    attention.__class__ = kind
    torch.save(model.state_dict(), tmp_path / "state.pt")
    torch.save(model, tmp_path / "model.pt")
    monkeypatch.delitem(sys.modules, package.__name__)
    assert scan(tmp_path / "model.pt").tensors.keys() >= scan(tmp_path / "state.pt").tensors.keys()
    assert package.__name__ not in sys.modules
