"""How blocks are timed, on a virtual GPU with a simulated clock: it falls while the GPU idles,
events cost something and step, and the true length of all work is known."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import mean
from typing import Any

import pytest
import torch

from gacprof.core.points import Axis, Block
from gacprof.devices import cuda
from gacprof.operators import canonical
from gacprof.sweeping.engine import BLOCK_US, CurveSchedule

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not os.environ.get("GACPROF_VIRTUAL"), reason="needs a virtual GPU"),
]
FULL_MHZ, IDLE_MHZ = 1980.0, 345.0
CLIMB_US = 5_000.0
"""Work after which the clock is up."""
CONSTANT_US = 2.0


class Machine:
    """A GPU's time in microseconds; ``tick_us`` is that of its events."""

    def __init__(self, tick_us: float, latency_us: Callable[[int], float]) -> None:
        self.tick_us, self.latency_us = tick_us, latency_us
        self.now_us = self.worked_us = 0.0

    def monotonic(self) -> float:
        return self.now_us / 1e6

    def perf_counter(self) -> float:
        return self.monotonic()

    def idle(self, *_: object) -> None:
        self.now_us += 1_000.0
        self.worked_us = 0.0

    @property
    def clock_mhz(self) -> float:
        return FULL_MHZ if self.worked_us >= CLIMB_US else IDLE_MHZ

    def work(self, us: float) -> None:
        self.now_us += us
        self.worked_us += us

    def call(self, call: Any) -> None:
        """Work of a call: a spin of cycles, or by the length of its operands' rows."""
        if call.func is torch.cuda._sleep:
            self.work(call.args[0] / self.clock_mhz)
        else:
            self.work(self.latency_us(call.args[0].shape[-1]) * FULL_MHZ / self.clock_mhz)

    def event_us(self) -> float:
        return self.now_us // self.tick_us * self.tick_us


class SimulatedGraph:
    """Stands in for :class:`gacprof.devices.cuda_graph.TimedGraph` on a machine."""

    machine: Machine

    def __init__(
        self,
        calls: Sequence[Any],
        graphs: object,
        pool: object,
        *,
        before: Any = None,
        lead_in_us: float = 5.0,
        rest_us: float = 0.0,
    ) -> None:
        self._calls, self._before = calls, before
        self._lead_in_us, self._rest_us = lead_in_us, rest_us

    def launch(self) -> None:
        if isinstance(self._before, partial):
            self.machine.call(self._before)
        self.machine.work(self._lead_in_us * FULL_MHZ / self.machine.clock_mhz)
        start_us = self.machine.event_us()
        for call in self._calls:
            self.machine.call(call)
        self.machine.work(CONSTANT_US)
        self._elapsed_us = self.machine.event_us() - start_us
        self.machine.work(self._rest_us)

    def elapsed_us(self) -> float:
        return self._elapsed_us

    call_us = cuda.TimedGraph.call_us


Prepare = Callable[[Machine, Axis], tuple[cuda.CudaSession, Machine]]


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Prepare]:
    """Opens a device on a machine and prepares an axis there."""
    devices = []

    def on(machine: Machine, axis: Axis) -> tuple[cuda.CudaSession, Machine]:
        def rough_us(call: Any, enqueue_us: float) -> float:
            return machine.latency_us(call.args[0].shape[-1])

        monkeypatch.setattr(SimulatedGraph, "machine", machine, raising=False)
        monkeypatch.setattr(cuda, "TimedGraph", SimulatedGraph)
        monkeypatch.setattr(cuda, "time", machine)
        monkeypatch.setattr(cuda, "rough_us", rough_us)
        monkeypatch.setattr(torch.cuda, "synchronize", machine.idle)
        device = cuda.CudaDevice()
        device.virtual = False
        devices.append(device)
        [session] = device.prepare([[canonical(axis.point(size)) for size in axis.sizes]])
        assert not session.failures
        return session, machine

    yield on
    for device in devices:
        device.close()


def axis_of(sizes: Sequence[int]) -> Axis:
    return Axis("linear", "K", tuple(sizes), {"M": 64, "N": 64}, "float16")


def test_a_block_begins_at_the_full_clock_and_says_so(prepare: Prepare) -> None:
    session, _ = prepare(Machine(0.001, lambda k: float(k)), axis_of(range(20, 60)))
    for _ in range(3):
        block = session.time_block(range(40))
        assert block.conditions["clock_mhz"] == pytest.approx(FULL_MHZ, rel=0.0001)
        assert block.conditions["constant_us"] == pytest.approx(CONSTANT_US, abs=0.01)
        assert list(block.times_us) == pytest.approx(range(20, 60), rel=0.003)


def test_what_events_cost_is_not_a_calls(prepare: Prepare) -> None:
    """One size takes 1.2 ms, so that graphs hold one call: a tenth of 20 µs would be events."""
    session, _ = prepare(Machine(0.001, lambda k: 20.0 if k < 100 else 1200.0), axis_of((64, 128)))
    times_us = session.time_block([0, 1]).times_us
    assert times_us[1] / times_us[0] == pytest.approx(60, rel=0.002)


def test_a_block_of_a_long_axis_lasts_as_long_as_it_is_to(prepare: Prepare) -> None:
    sizes = range(1000, 2000)
    axis = axis_of(sizes)
    session, machine = prepare(Machine(0.5, lambda k: 40.0), axis)
    curve = CurveSchedule(axis)
    lengths_us = []
    for _ in range(5):
        order = curve.next_order({})
        indices = [size - sizes[0] for size in order]
        session.time_block(indices)  # captures the replicates
        began_us = machine.now_us
        timed = session.time_block(indices)
        lengths_us.append(machine.now_us - began_us)
        curve.blocks.append(Block(axis.key, 0, tuple(order), tuple(timed.times_us)))
        curve.slot_us = timed.slot_us
    assert lengths_us[0] > 3 * BLOCK_US
    assert 0.9 * BLOCK_US < lengths_us[-1] < BLOCK_US + 2 * cuda.BLOCK_WARM_UP_US


def test_a_coarse_tick_rounds_a_size_up_as_often_as_down(prepare: Prepare) -> None:
    """Each slot takes a whole number of ticks, so that without dither all round alike."""
    session, _ = prepare(Machine(1.0, lambda k: 600.5), axis_of(range(1, 40)))
    for _ in range(5):
        times_us = session.time_block(range(39)).times_us
        assert set(times_us) == {600.0, 601.0}
        assert mean(times_us) == pytest.approx(600.5, abs=0.25)
