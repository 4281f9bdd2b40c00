"""Diagnosis, plan, candidates and the Python API say what the map says, on every kind of
checkpoint, whether its config is true or not.

What is right is computed here from the planted map's points alone, and from products written down
by hand: the time of a size in all products that it takes part in, and the least time of any size at
least as large.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from checkpoint_making import checkpoint
from planted import TOKENS, planted_map_of
from test_honest_sizes import LAYER, MLP, Q, gated, sliced

from gacprof.checkpoint import scan
from gacprof.cliffmap import CliffMap, Use
from gacprof.diagnosing import diagnose
from gacprof.diagnosing.profiles import LEAST_REACH
from gacprof.planning import Constraints, plan

TOLERANCE, WINDOW = 0.02, 0.25
Products = Callable[[int], list[tuple[int, int]]]


@dataclass(frozen=True)
class Case:
    """A checkpoint with one odd dim; ``products`` are (N, K) of all its products at a size."""

    shapes: dict[str, tuple[int, ...]]
    config: dict[str, Any]
    dim: str
    size: int
    products: Products
    most: int = 10**6
    plain_axes: bool = True  # the size itself is N or K, not a part or a multiple of it


def mlp(times=1):
    return lambda s: [(s, 64), (s, 64), (64, s)] * times


def pair(out, deep=256):
    return lambda s: [(s, deep), (out, s)]


ASVD = {f"{Q}.BLinear.weight": (107, 256), f"{Q}.ALinear.weight": (256, 107)}
PALU = {f"{Q}.VT.weight": (73, 256), f"{Q}.U.0.weight": (64, 41), f"{Q}.U.1.weight": (64, 32)}
WIDTH, EXPERT, RANK = f"{MLP}:width", f"{MLP}.experts.0", f"{Q}:rank"
FUSED = {f"{MLP}.gate_up_proj.weight": (2 * 333, 64), f"{MLP}.down_proj.weight": (64, 333)}
SVD = {f"{Q[:-4]}v_proj.weight": (51, 256), f"{Q[:-4]}u_proj.weight": (256, 51)}

CASES = {
    "plain": Case(gated(MLP, 683), {"intermediate_size": 683}, WIDTH, 683, mlp()),
    "plain, config of before": Case(
        gated(MLP, 677), {"intermediate_size": 1024}, WIDTH, 677, mlp(),
    ),
    "plain, aligned": Case(gated(MLP, 688), {"intermediate_size": 688}, WIDTH, 688, mlp()),
    "gate and up fused": Case(
        FUSED, {"intermediate_size": 500}, WIDTH, 333,
        lambda s: [(2 * s, 64), (64, s)], plain_axes=False,
    ),
    "moe": Case(
        gated(EXPERT, 171), {"moe_intermediate_size": 171, "intermediate_size": 5632},
        f"{EXPERT}:width", 171, mlp(),
    ),
    "moe, config of before": Case(
        gated(EXPERT, 171), {"moe_intermediate_size": 256}, f"{EXPERT}:width", 171, mlp(),
    ),
    "asvd": Case(ASVD, {"truncation_ranks": {Q: 107}}, RANK, 107, pair(256), most=256),
    "asvd, config without ranks": Case(ASVD, {}, RANK, 107, pair(256), most=256),
    "asvd, of full rank": Case(
        {f"{Q}.BLinear.weight": (131, 256), f"{Q}.ALinear.weight": (131, 131)},
        {"truncation_ranks": {Q: 131}}, RANK, 131, pair(131),
    ),
    "svd-llm": Case(SVD, {"hidden_size": 999}, RANK, 51, pair(256), most=256),
    "palu": Case(
        PALU, {"head_wise_ranks": {Q: [41, 32]}}, f"{RANK}.0", 41,
        lambda s: [(32 + s, 256), (64, s)], most=64, plain_axes=False,
    ),
    "palu, a group of full rank": Case(
        {f"{Q}.VT.weight": (73, 256), f"{Q}.U.0.weight": (41, 41), f"{Q}.U.1.weight": (41, 32)},
        {"head_wise_ranks": {Q: [41, 32]}}, f"{RANK}.0", 41,
        lambda s: [(32 + s, 256), (41, s)], plain_axes=False,
    ),
    "factor pairs": Case(
        {f"{Q}.V.weight": (51, 256), f"{Q}.U.weight": (256, 51)}, {}, RANK, 51, pair(256), most=256,
    ),
    "slicegpt": Case(
        sliced(251), {"hidden_size": 256}, "embedding:hidden", 251,
        lambda s: [(64, s)] * 3 + [(256, s)],
    ),
}  # fmt: skip


def latency(point):
    """What is no multiple of 8 is 40 % slower, what is none of 32 another 15 %."""
    if point.operator != "linear":
        return 50.0
    m, n, k = (point.dim[axis] for axis in "MNK")
    slow = 1.4 if n % 8 or k % 8 else 1.15 if n % 32 or k % 32 else 1.0
    return (20.0 + m * n * k / 1e6) * slow


@dataclass(frozen=True)
class Right:
    """By the map's points alone: time, penalty and verdict of every size."""

    time: dict[int, float]

    def penalty(self, size):
        return self.time[size] / min(t for s, t in self.time.items() if s >= size) - 1

    def safe(self, size):
        return self.penalty(size) <= TOLERANCE

    @property
    def judged(self):
        """Sizes up to the last one of the best kind."""
        last = max(size for size in self.time if size % 32 == 0)
        return sorted(size for size in self.time if size <= last)


@dataclass(frozen=True)
class Made:
    case: Case
    folder: Path
    map: CliffMap
    right: Right


@pytest.fixture(scope="module", params=CASES)
def made(request, tmp_path_factory):
    case, folder = CASES[request.param], tmp_path_factory.mktemp("brute")
    source = checkpoint(folder / "source", case.shapes, case.config)
    cliff_map = planted_map_of(source, latency=latency, dtype="float16")
    cliff_map.save(folder / "map.json")
    return Made(case, folder, cliff_map, right_of(case, cliff_map))


def right_of(case, cliff_map):
    points = {}
    for curve in cliff_map.curves:
        if curve.operator == "linear":
            for d, us in curve.latencies.items():
                dims = {**curve.fixed, curve.axis: d}
                points[dims["M"], dims["N"], dims["K"]] = us
    found = {}
    for size in range(1, 2 * case.size + 200):
        keys = [((m, *product), w) for m, w in TOKENS.items() for product in case.products(size)]
        if all(key in points for key, _ in keys):
            found[size] = sum(w * points[key] for key, w in keys)
    return Right(found)


def test_enough_is_measured_to_be_right_about(made):
    size = made.case.size
    assert size in made.right.judged and sum(s > size for s in made.right.judged) >= 3
    assert made.right.safe(size) == (size % 32 == 0)


def test_the_diagnosis_is_right(made):
    case = made.case
    found = {d.name: d for d in diagnose(made.folder / "source", made.map, tokens=TOKENS).dims}
    dim = found[case.dim]
    assert dim.size == case.size and dim.tolerance == TOLERANCE
    assert dim.verdict == ("safe" if made.right.safe(case.size) else "misaligned")
    assert dim.penalty == pytest.approx(made.right.penalty(case.size), abs=1e-3)
    assert dim.latency_us == pytest.approx(made.right.time[case.size], rel=1e-4)


def safe_within_reach(made):
    """Safe sizes that the dim could be padded to: within the window, and of use to a rank."""
    case = made.case
    high = min(case.size + max(LEAST_REACH, round(WINDOW * case.size)), case.most)
    return [s for s in made.right.judged if case.size <= s <= high and made.right.safe(s)]


def planned(made, **constraints):
    return plan(
        made.folder / "source", made.map, objective="pad", tokens=TOKENS,
        constraints=Constraints(fuse=False, **constraints),
    )  # fmt: skip


def test_the_plan_offers_the_safe_sizes_and_no_others(made):
    case = made.case
    done = planned(made, untouched=True)
    choice = next(c for c in done.choices if c.dim == case.dim)
    assert set(choice.candidates) | {case.size} == {case.size, *safe_within_reach(made)}


def test_the_plan_takes_the_least_safe_size_or_says_that_there_is_none(made):
    case, wanted = made.case, safe_within_reach(made)
    done = planned(made)
    choice = next(c for c in done.choices if c.dim == case.dim)
    if wanted:
        assert choice.after == wanted[0] and choice.verdict == "safe" and done.certificate.proved
    else:
        assert choice.after == case.size and choice.verdict is None
        assert any(case.dim in warning for warning in done.warnings)


def uses_of(case):
    found = []
    for m, weight in TOKENS.items():
        for (n, k), (n1, _) in zip(
            case.products(case.size), case.products(case.size + 1), strict=True
        ):
            axis, other = ("N", {"K": k}) if n != n1 else ("K", {"N": n})
            flags = {"bias": False, "cache": "cold"}
            found.append(Use("linear", {"M": m, **other}, axis, "float16", flags, weight))
    return found


def test_the_candidates_of_the_python_api_are_right(made):
    if not made.case.plain_axes:
        pytest.skip("the size is a part of an axis: no use of one operator says that")
    judged = {c.d: c for c in made.map.judge_jointly(uses_of(made.case))}
    for size in made.right.judged:
        if size not in judged or judged[size].penalty_high is None:
            assert size > made.case.size
            continue
        assert judged[size].verdict == ("safe" if made.right.safe(size) else "misaligned"), size
        assert judged[size].penalty == pytest.approx(made.right.penalty(size), abs=1e-3)
    near = made.map.joint_candidates(uses_of(made.case), made.case.size)
    assert near and all(made.right.safe(c.d) for c in near if c.d in made.right.time)


def test_the_command_line_says_the_same(made, monkeypatch, capsys):
    from gacprof.cli import main

    arguments = ["gacprof", "diagnose", str(made.folder / "source"), "--json"]
    arguments += ["--map", str(made.folder / "map.json"), "--tokens", ",".join(map(str, TOKENS))]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as stopped:
        main()
    message = json.loads(capsys.readouterr().out)
    dim = next(d for d in message["dims"] if d["name"] == made.case.dim)
    safe = made.right.safe(made.case.size)
    assert dim["verdict"] == ("safe" if safe else "misaligned")
    misaligned = message["totals"]["misaligned"]
    assert stopped.value.code == (1 if misaligned else 0) and (safe or misaligned)


def test_all_layouts_are_among_the_cases(tmp_path):
    layouts = {
        scan(checkpoint(tmp_path / str(i), case.shapes, case.config)).layout
        for i, case in enumerate(CASES.values())
    }
    assert len(layouts) >= 6, layouts
    assert LAYER in Q
