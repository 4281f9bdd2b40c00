"""All local GPUs at once: one worker process and one run folder each."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Point
from gacprof.devices.device import Device
from gacprof.sweeping.run import Progress, RunSummary, run_sweep
from gacprof.sweeping.suite import Suite


def local_gpus() -> list[str]:
    """``cuda:0`` … as torch sees them. Raises :class:`MeasurementError` where there are none."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise MeasurementError(
            "--device all sweeps every CUDA GPU of this machine, and there is none: "
            "use --device cpu, or see 'gacprof doctor'"
        )
    return [f"cuda:{index}" for index in range(count)]


def run_on_all(
    suite: Suite,
    devices: Mapping[str, Device],
    folder: str | Path,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, RunSummary]:
    """The suite on each device at once, each into the sub-folder of its name.

    ``cuda:1`` goes to ``cuda1``. Devices are independent: each keeps its own samples and can
    be resumed by itself. An interrupt or an error of one stops all, each after the block that
    it is at, and is raised then. ``options`` are those of :func:`run_sweep`.
    """
    stop = threading.Event()
    counts: dict[str, tuple[float, float]] = {}

    def reporting(name: str) -> Progress:
        def report(done: float, total: float, point: Point) -> None:
            if stop.is_set():
                raise KeyboardInterrupt
            counts[name] = done, total
            if progress:
                seen = list(counts.values())
                progress(sum(d for d, _ in seen), sum(t for _, t in seen), point)

        return report

    with ThreadPoolExecutor(len(devices)) as pool:
        running = {
            name: pool.submit(
                run_sweep,
                suite,
                device,
                Path(folder) / name.replace(":", ""),
                progress=reporting(name),
                **options,
            )
            for name, device in devices.items()
        }
        try:
            wait(running.values(), return_when=FIRST_EXCEPTION)
            stopped = [f.exception() for f in running.values() if f.done() and f.exception()]
            if stopped:
                raise stopped[0] or AssertionError
            return {name: future.result() for name, future in running.items()}
        except BaseException:
            stop.set()
            raise
