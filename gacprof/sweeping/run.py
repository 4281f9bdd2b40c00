"""One sweep of one device from beginning to end, into a folder."""

from __future__ import annotations

from pathlib import Path

from gacprof.core import Progress
from gacprof.devices.device import Device
from gacprof.sweeping.engine import Engine, RunSummary
from gacprof.sweeping.resuming import header_of, opened
from gacprof.sweeping.store import RunFolder, read_blocks, read_notes
from gacprof.sweeping.suite import Suite


def run_sweep(
    suite: Suite,
    device: Device,
    folder: str | Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    budget_s: float | None = None,
) -> RunSummary:
    """Measure every curve of ``suite`` on ``device``, keeping blocks in ``folder``.

    A folder that holds anything but a sweep is refused. One that holds a sweep is refused unless
    ``resume`` is true, and then only continued with the same suite on the same device, stack and
    threads. ``KeyboardInterrupt`` passes through after the blocks are safe. ``budget_s`` ends the
    sweep after so many seconds (by default the suite's own); a resume continues what is undecided
    then. ``progress`` is called before each block with the blocks (with a budget the
    seconds) so far, and those likely in all.

    Raises :class:`SuiteError` for an unusable suite, :class:`MeasurementError` for an
    unusable folder. A point that fails is recorded with its reason and the sweep goes on.
    """
    curves = suite.curves(device.environment.kind)
    store = RunFolder(Path(folder))
    header = header_of(suite, device.environment, device.timer)
    with opened(store, header, resume):
        engine = Engine(
            suite.timing, device, curves, store,
            blocks=read_blocks(store.path), notes=read_notes(store.path),
            progress=progress, budget_s=budget_s or suite.timing.budget_s,
        )  # fmt: skip
        for _ in engine.steps():
            pass
        store.fold()
    return engine.summary(store.path)
