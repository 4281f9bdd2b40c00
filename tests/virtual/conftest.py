"""A python with a CUDA build of PyTorch, where there is one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cuda_python() -> Path:
    """The python named by GACPROF_CUDA_PYTHON; tests that need one are skipped without it."""
    named = os.environ.get("GACPROF_CUDA_PYTHON")
    if not named:
        pytest.skip("GACPROF_CUDA_PYTHON names no python with a CUDA build of PyTorch")
    return Path(named)
