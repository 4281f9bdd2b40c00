"""The two arrows of the chain that have no room of their own: suite → samples → map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gacprof.sweeping import RunSummary, Suite, load_suite, run_sweep

if TYPE_CHECKING:
    from gacprof.cliffmap import CliffMap
    from gacprof.sweeping.run import Progress


def sweep(
    suite: Suite | str | Path,
    *,
    device: str | None = None,
    out: str | Path,
    resume: bool = False,
    progress: Progress | None = None,
) -> RunSummary:
    """Measure a suite (by name, file or value) on a device; samples go to the folder ``out``.

    Raises :class:`SuiteError` or :class:`MeasurementError`.
    """
    from gacprof.measure.device import open_device

    chosen = suite if isinstance(suite, Suite) else load_suite(suite)
    return run_sweep(chosen, open_device(device), out, resume=resume, progress=progress)


def build_map(samples: str | Path, name: str | None = None) -> CliffMap:
    """The cliff map of a sweep's folder, its cliffs' causes named where evidence tells them.

    Evidence is the kernels recorded with the samples, and what ``gacprof evidence`` left
    beside them. Raises :class:`MeasurementError` or :class:`MapError`.
    """
    from gacprof.explaining.of_run import build_explained

    return build_explained(Path(samples), name)
