"""Blocks and maps that the tests of this room share."""

from __future__ import annotations

from pathlib import Path

import pytest

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.published import published_map
from gacprof.core.points import Environment


@pytest.fixture(scope="session")
def a100(fixtures: Path) -> CliffMap:
    """The published A100 figures, freshly imported."""
    return published_map(fixtures / "published")


@pytest.fixture
def device() -> Environment:
    return Environment("recorded", "planted", "none", {}, {"torch": "2.13.0", "driver": None})
