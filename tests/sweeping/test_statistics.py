"""What noise can feign and what it can hide, on a seeded recording with one-sided noise.

Whole visits are slowed by an exponential 1 % (other work on the machine), single timings by
2 % more: disturbance only ever slows, as on a real device. *Bursts* are worse: in a ninth of
all visits, in stretches, everything is 5 to 20 % slower besides.
"""

from collections import defaultdict

import numpy as np
import pytest
from gacprof.sweeping.rounds import rounds
from gacprof.sweeping.suspects import suspected
from gacprof.sweeping.visiting import measure_visit

from gacprof.cliffmap.build import build_map
from gacprof.measure.recorded import RecordedDevice
from gacprof.measure.stats import median
from gacprof.sweeping import build_map_of, run_sweep
from gacprof.sweeping.refine import Seen
from gacprof.sweeping.store import read_samples
from gacprof.sweeping.suite import Suite, Timing, load_suite, parse_suite, shipped_suites

DIMS = range(1001, 1130)
PLACES = (1025, 1051, 1077, 1103)
SEEDS = 40


def suite(**timing) -> Suite:
    timing = {"passes": 2, "count": 15, "duplicates": 0.2, "edge_visits": 6} | timing
    sweep = {"operator": "linear", "axis": "K", "values": list(DIMS), "dims": {"M": 1, "N": 8}}
    return parse_suite({"name": "t", "timing": timing, "sweep": [sweep]}, "t")


class Noisy(RecordedDevice):
    """100 µs, and by ``jump`` more between the first and second, third and fourth place."""

    def __init__(self, seed: int, jump: float = 0.0, bursts: bool = False) -> None:
        super().__init__(self._timings)
        self._draw, self._jump, self._bursts = np.random.default_rng(seed), jump, bursts
        self._burst = 1.0
        self._slow = 1.0

    def prepare(self, point):
        """Every visit begins here, and with it a disturbance that lasts as long."""
        if self._bursts:
            if self._draw.random() < 0.05:
                self._burst = 1 + self._draw.uniform(0.05, 0.2)
            elif self._draw.random() < 0.4:
                self._burst = 1.0
        self._slow = self._burst * (1 + self._draw.exponential(0.01))
        return super().prepare(point)

    def _timings(self, point, n):
        raised = sum(point.dim["K"] >= place for place in PLACES) % 2
        level = 100.0 * (1 + self._jump * raised) * self._slow
        if n == 1:  # warming up
            return [level]
        return (level * (1 + np.abs(self._draw.normal(0, 0.02, n)))).tolist()


def played(suite: Suite, device: RecordedDevice):
    """The curve that a sweep of the suite maps, without the folder: many sweeps a second."""
    axes = suite.points("recorded")
    seen, taken, samples = {}, defaultdict(list), []
    for batch in rounds(suite, "recorded", seen, taken):
        for visit in batch:
            sample = measure_visit(device, visit, axes[visit.point], suite.timing)
            samples.append(sample)
            if not visit.number and not visit.duplicate:
                seen[visit.point] = Seen.of(sample)
            at = (sample.visit, sample.duplicate, median(sample.timings_us))
            taken[visit.point].append(at)
    return build_map(samples, device.environment, name="t").curves[0]


def timings_that_ship() -> dict[str, Timing]:
    """Of suites that ship and of one that says nothing, each way of timing once."""
    found = {"none said": Timing()}
    for name in shipped_suites():
        timing = load_suite(name).timing.model_copy(update={"budget_s": None, "warm_up": 0})
        if timing not in found.values():
            found[name] = timing
    return found


SHIPPED = timings_that_ship()


def test_each_way_of_timing_that_ships_is_judged():
    assert {"none said", "cpu", "full", "quick", "paper"} <= SHIPPED.keys()
    assert all(timing.edge_visits for timing in SHIPPED.values())


@pytest.mark.parametrize("bursts", [False, True], ids=["calm", "bursts"])
@pytest.mark.parametrize("name", SHIPPED)
def test_no_cliffs_where_there_are_none_and_planted_ones_are_found(name, bursts):
    """5120 pairs of neighbours without a cliff, 160 cliffs of 1.5 times the map's floor (with
    200 timings a visit: 1024 and 32)."""
    asked = suite().model_copy(update={"timing": SHIPPED[name]})
    seeds = SEEDS if SHIPPED[name].count is None else SEEDS // 5
    false = found = 0
    for seed in range(seeds):
        flat = played(asked, Noisy(seed, bursts=bursts))
        false += len(flat.cliffs)
        steps = played(asked, Noisy(seed, 1.5 * flat.floor, bursts))
        assert steps.floor == pytest.approx(flat.floor, rel=0.25)
        found += len({cliff.after for cliff in steps.cliffs} & set(PLACES))
    assert false <= 0.01 * seeds * (len(DIMS) - 1)
    assert found >= 0.99 * seeds * len(PLACES)


def test_what_is_played_is_what_a_sweep_measures(tmp_path):
    run_sweep(suite(), Noisy(3, jump=0.05), tmp_path / "run")
    assert build_map_of(tmp_path / "run").curves[0] == played(suite(), Noisy(3, jump=0.05))


def test_only_suspected_edges_are_visited_more(tmp_path):
    run_sweep(suite(), Noisy(1, jump=1.0), tmp_path / "run")
    rounds_of = defaultdict(set)
    for sample in read_samples(tmp_path / "run"):
        if sample.visit >= 2:
            rounds_of[sample.visit].add(sample.point.dim["K"])
    assert 0 < len(rounds_of[2]) < len(DIMS) / 2
    assert set(rounds_of) <= set(range(2, 8))
    assert len(rounds_of[4]) < len(rounds_of[2]) / 2, "what is settled is visited no more"


DOUBLING = {1: "a", 2: "b", 3: "c", 4: "d"}
TAKEN = {
    "a": [(0, False, 100.0), (1, False, 100.0), (0, True, 102.0), (1, True, 102.0)],
    "b": [(0, False, 101.0), (1, False, 101.0)],
    "c": [(0, False, 200.0), (1, False, 200.0)],
    "d": [(0, False, 201.0), (1, False, 201.0)],
}
"""A floor of 2 %, and twice the time from the third dim on."""


def test_a_doubled_time_needs_no_more_visits():
    assert suspected([DOUBLING], TAKEN, 2) == set()


def test_a_doubled_time_that_its_visits_disagree_on_needs_more():
    wild = {"c": [(0, False, 200.0), (1, False, 260.0)]}
    assert suspected([DOUBLING], TAKEN | wild, 2) == {"b", "c"}


@pytest.mark.parametrize("before_the_end", [1, 5, 40, 200])
def test_a_resumed_sweep_suspects_the_same_edges(tmp_path, before_the_end):
    run_sweep(suite(), Noisy(1), tmp_path / "whole")
    wanted = [(s.point, s.visit) for s in read_samples(tmp_path / "whole")]

    def stop(done, total, point):
        if done == len(wanted) - before_the_end:
            raise KeyboardInterrupt

    device = Noisy(1)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(suite(), device, tmp_path / "cut", progress=stop)
    run_sweep(suite(), device, tmp_path / "cut", resume=True)
    assert [(s.point, s.visit) for s in read_samples(tmp_path / "cut")] == wanted


def test_a_budget_leaves_a_valid_folder_that_resumes(tmp_path):
    clock = suite(edge_visits=0)

    first = run_sweep(clock, Noisy(1), tmp_path / "run", budget_s=1e-6)
    assert (first.visits, first.points) == (0, 0) and first.left > 0
    rest = run_sweep(clock, Noisy(1), tmp_path / "run", resume=True)
    assert rest.left == 0 and rest.visits == first.left == len(read_samples(tmp_path / "run"))


def test_keys_added_later_do_not_change_the_hash_of_older_suites():
    plain = suite(edge_visits=0)
    assert not {"edge_visits", "budget_s"} & plain.plain()["timing"].keys()
    assert "strategy" not in plain.plain()["sweep"][0]
    assert len({plain.hash, suite().hash, suite(edge_visits=0, budget_s=9).hash}) == 3
