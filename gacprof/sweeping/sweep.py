"""The verb ``sweep``: measure a suite, or a model's own shapes, on a device into a run folder."""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import ClassVar

from gacprof import operators
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import inventory_of
from gacprof.cliffmap.run_folder import RunHeader, RunWriter
from gacprof.core.errors import ConfigError, MeasurementError
from gacprof.core.points import Axis, Environment, Point
from gacprof.core.results import Result
from gacprof.devices.cuda import L2_FACTOR, MAX_CALLS, MAX_COLD_SHARE
from gacprof.devices.device import open_device
from gacprof.devices.memory import REPLICATE_OFFSET, moves, weight_bytes
from gacprof.hardware.datasheet import gpu_facts
from gacprof.kernels.attention import AttentionCall, backend, release
from gacprof.sweeping.engine import CurveSchedule, measure, require_budget
from gacprof.sweeping.for_model import suite_for_model, suite_for_ranks
from gacprof.sweeping.suite import Suite, load_suite

CONDITIONS = ("threads", "cores", "power_limit_w")  # that a resumed sweep has to share


@dataclass(frozen=True)
class Preparation:
    """What each process of a sweep prepares."""

    captures: int  # CUDA graphs
    cudnn_plans: int  # at most: attention calls that cuDNN plans (0.44 s on a B200, FunASR#3704)
    memory_bytes: int  # at most, of operands


@dataclass(frozen=True)
class SweepSummary(Result):
    """A sweep's result; ``seconds`` counts this call only."""

    schema: ClassVar[str] = "gacprof.SweepSummary/1"
    folder: Path | None  # None: a dry run, which says what a GPU would have to prepare
    curves: int
    points: int
    blocks: int = 0
    calls: int = 0
    failed: int = 0
    seconds: float = 0.0
    preparation: Preparation | None = None


def sweep(
    suite: str | Path = "quick",
    *,
    model: str | Path | Inventory | None = None,
    tokens: Sequence[int] | Mapping[int, float] | None = None,
    dtype: str | None = None,
    window: float = 0.25,
    tp: int = 1,
    ranks: tuple[int, int] | None = None,
    out: str | Path | None = None,
    device: str | None = None,
    budget_s: float | None = None,
    resume: bool = False,
    dry_run: bool = False,
    imports: str | None = None,
) -> SweepSummary:
    """Measure how long a device takes at each size.

    Sizes are measured in random order, round after round, until every verdict is sure or the time
    is up. Then build a map: ``gacprof map build``.

    Parameters
    ----------
    suite
        What to measure: a shipped suite (quick, full, cpu, paper …) or a TOML file of your own.
    model
        A checkpoint whose own shapes are measured, in place of a suite.
    tokens
        With a model: numbers of tokens in a call. By default 1 and 1024.
    dtype
        With a model: the type to compute in. By default the weights' own.
    window
        With a model: how far around its own sizes to measure, as a fraction of them.
    tp
        With a model: tensor-parallel ranks, which share each matrix.
    ranks
        With a dense model: the smallest and the largest rank that its layers may be cut to.
    out
        The run folder. By default a new one in runs/.
    device
        cpu, cuda or cuda:1. By default the first GPU, else the CPU.
    budget_s
        Seconds, preparing included, after which no round is begun, whatever is undecided then.
    resume
        Go on with an interrupted sweep, in the same run folder.
    dry_run
        Count what would be measured, and what a GPU has to prepare; measure nothing.
    imports
        A Python module of your own operators, which the suite names: my_kernels.

    Raises
    ------
    MeasurementError
        For an unusable suite, device or folder.

    Examples
    --------
    >>> model = "tests/fixtures/checkpoints/asvd_mha_r1"
    >>> summary = gacprof.sweep(model=model, tokens=[1, 64], device="cpu", dry_run=True)
    >>> summary.curves, summary.points, summary.folder
    (29, 717, None)
    """
    started = time.monotonic()
    require_budget(budget_s)
    if imports is not None:
        import_operators(imports)
    name = device or "auto"
    devices = [open_device(name, isolated=True)]
    environment = devices[0].environment
    if model is None:
        measured = load_suite(suite, environment.kind)
    elif ranks is None:
        inventory = inventory_of(model)
        measured = suite_for_model(inventory, tokens, dtype=dtype, window=window, tp=tp)
    else:
        measured = suite_for_ranks(inventory_of(model), ranks, tokens, dtype=dtype)
    if dry_run:
        devices.pop().close()
        on_cpu = environment.kind == "cpu"
        prepared = None if on_cpu else preparation(measured.axes, environment)
        return SweepSummary(None, len(measured.axes), measured.points, preparation=prepared)
    folder = Path(out or f"runs/{measured.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    with closing(open_run(folder, measured, environment, resume)) as run:
        budget = budget_s or measured.budget_s
        blocks_before, calls_before = measured_yet(run)
        measure(
            run,
            lambda: devices.pop() if devices else open_device(name, isolated=True),
            budget_s=budget,
            started=started,
            progress=partial(show_progress, budget),
        )
        blocks, calls = measured_yet(run)
        blocks, calls = blocks - blocks_before, calls - calls_before
        failed = sum(len(run.failures(axis)) for axis in run.axes)
        seconds = time.monotonic() - started
        curves = len(run.axes)
        return SweepSummary(run.path, curves, measured.points, blocks, calls, failed, seconds)


def measured_yet(run: RunWriter) -> tuple[int, int]:
    """Return the numbers of blocks and of calls that a run holds."""
    blocks = [*chain.from_iterable(map(run.blocks, run.axes))]
    return len(blocks), sum(len(block.order) for block in blocks)


def open_run(folder: Path, suite: Suite, environment: Environment, resume: bool) -> RunWriter:
    """Open a new run folder, or the one that this sweep began, for writing. Raises
    :class:`MeasurementError` for other axes, another device, or where a sweep still runs in it."""
    if not resume:
        return RunWriter.create(folder, RunHeader(suite.name, environment, suite.axes))
    run = RunWriter(folder)
    if run.axes != suite.axes:
        raise MeasurementError(f"{folder} is a run of other axes: name another folder")
    facts, recorded = environment.facts, run.environment.facts
    is_other = any(facts.get(name) != recorded.get(name) for name in CONDITIONS)
    if is_other or replace(run.environment, facts=facts) != environment:
        raise MeasurementError(
            f"{folder} was measured on {run.environment.name} with another stack, threads or power "
            "limit: name another folder"
        )
    return run


def import_operators(module: str) -> None:
    """Import a module from the current folder, or from where Python finds it."""
    folder = str(Path.cwd())
    if folder not in sys.path:  # a script's own folder stands there in its place
        sys.path.insert(0, folder)
    try:
        import_module(module)
    except ImportError as error:
        raise MeasurementError(f"{module} cannot be imported: {error}: name a module") from None


def show_progress(budget_s: float | None, done: int, curves: int, spent: float) -> None:
    """Rewrite a line on standard error; nothing where that is a file."""
    if sys.stderr.isatty():
        left = f", at most {budget_s * (1 - spent):.0f} s left" if budget_s else ""
        text = f"\r{done} of {curves} curves are decided{left}  "
        print(text, end="", file=sys.stderr, flush=True)


def preparation(axes: Sequence[Axis], gpu: Environment) -> Preparation:
    """Count what a CUDA GPU prepares for axes."""
    points = [*chain.from_iterable(map(axis.point, axis.sizes) for axis in axes)]
    plans = sum(planned_by_cudnn(point, gpu) for point in points)
    captures = sum(len(CurveSchedule(axis).slots) for axis in axes)
    return Preparation(captures, plans, operand_bytes(points, gpu))


def planned_by_cudnn(point: Point, gpu: Environment) -> bool:
    """Return whether cuDNN may serve the point: true where PyTorch's choice is not known."""
    chosen = point.flags.get("backend", "none")  # only attention has one
    if chosen != "auto":
        return chosen == "cudnn"
    dims = {name: size for name, size in point.dims.items() if name != "batch"}
    try:
        key, torch = gpu_facts(gpu.name).key, release(gpu.stack["torch"])
    except ConfigError:
        return True
    mask, causal = point.flags["mask"] != "none", bool(point.flags["causal"])
    call = AttentionCall(key, gpu.arch, torch, point.dtype, mask=mask, causal=causal, **dims)
    return backend(call) == "cudnn"


def operand_bytes(points: Sequence[Point], gpu: Environment) -> int:
    """Return the most memory that all operands take, in arenas as devices.memory has them."""
    most_cold = MAX_COLD_SHARE * int(gpu.facts["memory_bytes"])
    flushed = L2_FACTOR * int(gpu.facts["l2_bytes"])
    arenas: dict[tuple[int, str], int] = {}
    for point in points:
        reuse = max(flushed, int(min(most_cold, MAX_CALLS * weight_bytes(point))))
        for place, operand in enumerate(operators.get(point.operator).operands(point)):
            nbytes = operand.nbytes + REPLICATE_OFFSET + (reuse if moves(point, operand) else 0)
            key = place, operand.dtype
            arenas[key] = max(arenas.get(key, 0), nbytes)
    return sum(arenas.values())
