"""How ``gacprof sweep`` goes about it: which devices, in which processes, said how."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.cli.printing import print_json, progress, say
from gacprof.core.errors import MeasurementError

if TYPE_CHECKING:
    from gacprof.devices.device import Device
    from gacprof.sweeping import RunSummary, Suite


@dataclass(frozen=True)
class HowToSweep:
    resume: bool = False
    budget_s: float | None = None
    isolate: bool = True
    timeout_s: float = 60.0
    timer: str = "auto"
    lock_clocks_mhz: int | None = None


def sweep_devices(
    suite: Suite, device: str | None, out: Path | None, how: HowToSweep, as_json: bool
) -> None:
    """Sweep on the device, or on all GPUs at once, and say what came of it."""
    with ExitStack() as stack:
        if device == "all":
            summaries = _on_all(suite, out, how, stack)
        else:
            summaries = [_on_one(suite, device, out, how, stack)]
    if as_json:
        found = [summary.as_dict() for summary in summaries]
        print_json(found if device == "all" else found[0])
        return
    for summary in summaries:
        say(
            f"{summary.points} points on {summary.curves} curves, {summary.blocks} blocks, "
            f"{summary.calls} calls, {summary.failed} failed, {summary.seconds:.1f} s"
        )
        if summary.undecided:
            more = "; --resume goes on with them" if summary.unfinished else ""
            say(f"{summary.undecided} curves have undecided dims{more}")
        say(f"samples: {summary.folder}    next: gacprof map build {summary.folder}")


def _on_one(
    suite: Suite, device: str | None, out: Path | None, how: HowToSweep, stack: ExitStack
) -> RunSummary:
    from gacprof.sweeping import run_sweep

    suite.curves(_kind(device))  # refused before processes are started, as is the next
    if out is not None:
        _check_resume(how, out)
    stack.enter_context(_clocks(device, how))
    opened = stack.enter_context(_opened(suite, device, how))
    folder = out or Path("runs") / f"{suite.name}-{_slug(opened.environment.name)}"
    _check_resume(how, folder)
    with progress(f"sweep {suite.name}") as advance, _interruptible(folder):
        summary = run_sweep(
            suite, opened, folder, resume=how.resume, progress=advance, budget_s=how.budget_s
        )
    return summary


def _on_all(suite: Suite, out: Path | None, how: HowToSweep, stack: ExitStack) -> list[RunSummary]:
    from gacprof.devices.device import local_gpus
    from gacprof.sweeping.run import run_on_all

    if how.lock_clocks_mhz:
        raise MeasurementError("--lock-clocks goes with one device: name it with --device")
    names = local_gpus()
    opened = {name: stack.enter_context(_opened(suite, name, how)) for name in names}
    folder = out or Path("runs") / f"{suite.name}-all"
    _check_resume(how, folder, *(folder / name.replace(":", "") for name in names))
    with progress(f"sweep {suite.name} on {len(names)} GPUs") as advance, _interruptible(folder):
        summaries = run_on_all(
            suite, opened, folder, progress=advance, resume=how.resume, budget_s=how.budget_s
        )
    return list(summaries.values())


def _check_resume(how: HowToSweep, folder: Path, *others: Path) -> None:
    """Of several GPUs one may have been stopped before it began; with none begun, the name of
    the folder is wrong."""
    begun = (f for f in others or (folder,) if f.is_dir() and any(f.iterdir()))
    if how.resume and not any(begun):
        raise MeasurementError(
            f"nothing to resume in {folder}: name the sweep's folder with --out, or leave out "
            "--resume to begin one"
        )


def _opened(suite: Suite, device: str | None, how: HowToSweep) -> AbstractContextManager[Device]:
    from gacprof.devices.worker import sweeper

    return sweeper(
        device,
        timer=how.timer,
        isolate=how.isolate,
        timeout_s=how.timeout_s,
        processes=suite.timing.processes,
    )


@contextmanager
def _clocks(device: str | None, how: HowToSweep) -> Iterator[None]:
    if how.lock_clocks_mhz is None:
        yield
        return
    from gacprof.devices.cuda import CudaDevice
    from gacprof.devices.device import open_device
    from gacprof.devices.nvml import locked

    gpu = open_device(device, "cuda-events")
    if not isinstance(gpu, CudaDevice):
        raise MeasurementError("--lock-clocks is for GPUs; a CPU's clock is the system's to set")
    telemetry = gpu.telemetry
    if telemetry.handle is None:
        raise MeasurementError(f"clocks cannot be locked without NVML: {telemetry.why_not}")
    with locked(telemetry.nvml, telemetry.handle, how.lock_clocks_mhz, gpu.burn_in):
        yield


@contextmanager
def _interruptible(folder: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted; what was measured is in {folder}, go on with --resume")
        raise


def dry_run_of(suite: Suite, device: str | None, budget_s: float | None, as_json: bool) -> None:
    """Say what would be measured, and how long it may take: a few blocks tell, where the device
    is here."""
    from gacprof.sweeping.estimate import estimate

    kind = _kind(device)
    points, curves, timing = suite.points(kind), suite.curves(kind), suite.timing
    budget_s = budget_s or timing.budget_s
    with ExitStack() as stack:
        opened = _if_here(device)
        if opened:
            stack.callback(opened.close)
        name = opened.environment.name if opened else ""
        told = estimate(suite, kind, name, opened, budget_s)
    data: dict[str, Any] = {
        "suite": suite.name,
        "device": kind,
        "curves": len(curves),
        "points": len(points),
        "refined_curves": sum(bool(curve.refined) for curve in curves),
        "processes": timing.processes,
        "estimated_s": round(told.seconds, 1),
        "estimated_from_calls": told.calls,
        "budget_s": budget_s,
        "longest_s": round(told.longest_s, 1),
    }
    if as_json:
        print_json(data | {"of": [str(point) for point in points]})
        return
    most = "at most " if data["refined_curves"] else ""
    say(f"suite {suite.name} on {kind}: {most}{len(points)} points on {len(curves)} curves")
    basis = f"from {told.calls} calls" if told.calls else "a guess, nothing measured"
    say(f"about {_duration(told.seconds)} ({basis}), at most {_duration(told.longest_s)}")
    if kind == "cpu" and os.getloadavg()[0] > 0.5:
        say("other work runs here: calls that it disturbs are made again, so it may be longer")
    if budget_s:
        say(f"the budget of {budget_s:g} s ends it; --resume goes on with what is undecided")


def _kind(device: str | None) -> str:
    from gacprof.devices.device import device_name

    return "cuda" if device == "all" else device_name(device).partition(":")[0]


def _if_here(device: str | None) -> Device | None:
    """The device, opened; None where it is not here, as in planning for another machine."""
    from gacprof.devices.device import open_device

    try:
        return open_device(None if device == "all" else device)
    except MeasurementError:
        return None


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
