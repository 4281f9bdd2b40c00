"""Faster? Several models, the same workloads, interleaved in random order on one device.

Every block calls all models once at one workload, in a fresh random order (:mod:`.rounds`); a
fit takes out what the machine did to a block as a whole (:mod:`.comparison`). The first model is
the reference and runs twice, the second time as a hidden A/A replicate: what the bench shows
between the two is its own error, printed beside every result, and no smaller difference is
claimed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from gacprof.checkpoint.skeleton import require_transformers
from gacprof.core.errors import CheckpointError, MeasurementError
from gacprof.core.points import Environment
from gacprof.devices.device import open_device
from gacprof.devices.threads import bound_threads
from gacprof.evaluation.bench_result import BenchResult
from gacprof.evaluation.busy import busy_share
from gacprof.evaluation.comparison import FIRST_LOOK
from gacprof.evaluation.identity import identical
from gacprof.evaluation.judging import Judged, conditions
from gacprof.evaluation.rounds import Limits, Progress, Rounds
from gacprof.evaluation.subject import (
    Model,
    chosen_dtype,
    device_of,
    distinct_names,
    name_of,
    positions,
    vocabulary,
)
from gacprof.evaluation.together import Together, common_dtype, load_together
from gacprof.evaluation.workloads import Clock, Runner, Workload, runner

SEED = 0
ROUNDS = 384
"""At most, by default: looks after 12, 24, 48, 96, 192 and 384."""


def bench(
    models: Sequence[Model],
    *,
    tokens: Sequence[int] = (128, 512, 1024),
    decode_steps: int = 8,
    batch: int = 1,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    rounds: int = ROUNDS,
    time_cap_s: float | None = 300.0,
    progress: Progress | None = None,
) -> BenchResult:
    """Prefill latency at every length of ``tokens``, decode latency after the shortest.

    A round holds one prefill of each length and ``decode_steps`` decode steps of every model; 0
    leaves decoding out. ``rounds`` are measured at most. It ends earlier when every verdict is
    decided, looked at after 12, 24, 48 … rounds, or after ``time_cap_s`` seconds and at least 4
    rounds; with fewer than 12 all verdicts are ``undecided``.

    ``dtype`` defaults to the stored one (the widest of all models). The models are in memory
    together, the reference twice where there is room for it.

    Raises :class:`MeasurementError` for a device that is not there or too small,
    :class:`CheckpointError` for a model that cannot be loaded or has no positions for a length.
    """
    workloads = _workloads(tokens, decode_steps, batch)
    if not models or rounds < FIRST_LOOK:
        raise MeasurementError(f"bench needs a model and at least {FIRST_LOOK} rounds")
    where = device_of(device)
    numbers = chosen_dtype(dtype) or common_dtype(models)
    loaded = load_together(models, numbers, where)
    _refuse_too_long(models, loaded.models, workloads)
    sources = tuple(name_of(model) for model in models)
    names = distinct_names(sources)
    clock = Clock(where)
    limits = Limits(rounds, time_cap_s)
    with _threads(where) as bound:
        measured = _measure(names, loaded, workloads, clock, limits, progress)
    return BenchResult(
        models=names,
        sources=sources,
        parameters=tuple(sum(p.numel() for p in m.parameters()) for m in loaded.models),
        dtype=str(numbers).removeprefix("torch."),
        batch=batch,
        decode_steps=decode_steps,
        rounds=measured.rounds.count,
        timings=measured.timings(),
        replicates=measured.replicates(),
        environment=_environment(where),
        timer=clock.name,
        threads_bound=bound,
        busy=measured.busy,
        notes=(
            *conditions(where, numbers, bound, loaded.shared),
            *measured.notes(),
        ),
    )


def _measure(
    names: Sequence[str],
    loaded: Together,
    workloads: Sequence[Workload],
    clock: Clock,
    limits: Limits,
    progress: Progress | None,
) -> Judged:
    ids = _ids(loaded.models, workloads, clock.device)
    columns = (*loaded.models, loaded.replicate)
    runners = [[runner(model, workload, ids) for model in columns] for workload in workloads]
    same = [identical(loaded.models[0], model) for model in loaded.models]
    rounds = Rounds(workloads, runners, clock, progress)
    measured = Judged(names, workloads, same, limits, rounds)
    try:
        rounds.run(limits, measured.decided)
        if workloads[-1].kind == "decode":
            measured.busy = _busy(names, runners[-1], clock)
    except torch.OutOfMemoryError as error:
        raise MeasurementError(f"out of memory: {str(error).splitlines()[0]}") from None
    return measured


def _busy(names: Sequence[str], runners: Sequence[Runner], clock: Clock) -> dict[str, float]:
    shares = {name: busy_share(runner, clock) for name, runner in zip(names, runners, strict=False)}
    return {name: share for name, share in shares.items() if share is not None}


@contextmanager
def _threads(device: torch.device) -> Iterator[bool]:
    """A CPU's compute threads bound to cores; a GPU's host thread is left alone."""
    if device.type != "cpu":
        yield False
        return
    with bound_threads() as bound:
        yield bound


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
            needed = workload.tokens + (workload.kind == "decode")
            if most is not None and needed > most:
                raise CheckpointError(
                    f"{name_of(source)} has {most} positions (max_position_embeddings): "
                    f"{workload.name} would take {needed}; ask for fewer tokens"
                )


def _ids(
    models: Sequence[nn.Module], workloads: Sequence[Workload], device: torch.device
) -> torch.Tensor:
    longest = max(workload.tokens for workload in workloads)
    generator = torch.Generator().manual_seed(SEED)
    shape = (workloads[0].batch, longest)
    return torch.randint(vocabulary(models), shape, generator=generator).to(device)


def _environment(device: torch.device) -> Environment:
    found = open_device(str(device)).environment
    return replace(found, stack={**found.stack, "transformers": require_transformers().__version__})
