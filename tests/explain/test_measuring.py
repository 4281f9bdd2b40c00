"""The disputes are settled through the sweep engine, on a device made of published numbers."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from gacprof import operators
from gacprof.cliffmap.build import noise_of_blocks
from gacprof.core.errors import MeasurementError
from gacprof.core.points import Environment, Point
from gacprof.devices.recorded import RecordedDevice
from gacprof.explain.disputes import (
    DISPUTES,
    check,
    points_of,
    settle_on,
    suite_of,
)
from gacprof.sweeping import read_blocks, read_samples

A100 = Environment("cuda", "an A100", "sm80", {}, {"torch": "2.9.1", "cudnn": "91002"})


def latency_us(point: Point) -> float:
    """As A's A100 figures have it; where they do not reach, without any cliff."""
    if point.operator == "attention":
        known = {64: 740.0, 96: 1110.0, 104: 1540.0, 107: 2140.0, 112: 1530.0, 120: 1530.0}
        slow = 10.0 if "math" in (point.flag["backend"],) or point.flag["mask"] == "float" else 1.0
        return known.get(point.dim["head_dim"], 1470.0) * slow
    if point.operator == "row_sum":
        return 10.0 if point.dim["K"] == 4096 else 22.0
    if point.dim["M"] == 1729:
        return 20.34
    if point.dim["M"] == 1728:
        return 13.98
    return 13.0 if point.dim["N"] <= 1664 else 18.0


def device(answer=latency_us) -> RecordedDevice:  # type: ignore[no-untyped-def]
    return RecordedDevice(answer, A100)


def test_every_point_of_every_dispute_goes_through_a_suite_unchanged() -> None:
    points = points_of(check(()))
    assert set(suite_of(points).points("cuda")) == set(points)
    assert {p.operator for p in points} == {"attention", "linear", "row_sum"}


def test_the_published_a100_settles_what_it_can(tmp_path: Path) -> None:
    done = settle_on(device(), tmp_path / "run")
    verdicts = {verdict.number: verdict for verdict in done.verdicts}
    assert len(verdicts) == len(DISPUTES)
    assert verdicts[1].finding.endswith("flash (B)") and verdicts[1].basis == "measured"
    assert "Triton's loads, not sectors (B)" in verdicts[2].finding
    assert verdicts[4].finding == "the table, 0.74 ms, is right"
    assert "+45 %" in verdicts[5].finding and "plotted" in verdicts[5].finding
    assert "does not make a dim safe" in verdicts[6].finding
    assert verdicts[7].finding.startswith("128 is the fastest")
    assert verdicts[8].basis == "static"
    assert {sample.point for sample in read_samples(tmp_path / "run")} == set(points_of(check(())))
    assert any(call.replicate for block in read_blocks(tmp_path / "run") for call in block.calls)


def test_what_is_measured_is_not_measured_again(tmp_path: Path) -> None:
    settle_on(device(), tmp_path / "run", [7])

    def never(point: Point) -> float:
        raise AssertionError(f"{point} was measured again")

    again = settle_on(device(never), tmp_path / "run", [7])
    assert [verdict.status for verdict in again.verdicts] == ["settled"]


def test_a_device_that_fails_a_point_says_why_and_settles_the_rest(tmp_path: Path) -> None:
    def fails(point: Point) -> float:
        if point.operator == "row_sum" or point.dim.get("head_dim") == 112:
            raise MeasurementError("out of memory")
        return latency_us(point)

    done = settle_on(device(fails), tmp_path / "run", [2, 7, 5])
    verdicts = {verdict.number: verdict for verdict in done.verdicts}
    assert verdicts[7].status == "undecided" and "out of memory" in verdicts[7].evidence[-1]
    assert verdicts[2].basis in ("static", "")  # as settled without a GPU
    assert verdicts[5].status == "settled"


def test_a_dispute_that_there_is_not_is_refused() -> None:
    with pytest.raises(MeasurementError, match="no dispute 12: they go from 1 to 9"):
        check([1, 12])


def test_the_floor_is_what_hidden_replicates_differ_by(tmp_path: Path) -> None:
    assert settle_on(device(), tmp_path / "same", [7]).floor == 0
    draw = Random(1)

    def noisy(point: Point) -> float:
        return latency_us(point) * draw.lognormvariate(0, 0.05)

    done = settle_on(device(noisy), tmp_path / "noisy", [7])
    assert done.floor == noise_of_blocks(read_blocks(tmp_path / "noisy")).floor
    assert 0.001 < done.floor < 0.1

    def never(point: Point) -> float:
        raise MeasurementError("out of memory")

    assert settle_on(device(never), tmp_path / "none", [7]).floor == 0.05  # assumed


def test_the_experiment_on_sectors_withholds_tritons_knowledge() -> None:
    points = points_of([2])
    assert {p.flag["specialise"] for p in points} == {True, False}
    assert all(operators.get("row_sum").problem(p) is None for p in points)
