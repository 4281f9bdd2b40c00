"""A layer at a time gives what the whole model gives."""

import pytest
import torch
from decoders import write_decoder
from torch import nn

from gacprof.checkpoint.load import load_model
from gacprof.checkpoint.scan import scan
from gacprof.compress.layered import LayeredModel, layer_names
from gacprof.compress.statistics import backward_statistics, forward_statistics

MODELS = {
    "llama": {},
    "qwen2 of two widths": {"family": "qwen2", "widths": (90, 77)},
    "qwen3 tied": {"family": "qwen3", "tied": True},
    "mistral sharded": {"family": "mistral", "sharded": True},
    "heads by layer": {"heads": ((4, 2), (2, 1))},
}
PARTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")


@pytest.fixture(params=MODELS)
def folder(request, tmp_path):
    return write_decoder(tmp_path / "model", **MODELS[request.param])


MODULES = {i: [f"model.layers.{i}.{part}" for part in PARTS] for i in range(2)}


def whole_model(folder, ids):
    """Means of x·xᵀ and g·gᵀ by module, and gradients by parameter, of one pass of the model."""
    model = load_model(folder, dtype="float32").requires_grad_(True)
    inputs, outputs = {}, {}
    for name, module in model.named_modules():
        if name.partition("layers.")[2].partition(".")[2] in PARTS:

            def keep(module, args, output, name=name):
                output.retain_grad()
                inputs[name], outputs[name] = args[0].detach(), output

            module.register_forward_hook(keep)
    logits = model(input_ids=ids).logits[:, :-1]
    nn.functional.cross_entropy(
        logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum"
    ).backward()

    def mean(x):
        rows = x.flatten(0, 1).double()
        return rows.T @ rows / len(rows)

    return (
        {name: mean(x) for name, x in inputs.items()},
        {name: mean(y.grad) for name, y in outputs.items()},
        {name: parameter.grad for name, parameter in model.named_parameters()},
    )


def close(value, expected):
    scale = float(expected.abs().max())
    torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-4 * scale)


def test_covariances_and_gradients_are_those_of_the_whole_model(folder, ids, tmp_path):
    inputs, gradients, by_weight = whole_model(folder, ids)
    model = LayeredModel(scan(folder))
    order = []
    for statistics in backward_statistics(model, ids, MODULES, tmp_path, weights=True):
        order.append(statistics.index)
        for name in MODULES[statistics.index]:
            close(statistics.inputs[name].mean, inputs[name])
            close(statistics.gradients[name].mean, gradients[name])
        for name, parameter in statistics.layer.named_parameters():
            close(parameter.grad, by_weight[f"model.layers.{statistics.index}.{name}"])
    assert order == [1, 0]


def test_a_forward_pass_gives_the_inputs_alone(folder, ids):
    inputs, _, _ = whole_model(folder, ids)
    for statistics in forward_statistics(LayeredModel(scan(folder)), ids, MODULES):
        assert not statistics.gradients
        for name in MODULES[statistics.index]:
            close(statistics.inputs[name].mean, inputs[name])


def test_no_weights_are_in_memory_outside_of_a_layers_turn(dense):
    model = LayeredModel(scan(dense))
    assert layer_names(scan(dense)) == [f"model.layers.{i}" for i in range(3)]
    with model.layer(1) as layer:
        assert not any(parameter.is_meta for parameter in layer.parameters())
        assert model.model.get_submodule("model.layers.0.mlp.up_proj").weight.is_meta
    assert all(parameter.is_meta for parameter in model.model.parameters())
