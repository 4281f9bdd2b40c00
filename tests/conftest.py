"""Where tests find real files: small ones in tests/fixtures, the full set where it is at hand."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples on every run: a red build is then about the change, not about the dice.
# HYPOTHESIS_PROFILE=search looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

os.environ.pop("COLUMNS", None)  # tables are as a pipe gets them, wherever the tests run

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "support"))


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """Small real files that travel with the repository."""
    return HERE / "fixtures"


@pytest.fixture(scope="session")
def original_checkpoints() -> Path:
    """The full set of checkpoints written by the original tools; skips where it is absent.

    Looked for in ``$GACPROF_SHARED`` and in a folder ``shared`` beside the checkout.
    """
    shared = Path(os.environ.get("GACPROF_SHARED", HERE.parent.parent / "shared"))
    folder = shared / "fixtures" / "checkpoints"
    if not folder.is_dir():
        pytest.skip("the full fixture set is not at hand (set GACPROF_SHARED)")
    return folder
