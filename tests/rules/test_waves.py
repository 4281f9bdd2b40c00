"""Where a step along M or N is likely, ends of waves of the best tile, and how often one is."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gacprof import operators
from gacprof.elsewhere.data import Measurements, Surface
from gacprof.rules import step, target
from gacprof.rules.waves import TILE, likely_edges

SMS = {"a100": 108, "h100": 132, "b200": 148, "l40s": 142}


def steps(gpu: str, axis: str, sizes: list[int], **fixed: int) -> list[object]:
    about = target(gpu, "2.11.0")
    points = (operators.point("linear", fixed | {axis: size}, "bfloat16") for size in sizes)
    return [step(point, axis, about) for point in points]


def test_an_edge_is_where_the_tiles_of_one_wave_are_used_up() -> None:
    """A100, M=2048, K=128: 13 columns of 128 by 8 rows of 256 are 104 tiles for 108 SMs."""
    found = steps("a100", "N", [1536, 1664, 1665, 1700], M=2048, K=4096)
    assert found[0] == found[1] < found[2] == found[3]


def test_what_is_bound_by_reading_its_weights_has_no_edge_in_the_first_wave() -> None:
    """128 → 129 rows of N = 4096 read 32 MiB either way."""
    assert len(set(steps("h100", "M", [1, 64, 129, 256], N=4096, K=4096))) == 1


def test_without_the_number_of_sms_only_tiles_are_known() -> None:
    assert steps("l4", "M", [1, 128, 129, 256, 257], N=4096, K=4096) == [1, 1, 2, 2, 3]


@given(
    along_m=st.booleans(), other=st.integers(1, 70_000), sms=st.sampled_from(sorted(SMS.values())),
    per_column=st.floats(0, 2000),
)  # fmt: skip
def test_edges_ascend_at_whole_tiles(
    along_m: bool, other: int, sms: int, per_column: float
) -> None:
    edges = likely_edges(along_m, other, sms, per_column)
    assert list(edges) == sorted(set(edges)) and all(e > 0 and e % TILE == 0 for e in edges)


@pytest.fixture(scope="module")
def evidence(pytestconfig: pytest.Config) -> dict[str, Any]:
    path = Path(pytestconfig.rootpath) / "benchmarks" / "rules_by_evidence.py"
    return runpy.run_path(str(path))


def made(time: Callable[[int, int, int], float]) -> Surface:
    """A table in the form of the measured ones, made here: sizes of M with the next one, a few N
    and K."""
    m = np.array(sorted({s + more for s in range(128, 2049, 128) for more in (0, 1)}))
    n, k = np.array([1024, 4096, 6144]), np.array([1024, 4096])
    us = [[[time(int(a), int(b), int(c)) for c in k] for b in n] for a in m]
    return Surface("made", "0", "bfloat16", m, n, k, np.array(us))


def test_the_gate_counts_steps_that_were_foretold_and_those_that_came(
    evidence: dict[str, Any],
) -> None:
    """Times of whole waves of 128 × 256 on 108 SMs: all ends that rules name are steps. Times that
    grow with every row have none."""
    about = target("a100", "2.11.0")

    def waves(m: int, n: int, k: int) -> float:
        return -(-(-(-m // 128) * -(-n // 256)) // 108) * k * 1e-3

    right, said, there = evidence["pairs"](made(waves), evidence["after"](about))
    assert 0 < right <= said and right / said > 0.6 and right <= there
    right, said, there = evidence["pairs"](made(lambda m, n, k: m * k * 1e-6), lambda m, n, k: m)
    assert right == there == 0 < said


@pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="needs gacprof[elsewhere]")
@pytest.mark.parametrize(
    ("gpu", "least"), [("a100", 0.90), ("l40s", 0.90), ("b200", 0.85), ("h100", 0.35)]
)
def test_ends_of_waves_are_steps_as_others_measured_them(
    evidence: dict[str, Any], gpu: str, least: float, tmp_path: Path
) -> None:
    """The second gate: precision as in reports/rules.md, better than before, of a sixth."""
    found = find_spec("aiconfigurator_core")
    assert found is not None and found.submodule_search_locations
    root = Path(found.submodule_search_locations[0]) / "systems" / "data"
    measured = Measurements(root, "0.12.0", tmp_path)
    surface, about = evidence["middle"](measured, gpu), target(gpu, "2.11.0")
    right, said, steps_there = evidence["pairs"](surface, evidence["after"](about))
    before, claimed, _ = evidence["pairs"](surface, evidence["before"](about))
    assert right / said >= least and right / said > before / claimed + 0.1
    assert right / steps_there >= 0.14
