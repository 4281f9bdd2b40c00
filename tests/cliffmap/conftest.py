"""Samples and maps that the tests of this room share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.published import published_map
from gacprof.points import Environment, Point, Sample


@pytest.fixture(scope="session")
def a100(fixtures: Path) -> CliffMap:
    """The published A100 figures, freshly imported."""
    return published_map(fixtures / "published")


@pytest.fixture
def device() -> Environment:
    return Environment("recorded", "planted", "none", {}, {"torch": "2.13.0", "driver": None})


@pytest.fixture
def samples_of() -> Callable[..., Iterator[Sample]]:
    """Two visits of five timings a dim, all equal to ``latency(d)``: a device without noise."""

    def make(dims, latency, axis="K", kernel=None, **options) -> Iterator[Sample]:
        fixed = {"M": 64, "N": 512, "K": 512}
        for d in dims:
            point = Point.of("linear", {**fixed, axis: d}, "float16", {"bias": False})
            kernels = (kernel(d),) if kernel else ()
            for visit in (0, 1):
                yield Sample(
                    point, (axis,), (latency(d),) * 5, "recorded", visit, kernels=kernels, **options
                )

    return make
