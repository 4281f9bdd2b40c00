"""A small dense Llama with grouped keys, calibration ids, and planted maps for what comes of it."""

import pytest
import torch
from compressing_models import make_model
from planted import planted_map_of

import gacprof


@pytest.fixture(scope="session")
def dense(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("dense") / "model")


@pytest.fixture(scope="session")
def ids():
    """12 windows of 32 tokens: more tokens than any layer has inputs."""
    return torch.randint(0, 128, (12, 32), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="session")
def measured(dense, ids):
    """By module of a model that is run whole: its inputs and the gradients of its outputs by the
    loss summed over a window's tokens, [tokens, features]."""
    model = gacprof.load_model(dense, dtype="float32").requires_grad_(True)
    seen, kept = {}, []

    def keep(name):
        def hook(module, args, output):
            output.retain_grad()
            kept.append((name, args[0], output))

        return hook

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and "layers." in name:
            module.register_forward_hook(keep(name))
    for window in ids:
        kept.clear()
        logits = model(window[None]).logits[0, :-1]
        torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").backward()
        for name, x, y in kept:
            seen.setdefault(name, []).append((x[0].detach(), y.grad[0]))
    return {
        name: tuple(torch.cat(part).double() for part in zip(*pairs, strict=True))
        for name, pairs in seen.items()
    }


@pytest.fixture(scope="session")
def map_of():
    """The planted device's map (multiples of 8 are fast) around a checkpoint's own sizes."""
    made = {}

    def make(checkpoint):
        if checkpoint not in made:
            made[checkpoint] = planted_map_of(checkpoint)
        return made[checkpoint]

    return make


@pytest.fixture(scope="session")
def compress(dense, ids, tmp_path_factory):
    """The dense model compressed by 30 % unless told otherwise; what was worked out for a method
    serves all tests."""
    work = tmp_path_factory.mktemp("work")

    def call(method, out, **asked):
        settings = {"ratio": 0.3, "calib": ids, "work": work} | asked
        return gacprof.compress(dense, out, method=method, **settings)

    return call


@pytest.fixture(scope="session")
def unaligned(compress, tmp_path_factory):
    """The dense model compressed by 30 % at a method's own sizes."""
    made = {}

    def find(method):
        if method not in made:
            made[method] = tmp_path_factory.mktemp("own") / method
            compress(method, made[method])
        return made[method]

    return find


@pytest.fixture(scope="session")
def own_map(unaligned, map_of):
    """The map around the sizes that a method chooses by itself: uniform ranks are one map's."""
    return lambda method: map_of(unaligned("svd" if method.endswith(("-llm", "-svd")) else method))
