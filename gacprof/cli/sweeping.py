"""How ``gacprof sweep`` goes about it: which devices, in which process, said how."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.cli.printing import print_json, progress, say
from gacprof.errors import MeasurementError

if TYPE_CHECKING:
    from gacprof.measure.device import Device
    from gacprof.sweeping import RunSummary, Suite


@dataclass(frozen=True)
class HowToSweep:
    resume: bool = False
    budget_s: float | None = None
    confirm: bool = False
    isolate: bool | None = None
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
        left = f"{summary.left} left by the budget, " if summary.left else ""
        say(
            f"{summary.points} points, {summary.visits} visits, {summary.failed} failed, "
            f"{left}{summary.seconds:.1f} s"
        )
        say(f"samples: {summary.folder}    next: gacprof map build {summary.folder}")


def _on_one(
    suite: Suite, device: str | None, out: Path | None, how: HowToSweep, stack: ExitStack
) -> RunSummary:
    from gacprof.sweeping import run_sweep

    stack.enter_context(_clocks(device, how))
    opened = stack.enter_context(_opened(device, how))
    folder = out or Path("runs") / f"{suite.name}-{_slug(opened.environment.name)}"
    _check_resume(how, folder)
    with progress(f"sweep {suite.name}") as advance, _interruptible(folder):
        summary = run_sweep(
            suite, opened, folder, resume=how.resume, progress=advance, budget_s=how.budget_s
        )
    if how.confirm:
        _confirm(folder, opened)
    return summary


def _on_all(suite: Suite, out: Path | None, how: HowToSweep, stack: ExitStack) -> list[RunSummary]:
    from gacprof.sweeping.many import local_gpus, run_on_all

    if how.confirm or how.lock_clocks_mhz:
        raise MeasurementError(
            "--confirm and --lock-clocks go with one device: name it with --device"
        )
    names = local_gpus()
    opened = {name: stack.enter_context(_opened(name, how)) for name in names}
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


@contextmanager
def _opened(device: str | None, how: HowToSweep) -> Iterator[Device]:
    """The device, in a worker process where it is a GPU or that was asked for."""
    from gacprof.measure.device import open_device
    from gacprof.sweeping.worker import IsolatedDevice, OpenNamed

    name = device or _default_name()
    isolate = name != "cpu" if how.isolate is None else how.isolate
    if not isolate:
        yield open_device(name, how.timer)
        return
    with IsolatedDevice(OpenNamed(name, how.timer), how.timeout_s) as opened:
        yield opened


@contextmanager
def _clocks(device: str | None, how: HowToSweep) -> Iterator[None]:
    if how.lock_clocks_mhz is None:
        yield
        return
    from gacprof.measure.clocks import locked
    from gacprof.measure.cuda import CudaDevice
    from gacprof.measure.device import open_device

    gpu = open_device(device or _default_name(), "cuda-events")
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


def _confirm(folder: Path, device: Device) -> None:
    from gacprof.sweeping import confirm_run

    with progress("confirm edges") as advance:
        verdicts = confirm_run(folder, device, progress=advance)
    counts = {v.verdict: sum(w.verdict == v.verdict for w in verdicts) for v in verdicts}
    told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    say(f"edges measured in turns: {told or 'there are none'}")


def dry_run_of(suite: Suite, device: str | None, as_json: bool) -> None:
    """Say what would be measured, and how long it may take: a few calls tell, where the device
    is here."""
    from gacprof.sweeping.estimate import estimate
    from gacprof.sweeping.order import visits

    kind = (device or _default_name()).partition(":")[0]
    kind = "cuda" if kind == "all" else kind
    points, timing = suite.points(kind), suite.timing
    order = visits(points, timing.passes, timing.duplicates, timing.least_duplicates, timing.seed)
    adaptive = sum(s.strategy == "adaptive" for s in suite.sweep)
    opened = _if_here(device)
    name = opened.environment.name if opened else ""
    told = estimate(suite, kind, name, opened)
    data: dict[str, Any] = {
        "suite": suite.name,
        "device": kind,
        "points": len(points),
        "visits": len(order),
        "refined_sweeps": adaptive,
        "estimated_s": [round(told.low_s, 1), round(told.high_s, 1)],
        "estimated_from_calls": told.calls,
        "budget_s": timing.budget_s,
        "longest_s": round(len(order) * timing.cap_ms / 1e3, 1) if timing.count is None else None,
    }
    if as_json:
        print_json(data | {"of": [str(point) for point in points]})
        return
    most = "at most " if adaptive else ""
    say(f"suite {suite.name} on {kind}: {most}{len(points)} points, {len(order)} visits")
    basis = f"from calls at {told.calls} points" if told.calls else "a guess, nothing measured"
    say(f"between {_duration(told.low_s)} and {_duration(told.high_s)} ({basis})")
    if kind == "cpu" and os.getloadavg()[0] > 0.5:
        say("other work runs here: calls that it preempts are taken again, so it may be longer")
    if timing.budget_s:
        say(f"its budget ends it after {timing.budget_s:g} s; --resume takes what is left")


def _if_here(device: str | None) -> Device | None:
    """The device, opened; None where it is not here, as in planning for another machine."""
    from gacprof.measure.device import open_device

    try:
        return open_device(None if device == "all" else device)
    except MeasurementError:
        return None


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _default_name() -> str:
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
