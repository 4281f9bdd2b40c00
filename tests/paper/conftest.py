"""A recorded GPU to survey, and one compute thread for the models."""

from __future__ import annotations

import pytest
from recorded_gpu import SUITE, Gpu


@pytest.fixture(scope="session")
def suite(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("suite") / "small.toml"
    path.write_text(SUITE)
    return str(path)


@pytest.fixture
def h200(monkeypatch, suite) -> Gpu:
    return Gpu(monkeypatch, suite)


@pytest.fixture(autouse=True)
def one_thread():
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
