"""What noise can feign and what it can hide, on a seeded recording with one-sided noise.

Whole visits are slowed by an exponential 1 % (other work on the machine), single timings by
2 % more: disturbance only ever slows, as on a real device.
"""

import random

from gacprof.measure.recorded import RecordedDevice
from gacprof.sweeping import build_map_of, run_sweep
from gacprof.sweeping.store import read_samples
from gacprof.sweeping.suite import parse_suite

DIMS = range(1001, 1130)
PLACES = (1025, 1051, 1077, 1103)
SEEDS = 26


def suite(**timing):
    timing = {"passes": 2, "count": 15, "duplicates": 0.2, "edge_visits": 6} | timing
    sweep = {"operator": "linear", "axis": "K", "values": list(DIMS), "dims": {"M": 1, "N": 8}}
    return parse_suite({"name": "t", "timing": timing, "sweep": [sweep]}, "t")


def noisy(seed, jump=0.0):
    """100 µs, and by ``jump`` more between the first and second, third and fourth place."""
    draw = random.Random(seed)

    def answer(point, n):
        k = point.dim["K"]
        raised = sum(k >= place for place in PLACES) % 2
        level = 100.0 * (1 + jump * raised) * (1 + draw.expovariate(100))
        return [level * (1 + abs(draw.gauss(0, 0.02))) for _ in range(n)]

    return RecordedDevice(answer)


def test_no_cliffs_where_there_are_none_and_planted_ones_are_found(tmp_path):
    false = neighbours = found = planted = 0
    for seed in range(SEEDS):
        run_sweep(suite(), noisy(seed), tmp_path / f"flat{seed}")
        flat = build_map_of(tmp_path / f"flat{seed}").curves[0]
        false += len(flat.cliffs)
        neighbours += len(DIMS) - 1
        run_sweep(suite(), noisy(seed, 1.5 * flat.floor), tmp_path / f"steps{seed}")
        steps = build_map_of(tmp_path / f"steps{seed}").curves[0]
        found += len({c.after for c in steps.cliffs} & set(PLACES))
        planted += len(PLACES)
    assert planted >= 100
    assert false <= 0.01 * neighbours
    assert found >= 0.99 * planted


def test_only_suspected_edges_are_visited_more(tmp_path):
    run_sweep(suite(), noisy(1, jump=1.0), tmp_path / "run")
    extra = [s for s in read_samples(tmp_path / "run") if s.visit >= 2]
    more = {s.point.dim["K"] for s in extra}
    assert more and len(more) < len(DIMS) / 3
    assert {s.visit for s in extra} == set(range(2, 8))
    assert len(extra) == 6 * len(more)
    assert not any({place, place - 1} <= more for place in PLACES), "a doubled time needs no more"


def test_a_resumed_sweep_suspects_the_same_edges(tmp_path):
    run_sweep(suite(), noisy(1), tmp_path / "whole")
    run_sweep(suite(edge_visits=0), noisy(1), tmp_path / "passes")
    wanted = [(s.point, s.visit) for s in read_samples(tmp_path / "whole")]

    def stop(done, total, point):
        if done == len(wanted) - 5:
            raise KeyboardInterrupt

    try:
        run_sweep(suite(), noisy(1), tmp_path / "cut", progress=stop)
    except KeyboardInterrupt:
        run_sweep(suite(), noisy(99), tmp_path / "cut", resume=True)
    assert [(s.point, s.visit) for s in read_samples(tmp_path / "cut")] == wanted
    passes = [(s.point, s.visit) for s in read_samples(tmp_path / "passes")]
    assert wanted[: len(passes)] == passes


def test_a_budget_leaves_a_valid_folder_that_resumes(tmp_path):
    clock = suite(edge_visits=0)

    first = run_sweep(clock, noisy(1), tmp_path / "run", budget_s=1e-6)
    assert (first.visits, first.points) == (0, 0) and first.left > 0
    rest = run_sweep(clock, noisy(1), tmp_path / "run", resume=True)
    assert rest.left == 0 and rest.visits == first.left == len(read_samples(tmp_path / "run"))


def test_keys_added_later_do_not_change_the_hash_of_older_suites():
    plain = suite(edge_visits=0)
    assert not {"edge_visits", "budget_s"} & plain.plain()["timing"].keys()
    assert "strategy" not in plain.plain()["sweep"][0]
    assert len({plain.hash, suite().hash, suite(edge_visits=0, budget_s=9).hash}) == 3
