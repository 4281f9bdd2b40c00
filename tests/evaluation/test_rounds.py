"""The measuring loop on recorded runners: interleaving, limits."""

import gc

import pytest

torch = pytest.importorskip("torch")

from gacprof.evaluation.summary import FEWEST_ROUNDS, WARM_UP_ROUNDS, Rounds  # noqa: E402
from gacprof.evaluation.workloads import BenchWorkload, CallTime, Clock, Runner  # noqa: E402

PREFILL, DECODE = BenchWorkload("prefill", 8, 1), BenchWorkload("decode", 8, 1, calls=3)
CLOCK = Clock(torch.device("cpu"))


class Recorded(Runner):
    """Writes its name into ``log``; ``waited`` tells how long each call waited (µs)."""

    def __init__(self, name, log, waited=None):
        self.name, self.log, self.waited = name, log, waited or []

    def call(self):
        """Never: it tells times that are written down."""

    def time(self, clock):
        self.log.append(self.name)
        return CallTime(float(len(self.log)), self.waited.pop(0) if self.waited else 0.0)


def measured(most, decided=lambda: False, **options):
    log = []
    runners = [[Recorded(f"{kind}{m}", log) for m in range(3)] for kind in "pd"]
    rounds = Rounds([PREFILL, DECODE], runners, CLOCK, most, **options)
    rounds.run(decided)
    return rounds, log


def blocks(log):
    return [log[i : i + 3] for i in range(0, len(log), 3)]


def test_every_block_calls_every_model_once():
    _, log = measured(12)
    assert all(len(set(block)) == 3 for block in blocks(log))
    assert all(len({name[0] for name in block}) == 1 for block in blocks(log))


def test_orders_of_models_and_of_workloads_are_drawn_anew():
    _, log = measured(24)
    timed = blocks(log)[2 * WARM_UP_ROUNDS :]
    assert len({tuple(block) for block in timed if block[0][0] == "d"}) == 6
    assert {timed[i][0][0] + timed[i + 3][0][0] for i in range(0, len(timed), 4)} == {"pd", "dp"}


def test_it_ends_at_the_look_where_all_is_decided():
    asked = []
    rounds, _ = measured(96, lambda: asked.append(1) or len(asked) == 2)
    assert rounds.count == 24 and rounds.early


def test_a_time_cap_leaves_enough_rounds_for_a_spread():
    rounds, _ = measured(50, time_cap_s=0.0)
    assert rounds.count == FEWEST_ROUNDS and not rounds.early


def test_garbage_is_not_collected_meanwhile():
    seen = []
    assert gc.isenabled()
    measured(12, time_cap_s=0.0, progress=lambda *_: seen.append(gc.isenabled()))
    assert not any(seen[:-1]) and gc.isenabled()
