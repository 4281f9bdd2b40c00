"""One visit to one point: prepare, warm, time until the stopping rule is content."""

from __future__ import annotations

import time
from typing import Any

from gacprof.errors import MeasurementError
from gacprof.measure.device import Device, Work
from gacprof.measure.stopping import StoppingRule
from gacprof.points import Sample
from gacprof.sweeping.order import Visit
from gacprof.sweeping.suite import Timing

THROTTLED_RETRIES = 2


def measure_visit(device: Device, visit: Visit, axes: tuple[str, ...], timing: Timing) -> Sample:
    """Prepare, warm, time until the stopping rule is content; a failure becomes the sample."""
    try:
        work = device.prepare(visit.point)
        for _ in range(timing.warm_up):
            work.time(1)
        work.warm_up()
        timings, throttled = _unthrottled(work, timing.rule(visit.thorough))
        _check(timings)
        kernels = tuple(work.kernels()) if visit.number == 0 else ()
        reading = work.reading() if hasattr(work, "reading") else {}
    except MemoryError:
        return _sample(device, visit, axes, (), status="failed", reason="out of memory")
    except Exception as error:  # an operator may raise anything; the sweep goes on
        return _sample(device, visit, axes, (), status="failed", reason=_one_line(error))
    return _sample(
        device,
        visit,
        axes,
        tuple(timings),
        status="throttled" if throttled else "ok",
        reason=throttled or work.remark(),
        kernels=kernels,
        sm_clock_mhz=work.clock_mhz(),
        **reading,
    )


def _unthrottled(work: Work, rule: StoppingRule) -> tuple[list[float], str]:
    """Timings taken while the device held its clock; after some retries, as they are."""
    work.throttled()  # forget what happened before this visit
    reason = ""
    for _ in range(1 + THROTTLED_RETRIES):
        rule.start()
        timings: list[float] = []
        while not rule.finished():
            batch = work.time(rule.batch())
            timings += batch
            rule.add(batch)
        reason = work.throttled()
        if not reason:
            break
    return timings, reason


def _check(timings: list[float]) -> None:
    bad = [t for t in timings if not 0 < t < float("inf")]
    if bad:
        raise MeasurementError(f"the timer gave {bad[0]} µs, which is no duration")


def _sample(
    device: Device, visit: Visit, axes: tuple[str, ...], timings: tuple[float, ...], **rest: Any
) -> Sample:
    return Sample(
        visit.point,
        axes,
        timings,
        device.timer,
        visit.number,
        visit.duplicate,
        taken_at=time.time(),
        **rest,
    )


def _one_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0]
