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
from gacprof.measure.device import Device
from gacprof.measure.stats import median
from gacprof.points import Environment, Point, Sample
from gacprof.sweeping.order import Visit
from gacprof.sweeping.refine import Seen
from gacprof.sweeping.resuming import check_resumable
from gacprof.sweeping.rounds import rounds
from gacprof.sweeping.store import (
    JOURNAL,
    PARQUET,
    RUN,
    RunFolder,
    read_header,
    read_samples,
)
from gacprof.sweeping.suite import Suite, parse_suite
from gacprof.sweeping.suspects import Taken
from gacprof.sweeping.visiting import measure_visit

Progress = Callable[[int, int, Point], None]
"""Called before each visit with (visits done, visits in all, the point about to be measured)."""


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

    A folder that holds anything but a sweep is refused. One that holds a sweep already is
    refused unless ``resume`` is true, and then only if it holds the same suite on the same
    device and stack; visits already taken are not taken
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


def environment_of(folder: str | Path) -> Environment:
    """The device and stack that a run folder was measured on."""
    return Environment.from_dict(read_header(Path(folder))["environment"])


def suite_of(folder: str | Path) -> Suite:
    """The suite that a run folder was measured with."""
    stored = read_header(Path(folder))["suite"]
    timing = {"edge_visits": 0} | stored.get("timing", {})  # left out where it is 0 (Suite.plain)
    return parse_suite({**stored, "timing": timing}, str(folder))


@contextmanager
def _opened(store: RunFolder, header: dict[str, Any], resume: bool) -> Iterator[None]:
    """Hold the folder; refuse one that holds another sweep; fold what is there on the way out."""
    if store.path.exists() and not store.path.is_dir():
        raise MeasurementError(f"{store.path} is a file; --out names a folder")
    try:
        _check_free(store)
        store.lock()
    except OSError as error:
        raise MeasurementError(f"cannot write to {store.path}: {error.strerror}") from None
    try:
        if store.started:
            check_resumable(store.path, header, resume)
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


def _check_free(store: RunFolder) -> None:
    """Before anything is written. Samples without their header may be of any suite and device:
    going on with them would mix what does not belong together."""
    held = store.others() if store.path.is_dir() and not store.started else []
    if {JOURNAL, PARQUET} & set(held):
        raise MeasurementError(
            f"{store.path} holds samples without their {RUN}, which says what they are of: "
            "restore it, or use another --out"
        )
    if held:
        raise MeasurementError(f"{store.path} holds no sweep, but {held[0]}: choose another --out")
