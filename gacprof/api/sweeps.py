"""Sweeps: what one is of, how long it takes, and the sweep itself, here or on many devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import MeasurementError, SuiteError
from gacprof.core.files import Record
from gacprof.core.formatting import counted, notebook_progress, slug
from gacprof.core.request import verb
from gacprof.extras.fleet.request import FleetRequest
from gacprof.sweeping import (
    RunSummary,
    Suite,
    load_suite,
    run_sweep,
    suite_of,
    sweeper,
)
from gacprof.sweeping.request import EstimateRequest, Running, SweepRequest
from gacprof.sweeping.suite import parse_suite

if TYPE_CHECKING:
    import torch

    from gacprof.checkpoint import Inventory
    from gacprof.core import Progress
    from gacprof.devices.device import Device
    from gacprof.devices.forecast import Forecast
    from gacprof.extras.fleet.cluster import Cluster
    from gacprof.extras.fleet.driver import FleetRun, Watch
    from gacprof.extras.fleet.members import Member

    Model = str | Path | Inventory | torch.nn.Module


def make_suite(request: SweepRequest) -> Suite:
    """What a sweep measures, as a suite. Where nothing else is named it is the suite of the sweep
    that goes on in ``out``."""
    chosen = _suite(request)
    return chosen.exhaustive() if request.exhaustive else chosen


def _suite(request: SweepRequest) -> Suite:
    suite, model, ranks_of, ranks = request.suite, request.model, request.ranks_of, request.ranks
    tokens, dtype = request.tokens, request.dtype
    if request.operator is not None:
        suite, ranks = request.own_curve, None
    if request.resume and request.out is not None and suite is model is ranks_of is None:
        suite = suite_of(request.out)
    if sum(given is not None for given in (suite, model, ranks_of)) != 1:
        raise SuiteError(
            "give one of a suite, a model whose shapes are to be measured (--for CHECKPOINT), and "
            "a dense model whose ranks are (ranks_of, --ranks DENSE)"
        )
    if (ranks_of is None) != (ranks is None):
        raise SuiteError(
            "ranks_of and ranks go together: ranks=(64, 256), for example "
            "(--ranks DENSE --range 64:256)"
        )
    if request.preset is not None and model is None:
        raise SuiteError("a preset goes with a model whose shapes are to be measured (--for)")
    if suite is not None:
        if tokens is not None:
            raise SuiteError("tokens go with a model; a suite names its own dims")
        return opened_suite(suite)
    from gacprof.checkpoint import inventory_for
    from gacprof.diagnosing.predict import workload_of
    from gacprof.planning.requirements import requirements
    from gacprof.sweeping.for_checkpoint import suite_for, suite_for_ranks, suite_for_ranks_of

    counts = sorted(workload_of(tokens))
    if isinstance(ranks_of, list | tuple) and ranks is not None:
        return suite_for_ranks(ranks_of, ranks, counts, dtype=dtype)
    if ranks is not None:
        return suite_for_ranks_of(inventory_for(ranks_of), ranks, counts, dtype=dtype)  # type: ignore[arg-type]
    inventory = inventory_for(model)  # type: ignore[arg-type]
    asked = requirements(inventory, request.preset)
    multiples = {name: required.multiple for name, required in asked.by_dim.items()}
    tp = 1 if asked.preset is None else asked.preset.tp
    return suite_for(
        inventory, counts, dtype=dtype, window=request.window, multiples=multiples, tp=tp
    )


def opened_suite(suite: Suite | Mapping[str, Any] | str | Path) -> Suite:
    """A suite by name, file or value."""
    if isinstance(suite, Mapping):
        return parse_suite(suite, "the suite")
    return suite if isinstance(suite, Suite) else load_suite(suite)


def _sweep(request: SweepRequest) -> RunSummary:
    """Measure a suite, or a model's shapes, on a device; samples go to the folder ``out`` (by
    default one under ``runs/``).

    It measures in processes of its own, one after another, unless ``isolate`` is false: then a
    point that crashes takes the caller with it, and noise between processes is not seen.
    In a notebook a bar shows the time left, unless ``progress`` is given.

    Raises :class:`SuiteError`, :class:`MeasurementError`, :class:`CheckpointError` or, for
    tokens that are none, :class:`PlanError`.
    """
    return sweep_suite(make_suite(request), request)


sweep = verb("sweep", SweepRequest, _sweep)


def sweep_suite(chosen: Suite, request: SweepRequest) -> RunSummary:
    """:func:`sweep` this suite on one device."""
    device, out = request.device, request.out
    chosen.curves(_kind(device))  # refused before processes are started, as is the next
    if out is not None:
        _check_resume(request.resume, Path(out))
    with ExitStack() as stack:
        stack.enter_context(_clocks(device, request.lock_clocks_mhz))
        opened = stack.enter_context(
            sweeper(
                device, timer=request.timer, isolate=request.isolate,
                timeout_s=request.timeout_s,
                processes=chosen.timing.processes,
            )
        )  # fmt: skip
        folder = Path(out or f"runs/{chosen.name}-{slug(opened.environment.name)}")
        _check_resume(request.resume, folder)
        shown = request.progress or notebook_progress(f"sweep {chosen.name}")
        with _noted(folder):
            summary = run_sweep(
                chosen, opened, folder, resume=request.resume, budget_s=request.budget_s,
                progress=shown,
            )  # fmt: skip
        if shown:
            shown(summary.seconds, summary.seconds, "")
        return summary


def sweep_all_gpus(suite: Suite, request: SweepRequest) -> FleetRun:
    """:func:`sweep` this suite on all GPUs of this machine at once: equal ones split its curves.
    Each kind has its folder in ``out``."""
    from gacprof.devices.opening import local_gpus
    from gacprof.extras.fleet.cluster import Threads

    if request.lock_clocks_mhz is not None:
        raise MeasurementError("--lock-clocks goes with one device: name it with --device")
    folder = Path(request.out or f"runs/{suite.name}-all")
    return _sweep_on(Threads(local_gpus()), suite, folder, request, _summed(request.progress))


def _sweep_fleet(request: FleetRequest) -> FleetRun:
    """Measure a suite on the devices of a Ray cluster: equal ones split its curves.

    ``devices`` are ``cuda``, ``cpu``, ``all``, or by default GPUs where there are any. Each kind
    of device has its run folder in ``out``, which only the caller writes.

    Raises :class:`SuiteError`, and :class:`MeasurementError` where Ray, a cluster or a device is
    missing.
    """
    from gacprof.extras.fleet.on_ray import RayCluster, connected

    chosen = opened_suite(request.suite)
    folder = Path(request.out or f"runs/{chosen.name}-fleet")
    watch = request.watch or _summed(request.progress)
    with connected(request.address):
        cluster = RayCluster(request.devices)
        return _sweep_on(cluster, chosen, folder, request, watch, wait_s=request.wait_s)


sweep_fleet = verb("sweep_fleet", FleetRequest, _sweep_fleet)


def _sweep_on(
    cluster: Cluster, suite: Suite, folder: Path, how: Running, watch: Watch, **more: Any
) -> FleetRun:
    from gacprof.extras.fleet.cluster import opener_on
    from gacprof.extras.fleet.driver import sweep_fleet
    from gacprof.operators.own import own_operators

    _check_resume(how.resume, folder)
    with _noted(folder):
        return sweep_fleet(
            suite, cluster, opener_on(own_operators(), how.timer), folder, watch=watch,
            resume=how.resume, budget_s=how.budget_s, timeout_s=how.timeout_s,
            isolate=how.isolate, **more,
        )  # fmt: skip


def _summed(progress: Progress | None) -> Watch:
    """All workers' progress as one."""

    def watch(members: Sequence[Member]) -> None:
        if progress:
            progress(sum(m.done for m in members), sum(m.total for m in members), None)

    return watch


@dataclass(frozen=True)
class SweepEstimate(Record):
    """What a sweep would measure. ``of`` lists the points; of ``refined_curves`` only some are
    measured. ``estimated_s`` rests on ``estimated_from_calls`` calls, with 0 it is a guess."""

    suite: str
    device: str
    curves: int
    points: int
    refined_curves: int
    processes: int
    estimated_s: float
    estimated_from_calls: int
    budget_s: float | None
    longest_s: float
    of: list[str]


def _estimate_sweep(request: EstimateRequest) -> SweepEstimate | Forecast:
    """What a sweep would measure, and how long it may take: a few blocks tell, where the device
    is here. Of a ``gpu`` that need not be here: memory, graphs, plans and seconds.

    Raises what :func:`sweep` raises, :class:`MapError` for a GPU that is not known, and
    :class:`MeasurementError` where the sweep cannot fit its memory.
    """
    from gacprof.sweeping.estimate import estimate

    suite, device = make_suite(request), request.device
    if request.gpu is not None:
        return forecast_sweep(suite, request.gpu)
    kind = _kind(device)
    curves, points, timing = suite.curves(kind), suite.points(kind), suite.timing
    budget_s = request.budget_s or timing.budget_s
    opened = _if_here(device)
    if opened is None:
        found = estimate(suite, kind, "", None, budget_s)
    else:
        with closing(opened):
            found = estimate(suite, kind, opened.environment.name, opened, budget_s)
    return SweepEstimate(
        suite.name, kind, len(curves), len(points), sum(bool(curve.refined) for curve in curves),
        timing.processes, round(found.seconds, 1), found.calls, budget_s,
        round(found.longest_s, 1), [str(point) for point in points],
    )  # fmt: skip


estimate_sweep = verb("estimate_sweep", EstimateRequest, _estimate_sweep)


def forecast_sweep(suite: Suite, gpu: str) -> Forecast:
    """What a sweep would ask of a GPU that need not be here: memory, graphs, plans, seconds; at
    most, where axes are refined.

    Raises :class:`MapError` for a GPU that is not known, :class:`MeasurementError` where the sweep
    cannot fit its memory.
    """
    from gacprof.devices.datasheet import sheet
    from gacprof.devices.forecast import Load, forecast
    from gacprof.sweeping.curve import FEWEST_SLOTS
    from gacprof.sweeping.estimate import likely_points

    timing, loads = suite.timing, []
    for plan in suite.curves("cuda"):
        points = tuple(likely_points(plan))
        replicates = timing.replicates_of(len(points))
        loads.append(Load(points, replicates, timing.blocks, FEWEST_SLOTS))
    found = forecast(loads, sheet(gpu), timing.reuse_mib << 20, timing.processes)
    if found.too_large:
        raise MeasurementError(
            f"{counted(len(found.too_large), 'point')} of suite {suite.name} cannot fit the "
            f"{found.memory_gib} GiB of an {found.gpu}, the first is {found.too_large[0]}"
        )
    if not found.fits:
        raise MeasurementError(
            f"suite {suite.name} needs {found.peak_gib} GiB, an {found.gpu} has "
            f"{found.memory_gib} GiB: sweep it in parts"
        )
    return found


def _if_here(device: str | None) -> Device | None:
    """The device, opened; None where it is not here, as in planning for another machine."""
    from gacprof.devices.opening import open_device

    try:
        return open_device(None if device == "all" else device)
    except MeasurementError:
        return None


def _kind(device: str | None) -> str:
    from gacprof.devices.opening import device_kind

    return "cuda" if device == "all" else device_kind(device)


def _check_resume(resume: bool, folder: Path) -> None:
    """With nothing begun, the name of the folder is wrong."""
    if resume and not (folder.is_dir() and any(folder.iterdir())):
        raise MeasurementError(
            f"nothing to resume in {folder}: name the sweep's folder with --out, or leave out "
            "--resume to begin one"
        )


@contextmanager
def _noted(folder: Path) -> Iterator[None]:
    """An interrupt carries a note of where the measured blocks are."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(f"what was measured is in {folder}, go on with --resume")
        raise


@contextmanager
def _clocks(device: str | None, mhz: int | None) -> Iterator[None]:
    """The GPU's SM clock locked at ``mhz`` meanwhile; nothing for None."""
    if mhz is None:
        yield
        return
    from gacprof.devices.cuda import CudaDevice
    from gacprof.devices.nvml import locked
    from gacprof.devices.opening import open_device

    gpu = open_device(device, "cuda-events")
    if not isinstance(gpu, CudaDevice):
        raise MeasurementError("--lock-clocks is for GPUs; a CPU's clock is the system's to set")
    telemetry = gpu.telemetry
    if telemetry.handle is None:
        raise MeasurementError(f"clocks cannot be locked without NVML: {telemetry.why_not}")
    with locked(telemetry.nvml, telemetry.handle, mhz, gpu.burn_in):
        yield
