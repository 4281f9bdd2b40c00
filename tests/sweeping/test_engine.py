"""The engine on devices without hardware: planted steps, noise, failures, budgets, resuming."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from recorded_device import RECORDED, RecordedDevice

from gacprof.cliffmap.build import build_map
from gacprof.cliffmap.run_folder import RunFolder, RunHeader, RunWriter
from gacprof.core.points import Axis, Environment, Point
from gacprof.sweeping import engine
from gacprof.sweeping.engine import MAX_BLOCKS, MIN_BLOCKS, PROCESSES, measure

SIZES = tuple(range(96, 129))
AXES = tuple(
    Axis("linear", dim, SIZES, {"M": 4, other: 64}, "float16", {"bias": False})
    for dim, other in (("N", "K"), ("K", "N"))
)


def planted(point: Point) -> float:
    size = point.dims["N"] if point.dims["K"] == 64 else point.dims["K"]
    return 100.0 if size % 8 == 0 else 120.0


def noisy(latency: Callable[[Point], float], spread: float) -> Callable[[Point], float]:
    draw = random.Random(0)
    return lambda point: latency(point) * (1 + spread * abs(draw.gauss(0, 1)))


def begun(path: Path, environment: Environment = RECORDED) -> RunWriter:
    return RunWriter.create(path / "run", RunHeader("test", environment, AXES))


def test_a_sweep_ends_when_all_is_decided(tmp_path: Path) -> None:
    run = begun(tmp_path)
    measure(run, lambda: RecordedDevice(noisy(planted, 0.02)))
    for axis in AXES:
        assert MIN_BLOCKS <= len(run.blocks(axis)) < MAX_BLOCKS
        assert {block.process for block in run.blocks(axis)} == set(range(PROCESSES))
    for curve in build_map(run.path).curves:
        assert curve.with_verdict("safe") == [96, 104, 112, 120, 128]
        assert curve.multiple == 8


def test_a_block_calls_every_size_once_and_replicates_twice(tmp_path: Path) -> None:
    run = begun(tmp_path)
    measure(run, lambda: RecordedDevice(planted))
    orders = [block.order for axis in AXES for block in run.blocks(axis)]
    for order in orders[:3]:
        assert set(order) == set(SIZES)
        twice = [size for size in SIZES if order.count(size) == 2]
        assert len(twice) == len(order) - len(SIZES) >= 4
    assert len(set(orders)) == len(orders), "orders are drawn anew"


class Clock:
    """A clock that only moves by what is done on its device: preparing takes 40 s, a call 1 s."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def device(self) -> RecordedDevice:
        device = RecordedDevice(self.undecided)
        self.now += 40
        return device

    def undecided(self, point: Point) -> float:
        self.now += 1
        return random.Random(self.now).uniform(90, 120)


@pytest.mark.parametrize(
    ("budget_s", "processes"), [(30, 1), (60, 1), (150, 2), (170, 2), (1000, 3)]
)
def test_a_budget_counts_preparing_and_has_two_processes_where_they_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget_s: float, processes: int
) -> None:
    clock = Clock()
    monkeypatch.setattr(engine, "time", clock)
    run = begun(tmp_path)
    measure(run, clock.device, budget_s=budget_s)
    assert {block.process for block in run.blocks(AXES[0])} == set(range(processes))
    turn_s = sum(len(run.blocks(axis)[0].order) for axis in AXES)
    assert clock.now <= max(40, budget_s) + processes * turn_s


def test_axes_take_turns(tmp_path: Path) -> None:
    device = RecordedDevice(planted)
    measure(begun(tmp_path), lambda: device)
    swept = ["N" if len({p.dims["N"] for p in block}) > 1 else "K" for block in device.blocks]
    pairs = list(zip(swept[::2], swept[1::2], strict=True))
    assert all(set(pair) == {"N", "K"} for pair in pairs)


def test_what_cannot_be_decided_ends_at_the_most_blocks(tmp_path: Path) -> None:
    run = begun(tmp_path)
    at_the_tolerance = noisy(lambda p: 102.0 if planted(p) > 100 else 100.0, 0.3)
    measure(run, lambda: RecordedDevice(at_the_tolerance), budget_s=1.0)
    assert all(len(run.blocks(axis)) <= MAX_BLOCKS for axis in AXES)
    for curve in build_map(run.path).curves:
        assert not [s for s in curve.with_verdict("safe") if s % 8]


def test_a_curve_at_the_tolerance_is_measured_until_it_is_known_finely(tmp_path: Path) -> None:
    blocks = {}
    for spread in (0.002, 0.01):
        run = begun(tmp_path / str(spread))
        at_the_tolerance = noisy(lambda p: 102.0 if planted(p) > 100 else 100.0, spread)
        measure(run, lambda device=at_the_tolerance: RecordedDevice(device))  # type: ignore[misc]
        blocks[spread] = min(len(run.blocks(axis)) for axis in AXES)
        for curve in build_map(run.path).curves:
            half_widths = [(v.penalty.high - v.penalty.low) / 2 for v in curve.sizes if v.penalty]
            assert median(half_widths) < 0.005
    assert blocks[0.002] < 2 * MIN_BLOCKS < blocks[0.01]


def test_what_a_sweep_leaves_is_judged_once_it_has_ended(tmp_path: Path) -> None:
    def killed_in_the_third_process() -> RecordedDevice:
        if len({block.process for block in run.blocks(AXES[0])}) == PROCESSES - 1:
            raise KeyboardInterrupt
        return RecordedDevice(noisy(planted, 0.02))

    run = begun(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        measure(run, killed_in_the_third_process)
    for curve in build_map(RunFolder(run.path)).curves:
        assert curve.with_verdict("undecided") == list(SIZES)
    run.close()
    measure(RunWriter(run.path), lambda: RecordedDevice(noisy(planted, 0.02)))
    for curve in build_map(run.path).curves:
        assert curve.with_verdict("safe") == [96, 104, 112, 120, 128]


def test_failed_points_are_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    run = begun(tmp_path)
    refused = {AXES[0].point(100).key: "out of memory"}
    measure(run, lambda: RecordedDevice(planted, refused=refused))
    assert RunFolder(run.path).failures(AXES[0]) == {100: "out of memory"}
    assert RunFolder(run.path).failures(AXES[1]) == {}
    verdict = build_map(run.path).curves[0].sizes[SIZES.index(100)]
    assert (verdict.verdict, verdict.reason) == ("unknown", "out of memory")


def test_a_resumed_sweep_keeps_its_blocks_and_adds_processes(tmp_path: Path) -> None:
    run = begun(tmp_path)
    measure(run, lambda: RecordedDevice(noisy(planted, 0.5)), budget_s=0.001)
    before = {axis: run.blocks(axis) for axis in AXES}
    run.close()
    again = RunWriter(run.path)
    measure(again, lambda: RecordedDevice(noisy(planted, 0.02)))
    for axis in AXES:
        blocks = again.blocks(axis)
        assert blocks[: len(before[axis])] == before[axis]
        assert max(b.process for b in blocks) > max(b.process for b in before[axis])


def test_a_dying_device_loses_no_block(tmp_path: Path) -> None:
    calls = 0

    def dying(point: Point) -> float:
        nonlocal calls
        calls += 1
        if calls > 500:
            raise KeyboardInterrupt
        return planted(point)

    run = begun(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        measure(run, lambda: RecordedDevice(dying))
    assert sum(len(RunFolder(run.path).blocks(axis)) for axis in AXES) > 5


def test_a_virtual_gpu_leaves_kernels_and_no_blocks(tmp_path: Path) -> None:
    environment = Environment("virtual", "H100", "sm90")
    run = begun(tmp_path, environment)
    device = RecordedDevice(planted, environment, kernel_names=lambda _: ("some_kernel",))
    measure(run, lambda: device)
    assert not device.blocks
    cliff_map = build_map(run.path)
    reasons = {v.reason for curve in cliff_map.curves for v in curve.sizes}
    assert len(reasons) == 1 and "some_kernel" in reasons.pop()
    assert {v.verdict for curve in cliff_map.curves for v in curve.sizes} == {"unknown"}


def test_long_calls_make_short_blocks_that_hang_together(tmp_path: Path) -> None:
    run = begun(tmp_path)
    measure(run, lambda: RecordedDevice(lambda p: 100 * planted(p)))
    sizes = [len(block.order) for block in run.blocks(AXES[0])]
    assert sizes[0] > sizes[-1] >= 3
    assert build_map(run.path).curves[0].with_verdict("safe") == [96, 104, 112, 120, 128]
