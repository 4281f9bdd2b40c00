"""Small dense decoders, and the token ids that they are calibrated on."""

import pytest
import torch
from decoders import VOCABULARY, write_decoder


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def dense(tmp_path_factory):
    """A folder with three layers of hidden size 64."""
    return write_decoder(tmp_path_factory.mktemp("dense") / "model", widths=(96, 120, 96))


@pytest.fixture(scope="session")
def ids():
    """Windows of token ids [6, 24]: more tokens than a layer has features."""
    return torch.randint(VOCABULARY, (6, 24), generator=torch.Generator().manual_seed(1))
