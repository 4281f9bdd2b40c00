"""Faster? Several models, the same workloads, measured in turns on one device.

Models take turns in every round (A B A B …), so that drift of clocks and temperature hits all
alike, and each round gives a ratio to the first model. A difference is claimed only where the
interval of those ratios excludes 1.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

from gacprof.checkpoint.load_skeleton import require_transformers
from gacprof.errors import CheckpointError, MeasurementError
from gacprof.measure.device import open_device
from gacprof.measure.stats import median_interval
from gacprof.points import Environment
from gacprof.proof.bench_result import BenchResult, Timing
from gacprof.proof.subject import (
    Model,
    chosen_dtype,
    device_of,
    distinct_names,
    name_of,
    positions,
    vocabulary,
)
from gacprof.proof.together import common_dtype, load_together
from gacprof.proof.workloads import Clock, Runner, Workload

Progress = Callable[[int, int, str], None]
"""Told (timings done, timings in all at most, what is timed next)."""

SEED = 0
WARM_UP_ROUNDS = 2
FEWEST_ROUNDS = 3
ATTEMPTS = 3


def bench(
    models: Sequence[Model],
    *,
    tokens: Sequence[int] = (128, 512, 1024),
    decode_steps: int = 32,
    batch: int = 1,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    repeats: int = 12,
    time_cap_s: float | None = 300.0,
    progress: Progress | None = None,
) -> BenchResult:
    """Prefill latency at every length of ``tokens``, decode latency after the shortest.

    ``dtype`` defaults to the stored one (the widest of all models). At least 3 rounds are
    measured, then no new one begins after ``time_cap_s`` seconds. ``decode_steps`` of 0 leaves
    decoding out. The models are in memory together, or it is refused: unloading between turns
    would measure loading.

    Raises :class:`MeasurementError` for a device that is not there or too small,
    :class:`CheckpointError` for a model that cannot be loaded or has no positions for a length.
    """
    workloads = _workloads(tokens, decode_steps, batch)
    if not models or repeats < FEWEST_ROUNDS:
        raise MeasurementError(f"bench needs a model and at least {FEWEST_ROUNDS} repeats")
    where = device_of(device)
    numbers = chosen_dtype(dtype) or common_dtype(models)
    loaded = load_together(models, numbers, where)
    _refuse_too_long(models, loaded, workloads)
    clock = Clock(where)
    rounds = _measure(loaded, workloads, clock, repeats, time_cap_s, progress)
    sources = tuple(name_of(model) for model in models)
    names = distinct_names(sources)
    return BenchResult(
        models=names,
        sources=sources,
        parameters=tuple(sum(p.numel() for p in model.parameters()) for model in loaded),
        dtype=str(numbers).removeprefix("torch."),
        batch=batch,
        decode_steps=decode_steps,
        rounds=len(rounds),
        timings=_timings(names, workloads, rounds),
        environment=_environment(where),
        timer="cuda-events" if where.type == "cuda" else "cpu-monotonic",
        notes=_notes(len(rounds), repeats, clock.disturbed),
    )


def _workloads(tokens: Sequence[int], decode_steps: int, batch: int) -> tuple[Workload, ...]:
    if not tokens or min(tokens) < 1 or batch < 1 or decode_steps < 0:
        raise MeasurementError("bench needs positive token counts and batch, and 0 or more steps")
    lengths = sorted(set(tokens))
    prefill = [Workload("prefill", length, batch) for length in lengths]
    decode = [Workload("decode", lengths[0], batch, decode_steps)] if decode_steps else []
    return (*prefill, *decode)


def _refuse_too_long(
    models: Sequence[Model], loaded: Sequence[nn.Module], workloads: Sequence[Workload]
) -> None:
    for source, model in zip(models, loaded, strict=True):
        most = positions(model)
        for workload in workloads:
            needed = workload.tokens + (workload.steps if workload.kind == "decode" else 0)
            if most is not None and needed > most:
                raise CheckpointError(
                    f"{name_of(source)} has {most} positions (max_position_embeddings): "
                    f"{workload.name} would take {needed}; ask for fewer tokens or steps"
                )


Round = dict[tuple[int, int], float]
"""(model, workload), by their numbers → microseconds."""


def _measure(
    models: Sequence[nn.Module],
    workloads: Sequence[Workload],
    clock: Clock,
    repeats: int,
    time_cap_s: float | None,
    progress: Progress | None,
) -> list[Round]:
    ids = _ids(models, workloads, clock.device)
    runners = {
        (m, w): Runner(model, workload, ids[:, : workload.tokens])
        for w, workload in enumerate(workloads)
        for m, model in enumerate(models)
    }
    total = len(runners) * (WARM_UP_ROUNDS + repeats)
    done = 0
    began = time.monotonic()
    rounds: list[Round] = []
    for number in range(WARM_UP_ROUNDS + repeats):
        late = time_cap_s is not None and time.monotonic() - began > time_cap_s
        if late and len(rounds) >= FEWEST_ROUNDS:
            break
        taken: Round = {}
        for (m, w), runner in runners.items():
            if progress is not None:
                progress(done, total, workloads[w].name)
            taken[m, w] = _time(runner, clock)
            done += 1
        if number >= WARM_UP_ROUNDS:
            rounds.append(taken)
    if progress is not None:
        progress(total, total, "")
    return rounds


def _time(runner: Runner, clock: Clock) -> float:
    """One timing. On a CPU that other processes want too, it is taken up to :data:`ATTEMPTS`
    times until nobody takes a core from us, and the least disturbed one is kept: by the count of
    preemptions, never by the time itself."""
    collecting = gc.isenabled()
    gc.disable()  # a collection would be timed as the model's
    kept: tuple[int, float] | None = None
    try:
        for _ in range(ATTEMPTS):
            taken = runner.time(clock)
            if kept is None or clock.preempted < kept[0]:
                kept = clock.preempted, taken
            if kept[0] == 0:
                break
        clock.disturbed += bool(kept and kept[0])
        return kept[1] if kept else 0.0
    except torch.OutOfMemoryError as error:
        raise MeasurementError(f"out of memory: {str(error).splitlines()[0]}") from None
    finally:
        if collecting:
            gc.enable()


def _ids(
    models: Sequence[nn.Module], workloads: Sequence[Workload], device: torch.device
) -> torch.Tensor:
    longest = max(workload.tokens for workload in workloads)
    generator = torch.Generator().manual_seed(SEED)
    shape = (workloads[0].batch, longest)
    return torch.randint(vocabulary(models), shape, generator=generator).to(device)


def _timings(
    names: Sequence[str], workloads: Sequence[Workload], rounds: Sequence[Round]
) -> tuple[Timing, ...]:
    found = []
    for w, workload in enumerate(workloads):
        for m, name in enumerate(names):
            taken = [r[m, w] for r in rounds]
            low, middle, high = median_interval(taken)
            ratio = median_interval([r[m, w] / r[0, w] for r in rounds]) if m else None
            found.append(
                Timing(
                    name,
                    workload.name,
                    workload.kind,
                    workload.tokens,
                    low,
                    middle,
                    high,
                    tuple(taken),
                    ratio,
                )
            )
    return tuple(found)


def _environment(device: torch.device) -> Environment:
    found = open_device(str(device)).environment
    return replace(found, stack={**found.stack, "transformers": require_transformers().__version__})


def _notes(rounds: int, repeats: int, disturbed: int) -> tuple[str, ...]:
    notes = []
    if disturbed:
        notes.append(
            f"{disturbed} timings were preempted by other processes, {ATTEMPTS} times over: "
            "the machine is busy, and differences hide in that"
        )
    if rounds < repeats:
        notes.append(f"stopped after {rounds} of {repeats} rounds: the time cap was reached")
    if rounds < 6:
        notes.append("fewer than 6 rounds: the intervals are ranges, not of 95 % confidence")
    return tuple(notes)
