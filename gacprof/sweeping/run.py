"""One sweep from beginning to end: visit every point, keep every timing, lose nothing."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gacprof.errors import MeasurementError
from gacprof.measure.device import Device, Work
from gacprof.measure.stats import median
from gacprof.measure.stopping import StoppingRule
from gacprof.points import Environment, Point, Sample
from gacprof.sweeping.order import Visit
from gacprof.sweeping.refine import Seen
from gacprof.sweeping.rounds import rounds
from gacprof.sweeping.store import RunFolder, read_header, read_samples
from gacprof.sweeping.suite import Suite, Timing, parse_suite
from gacprof.sweeping.suspects import Taken

Progress = Callable[[int, int, Point], None]
"""Called before each visit with (visits done, visits in all, the point about to be measured)."""

THROTTLED_RETRIES = 2


@dataclass(frozen=True)
class RunSummary:
    """What a sweep left behind. ``seconds`` counts this call only, not what it resumed."""

    folder: Path
    points: int
    visits: int
    failed: int
    seconds: float
    left: int = 0
    """Visits not taken because the time budget was spent; ``--resume`` takes them."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "points": self.points,
            "visits": self.visits,
            "failed": self.failed,
            "seconds": round(self.seconds, 3),
            "left": self.left,
        }


def run_sweep(
    suite: Suite,
    device: Device,
    folder: str | Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    budget_s: float | None = None,
) -> RunSummary:
    """Measure every point of ``suite`` on ``device``, keeping samples in ``folder``.

    A folder that holds a sweep already is refused unless ``resume`` is true, and then only if
    it holds the same suite on the same device and stack; visits already taken are not taken
    again. ``KeyboardInterrupt`` passes through after the samples are safe. ``budget_s`` ends
    the sweep after so many seconds (by default the suite's own), leaving the rest to a resume.

    A device that has a ``measure_visit`` of its own (:class:`.worker.IsolatedDevice`) is
    asked for whole visits; any other is prepared and timed here.

    Raises :class:`SuiteError` for an unusable suite, :class:`MeasurementError` for an
    unusable folder. A point that fails is recorded with its reason and the sweep goes on.
    """
    axes = suite.points(device.environment.kind)
    store = RunFolder(Path(folder))
    header = {
        "suite": suite.plain(),
        "suite_hash": suite.hash,
        "environment": device.environment.as_dict(),
        "timer": device.timer,
    }
    with _opened(store, header, resume):
        tally = _Sweep(suite, device, axes, store, progress, budget_s or suite.timing.budget_s)
        tally.run()
        store.fold()
    return tally.summary()


class _Sweep:
    """The visits of one call of :func:`run_sweep`, and the count of them."""

    def __init__(
        self,
        suite: Suite,
        device: Device,
        axes: dict[Point, tuple[str, ...]],
        store: RunFolder,
        progress: Progress | None,
        budget_s: float | None,
    ) -> None:
        self._suite, self._device, self._axes, self._store = suite, device, axes, store
        self._progress = progress
        self._measure = getattr(device, "measure_visit", None) or partial(measure_visit, device)
        self._started = time.monotonic()
        self._until = self._started + budget_s if budget_s else float("inf")
        taken = read_samples(store.path)
        self._done = {(s.point.id, s.visit, s.duplicate) for s in taken}
        self._failed = sum(s.status == "failed" for s in taken)
        self._seen = {s.point: Seen.of(s) for s in taken if not s.visit and not s.duplicate}
        self._taken: dict[Point, list[Taken]] = defaultdict(list)
        for sample in taken:
            self._keep(sample)
        self._known = 0
        self._left = 0

    def run(self) -> None:
        burnt_in = False
        for batch in self._rounds():
            todo = [visit for visit in batch if visit.key not in self._done]
            self._known += len(batch)
            if todo and not burnt_in:
                self._device.burn_in()
                burnt_in = True
            for number, visit in enumerate(todo):
                if time.monotonic() >= self._until:
                    self._left = len(todo) - number
                    return
                self._visit(visit)

    def _visit(self, visit: Visit) -> None:
        if self._progress:
            self._progress(len(self._done), self._known, visit.point)
        sample = self._measure(visit, self._axes[visit.point], self._suite.timing)
        self._store.append(sample)
        self._failed += sample.status == "failed"
        self._done.add(visit.key)
        if not visit.number and not visit.duplicate:
            self._seen[visit.point] = Seen.of(sample)
        self._keep(sample)

    def _rounds(self) -> Iterator[list[Visit]]:
        kind = self._device.environment.kind
        return rounds(self._suite, kind, self._seen, self._taken)

    def _keep(self, sample: Sample) -> None:
        if sample.timings_us:
            kept = sample.visit, sample.duplicate, median(sample.timings_us)
            self._taken[sample.point].append(kept)

    def summary(self) -> RunSummary:
        seconds = time.monotonic() - self._started
        points = len({point for point, _, _ in self._done})
        return RunSummary(
            self._store.path, points, len(self._done), self._failed, seconds, self._left
        )


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


def environment_of(folder: str | Path) -> Environment:
    """The device and stack that a run folder was measured on."""
    return Environment.from_dict(read_header(Path(folder))["environment"])


def suite_of(folder: str | Path) -> Suite:
    """The suite that a run folder was measured with."""
    return parse_suite(read_header(Path(folder))["suite"], str(folder))


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


@contextmanager
def _opened(store: RunFolder, header: dict[str, Any], resume: bool) -> Iterator[None]:
    """Hold the folder; refuse one that holds another sweep; fold what is there on the way out."""
    if store.path.exists() and not store.path.is_dir():
        raise MeasurementError(f"{store.path} is a file; --out names a folder")
    try:
        store.lock()
    except OSError as error:
        raise MeasurementError(f"cannot write to {store.path}: {error.strerror}") from None
    try:
        if store.started:
            _check_resumable(store.path, header, resume)
        else:
            store.write_header(header)
        try:
            yield
        except KeyboardInterrupt:
            store.fold()
            raise
    except OSError as error:
        raise MeasurementError(
            f"writing to {store.path} failed: {error.strerror or error}; "
            "what was measured is kept, mend it and use --resume"
        ) from None
    finally:
        store.close()


def _check_resumable(path: Path, header: dict[str, Any], resume: bool) -> None:
    if not resume:
        raise MeasurementError(
            f"{path} holds a sweep already: use --resume to go on with it, or another --out"
        )
    old = read_header(path)
    if old["suite_hash"] != header["suite_hash"]:
        raise MeasurementError(
            f"{path} holds another suite: {_difference(old['suite'], header['suite'])}; "
            "use another --out"
        )
    check_same_device(path, old, Environment.from_dict(header["environment"]))
    if old["timer"] != header["timer"]:
        raise MeasurementError(
            f"{path} was timed by {old['timer']}, here it would be by {header['timer']}; "
            "use another --out, or the same --timer"
        )


def check_same_device(path: Path, header: dict[str, Any], here: Environment) -> None:
    """Raises :class:`MeasurementError` where a run folder is of another device or stack."""
    for key in ("kind", "name", "arch", "stack"):
        was, now = header["environment"][key], here.as_dict()[key]
        if was != now:
            raise MeasurementError(
                f"{path} was measured elsewhere: {key} was {was}, here it is {now}; "
                "use another --out"
            )


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The first key that differs, as 'timing.passes was 2, now 3'."""
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key), new.get(key)
        if was == now:
            continue
        if isinstance(was, dict) and isinstance(now, dict):
            return f"{key}.{_difference(was, now)}"
        if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
            number = next(i for i, (a, b) in enumerate(zip(was, now, strict=True)) if a != b)
            if isinstance(was[number], dict) and isinstance(now[number], dict):
                return f"{key}[{number}].{_difference(was[number], now[number])}"
        return f"{key} was {_short(was)}, now {_short(now)}"
    return "an unnamed difference"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "…"


def _one_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0]
