"""Blocks and maps that the tests of this room share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gacprof.cliffmap import CliffMap
from gacprof.core.points import Environment

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))


@pytest.fixture(scope="session")
def a100(fixtures: Path) -> CliffMap:
    """The published A100 figures, freshly imported."""
    from published_map import published_map

    return published_map(fixtures / "published")


@pytest.fixture
def device() -> Environment:
    return Environment("recorded", "planted", "none", {}, {"torch": "2.13.0", "driver": None})
