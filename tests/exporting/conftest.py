"""Small random decoders, made beside each test."""

import pytest
from decoders import write_decoder


@pytest.fixture(autouse=True)
def _engines_take_one_thread(monkeypatch):
    """On models this small, llama.cpp's threads spin for each other."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})


@pytest.fixture
def make_decoder(tmp_path):
    """``write_decoder`` into a folder of this name."""

    def make(name="model", **what):
        return write_decoder(tmp_path / name, **what)

    return make


@pytest.fixture
def everything(make_decoder):
    """What only the transformers folder can hold: factors, groups, widths and heads per layer."""
    return make_decoder(
        widths=(70, 96, 33),
        heads=((4, 2), (2, 1), (4, 2)),
        ranks={
            "model.layers.0.self_attn.q_proj": 13,
            "model.layers.0.self_attn.k_proj": [5, 7],
            "model.layers.1.mlp.down_proj": 19,
            "model.layers.2.mlp.gate_proj": 9,
            "lm_head": 21,
        },
    )
