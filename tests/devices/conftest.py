"""What tests of devices share: a GPU that is simulated."""

import pytest
from simulated_gpu import SimulatedGpu, installed


@pytest.fixture
def gpu():
    with installed(SimulatedGpu()) as made:
        yield made
