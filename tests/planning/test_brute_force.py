"""Diagnosis and plan say what a map says, on every kind of checkpoint, whether its config is true
or not.

What is right is computed here from the planted map's points alone, and from products written down
by hand: the time of a size in all products that it takes part in, and the least time of any size at
least as large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from formula_source import write_checkpoint
from planted import TOKENS, planted_map_of

from gacprof.checkpoint.scan import scan
from gacprof.cliffmap.cliffmap import CliffMap
from gacprof.core.points import Point
from gacprof.diagnosing.diagnosis import diagnose
from gacprof.diagnosing.sizes import LEAST_REACH, WINDOW
from gacprof.planning.planner import plan

TOLERANCE = 0.02
Shapes = Mapping[str, tuple[int, ...]]
Products = Callable[[int], list[tuple[int, int]]]
LAYER = "model.layers.0"
MLP = f"{LAYER}.mlp"
Q = f"{LAYER}.self_attn.q_proj"
WIDTH, EXPERT, RANK = f"{MLP}:width", f"{MLP}.experts.0", f"{Q}:rank"


@dataclass(frozen=True)
class Case:
    """A checkpoint with one odd dim; ``products`` are (N, K) of all its products at a size."""

    shapes: Shapes
    dim: str
    size: int
    products: Products
    config: Mapping[str, Any] = field(default_factory=dict)
    largest: int = 10**6


def gated(prefix: str, width: int, hidden: int = 64) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj.weight": (width, hidden),
        f"{prefix}.up_proj.weight": (width, hidden),
        f"{prefix}.down_proj.weight": (hidden, width),
    }


def sliced(hidden: int) -> dict[str, tuple[int, ...]]:
    return {
        "model.embed_tokens.weight": (64, hidden),
        **{f"{LAYER}.self_attn.{x}_proj.weight": (64, hidden) for x in "qkv"},
        f"{LAYER}.attn_shortcut_Q": (hidden, 256),
        **gated(MLP, 64, 256),
        f"{LAYER}.self_attn.o_proj.weight": (256, 64),
        f"{LAYER}.mlp_shortcut_Q": (256, 256),
        "lm_head.weight": (64, 256),
    }


def mlp(size: int) -> list[tuple[int, int]]:
    return [(size, 64), (size, 64), (64, size)]


def pair(out: int) -> Products:
    return lambda size: [(size, 256), (out, size)]


ASVD = {f"{Q}.BLinear.weight": (107, 256), f"{Q}.ALinear.weight": (256, 107)}
PALU = {f"{Q}.VT.weight": (73, 256), f"{Q}.U.0.weight": (64, 41), f"{Q}.U.1.weight": (64, 32)}
FUSED = {f"{MLP}.gate_up_proj.weight": (2 * 333, 64), f"{MLP}.down_proj.weight": (64, 333)}
SVD = {f"{Q[:-4]}v_proj.weight": (51, 256), f"{Q[:-4]}u_proj.weight": (256, 51)}
FULL = {f"{Q}.BLinear.weight": (131, 256), f"{Q}.ALinear.weight": (131, 131)}
PAIR = {f"{Q}.V.weight": (51, 256), f"{Q}.U.weight": (256, 51)}

CASES = {
    "plain": Case(gated(MLP, 683), WIDTH, 683, mlp, {"intermediate_size": 683}),
    "config of before": Case(gated(MLP, 677), WIDTH, 677, mlp, {"intermediate_size": 1024}),
    "aligned": Case(gated(MLP, 672), WIDTH, 672, mlp, {"intermediate_size": 672}),
    "gate and up fused": Case(
        FUSED, WIDTH, 333, lambda s: [(2 * s, 64), (64, s)], {"intermediate_size": 500}
    ),
    "moe": Case(
        gated(EXPERT, 171),
        f"{EXPERT}:width",
        171,
        lambda s: [(2 * s, 64), (64, s)],
        {"moe_intermediate_size": 171, "num_experts": 1, "num_experts_per_tok": 1},
    ),
    "asvd": Case(ASVD, RANK, 107, pair(256), {"truncation_ranks": {Q: 107}}, 256),
    "asvd, config without ranks": Case(ASVD, RANK, 107, pair(256), {}, 256),
    "asvd, full rank": Case(FULL, RANK, 131, pair(131), {"truncation_ranks": {Q: 131}}),
    "svd-llm": Case(SVD, RANK, 51, pair(256), {"hidden_size": 999}, 256),
    "palu": Case(
        PALU,
        f"{RANK}.0",
        41,
        lambda s: [(32 + s, 256), (64, s)],
        {"head_wise_ranks": {Q: [41, 32]}},
        64,
    ),
    "factor pairs": Case(PAIR, RANK, 51, pair(256), {}, 256),
    "slicegpt": Case(
        sliced(251),
        "embedding:hidden",
        251,
        lambda s: [(64, s)] * 3 + [(256, s)],
        {"hidden_size": 256},
    ),
}


def latency(point: Point) -> float:
    """µs: what is no multiple of 8 is 40 % slower, what is none of 32 another 15 %."""
    if point.operator != "linear":
        return 50.0
    m, n, k = (point.dims[axis] for axis in "MNK")
    slow = 1.4 if n % 8 or k % 8 else 1.15 if n % 32 or k % 32 else 1.0
    return (20.0 + m * n * k / 1e6) * slow


@dataclass(frozen=True)
class Setting:
    """A case on disk, its map, and by the map's points alone the time of every size."""

    case: Case
    folder: Path
    map: CliffMap
    times: dict[int, float]

    def penalty(self, size: int) -> float:
        return self.times[size] / min(t for s, t in self.times.items() if s >= size) - 1

    def safe_sizes(self) -> list[int]:
        """Sizes to pad to: within the window, of use to a rank, with comparable larger ones."""
        size = self.case.size
        high = min(size + max(LEAST_REACH, round(WINDOW * size)), self.case.largest)
        last = max(size for size in self.times if size % 32 == 0)
        sizes = [s for s in self.times if size <= s <= min(high, last)]
        return sorted(s for s in sizes if self.penalty(s) <= TOLERANCE)


@pytest.fixture(scope="module", params=CASES)
def setting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setting:
    case: Case = CASES[request.param]
    folder = tmp_path_factory.mktemp("brute") / "source"
    write_checkpoint(folder, case.shapes, case.config)
    cliff_map = planted_map_of(folder, latency=latency, dtype="float16")
    points = set()
    for curve in cliff_map.curves:
        if curve.axis.operator == "linear":
            dims = [curve.axis.point(verdict.size).dims for verdict in curve.sizes]
            points |= {(d["M"], d["N"], d["K"]) for d in dims}
    times = {}
    for size in range(1, 2 * case.size + 200):
        products = [(m, n, k) for m in TOKENS for n, k in case.products(size)]
        if points.issuperset(products):
            dims = [dict(zip("MNK", product, strict=True)) for product in products]
            times[size] = sum(latency(Point("linear", d, "float16")) for d in dims)
    return Setting(case, folder, cliff_map, times)


def test_enough_is_measured_to_be_right_about(setting: Setting) -> None:
    assert sum(size > setting.case.size for size in setting.times) >= 3
    assert (setting.penalty(setting.case.size) <= TOLERANCE) == (setting.case.size % 32 == 0)


def test_the_diagnosis_is_right(setting: Setting) -> None:
    case = setting.case
    diagnosis = diagnose(setting.folder, setting.map, tokens=TOKENS)
    (finding,) = [f for f in diagnosis.dims if f.dim.name == case.dim]
    penalty, time = finding.now.penalty, finding.now.latency_us
    assert penalty is not None and time is not None
    assert finding.dim.size == case.size
    assert finding.now.verdict == ("safe" if case.size % 32 == 0 else "misaligned")
    assert penalty.value == pytest.approx(setting.penalty(case.size), abs=1e-3)
    assert time.value == pytest.approx(setting.times[case.size], rel=1e-4)
    safe = setting.safe_sizes()
    if finding.action == "pad":
        assert finding.better is not None and finding.better.size == safe[0]
    else:
        assert finding.action == "merge" or not safe or safe[0] == case.size


def test_the_plan_takes_the_least_safe_size(setting: Setting) -> None:
    case, safe = setting.case, setting.safe_sizes()
    chosen = plan(setting.folder, setting.map, objective="pad", tokens=TOKENS)
    (choice,) = [c for c in chosen.choices if c.dim == case.dim]
    if choice.after is not None:
        assert choice.after == (safe[0] if safe else case.size)
        assert choice.verdict == ("safe" if safe else "misaligned")
    assert chosen.value == chosen.bound


def test_all_layouts_are_among_the_cases(tmp_path: Path) -> None:
    layouts = set()
    for i, case in enumerate(CASES.values()):
        layouts.add(scan(write_checkpoint(tmp_path / str(i), case.shapes, case.config)).layout)
    assert len(layouts) >= 6, layouts
