"""Faster? Several models, the same workloads, interleaved in random order on one device.

Every block calls all models once at one workload, in a fresh random order (:mod:`.summary`); a
fit takes out what the machine did to a block as a whole (:mod:`.comparison`). The first model is
the reference and runs twice, the second time as a hidden A/A replicate: what the bench shows
between the two is its own error, printed beside every result, and no smaller difference is
claimed. On a CPU every round finds the weights elsewhere in memory, since that, too, makes equal
models differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from gacprof.checkpoint.config import require_transformers
from gacprof.checkpoint.load import dtype_of
from gacprof.core.errors import CheckpointError, MeasurementError
from gacprof.core.formatting import notebook_progress
from gacprof.core.points import Environment
from gacprof.devices.environment import native_bfloat16
from gacprof.devices.opening import open_device
from gacprof.devices.threads import bound_threads
from gacprof.evaluation.models import (
    LoadedModels,
    common_dtype,
    device_of,
    distinct_names,
    identical,
    load_models,
    modes_kept,
    name_of,
    refuse_other_than_models,
    running,
    tensors_of,
    text_config,
    vocabulary,
)
from gacprof.evaluation.request import BenchRequest
from gacprof.evaluation.summary import BenchResult, BenchSummary, Rounds
from gacprof.evaluation.workloads import (
    BenchWorkload,
    CapturedStep,
    Clock,
    Runner,
    busy_share,
    runner,
)

SEED = 0


def bench_models(request: BenchRequest) -> BenchResult:
    """:func:`gacprof.bench`."""
    models, dtype, batch = request.models, request.dtype, request.batch
    workloads = workloads_of(request.tokens, request.decode_steps, batch)
    refuse_other_than_models(models)
    where = device_of(request.device)
    numbers = dtype_of(dtype) if dtype is not None else common_dtype(models)
    sources = tuple(name_of(model) for model in models)
    names = distinct_names(sources)
    with modes_kept(models):
        loaded = load_models(models, numbers, where)
        _refuse_too_long(sources, loaded.models, workloads)
        # A GPU's host thread is left alone.
        with bound_threads() if where.type == "cpu" else nullcontext() as threads:
            clock = Clock(where, threads)
            found = _measure(names, loaded, workloads, clock, request)
    is_bound = threads is not None and threads.bound
    return BenchResult(
        models=names,
        sources=sources,
        parameters=tuple(sum(p.numel() for p in m.parameters()) for m in loaded.models),
        dtype=str(numbers).removeprefix("torch."),
        batch=batch,
        decode_steps=request.decode_steps,
        rounds=found.rounds.count,
        timings=found.timings(),
        replicates=found.replicates(),
        environment=_environment(where),
        timer=clock.name,
        threads_bound=is_bound,
        busy=found.busy,
        notes=(*_conditions(where, numbers, is_bound, loaded.shared), *found.notes()),
    )


def _measure(
    names: Sequence[str],
    loaded: LoadedModels,
    workloads: Sequence[BenchWorkload],
    clock: Clock,
    request: BenchRequest,
) -> BenchSummary:
    ids = _token_ids(loaded.models, workloads).to(clock.device)
    columns = (*loaded.models, loaded.replicate)
    runners = [[runner(model, workload, ids) for model in columns] for workload in workloads]
    first, *_ = given = request.models
    same = [one is first for one in given]  # models in memory may have hooks, or be compiled
    for m, one in enumerate(given):
        if not isinstance(one, nn.Module) and not isinstance(first, nn.Module):
            same[m] = same[m] or identical(loaded.models[0], loaded.models[m])
    draw, weights = np.random.default_rng(SEED), weights_of(columns) if loaded.movable else []
    rounds = Rounds(
        workloads, runners, clock, request.rounds, request.time_cap_s,
        request.progress or notebook_progress("bench"), anew=lambda: move(weights, draw),
    )  # fmt: skip
    found = BenchSummary(names, workloads, same, rounds)
    with running("bench", "fewer tokens, models, or a smaller batch or dtype"):
        rounds.run(found.decided)
        if workloads[-1].kind == "decode":
            found.launched = _launched(dict(zip(names, runners[-1], strict=False)))
            shares = [busy_share(step, clock) for step in runners[-1][:-1]]
            found.busy = {n: s for n, s in zip(names, shares, strict=True) if s is not None}
    return found


def _launched(steps: Mapping[str, Runner]) -> dict[str, str]:
    """Models whose decode steps no CUDA graph holds, and why."""
    captured = {n: step for n, step in steps.items() if isinstance(step, CapturedStep)}
    return {name: step.why_not for name, step in captured.items() if step.why_not}


def workloads_of(tokens: Sequence[int], decode_steps: int, batch: int) -> tuple[BenchWorkload, ...]:
    """A prefill of each length, and after the shortest ``decode_steps`` calls of a decode step."""
    if not isinstance(tokens, Sequence) or not all(isinstance(count, int) for count in tokens):
        raise MeasurementError("bench needs token counts in a list: tokens=(128, 512)")
    if not tokens or min(tokens) < 1 or batch < 1 or decode_steps < 0:
        raise MeasurementError("bench needs positive token counts and batch, and 0 or more steps")
    lengths = sorted(set(tokens))
    prefill = [BenchWorkload("prefill", length, batch) for length in lengths]
    decode = [BenchWorkload("decode", lengths[0], batch, decode_steps)] if decode_steps else []
    return (*prefill, *decode)


def _refuse_too_long(
    names: Sequence[str], loaded: Sequence[nn.Module], workloads: Sequence[BenchWorkload]
) -> None:
    for name, model in zip(names, loaded, strict=True):
        most = getattr(text_config(model), "max_position_embeddings", None)
        for workload in workloads:
            needed = workload.tokens + (workload.kind == "decode")
            if most and needed > most:
                raise CheckpointError(
                    f"{name} has {most} positions (max_position_embeddings): "
                    f"{workload.name} would take {needed}; ask for fewer tokens"
                )


def _token_ids(models: Sequence[nn.Module], workloads: Sequence[BenchWorkload]) -> torch.Tensor:
    longest = max(workload.tokens for workload in workloads)
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(vocabulary(models), (workloads[0].batch, longest), generator=generator)


def _environment(device: torch.device) -> Environment:
    found = open_device(str(device)).environment
    return replace(found, stack={**found.stack, "transformers": require_transformers().__version__})


def _conditions(
    device: torch.device, dtype: torch.dtype, bound: bool, shared: str
) -> Iterator[str]:
    """What was not as it should be before anything was timed. ``shared``: why the A/A replicate
    has no weights of its own."""
    if shared:
        yield (
            f"the A/A replicate is the same object as the reference ({shared}): what different "
            "addresses do to the time does not show in the A/A spread"
        )
    if device.type == "cpu" and not bound:
        yield "compute threads could not be bound to cores: timings scatter more on a busy machine"
    if device.type == "cpu" and dtype == torch.bfloat16 and not native_bfloat16():
        yield "this CPU has no instructions for products in bfloat16: it would hardly be run so"


def weights_of(models: Sequence[nn.Module]) -> list[list[torch.Tensor]]:
    """The models' tensors in the CPU's memory, those that are one and the same (tied weights)
    together. Packed kinds of tensor are left out, and those of inference mode, which PyTorch would
    no longer know as such elsewhere."""
    found: dict[tuple[Any, ...], list[torch.Tensor]] = {}
    for tensor in {id(t): t for model in models for _, t in tensors_of(model)}.values():
        plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout == torch.strided
        if plain and tensor.device.type == "cpu" and not tensor.is_inference() and tensor.numel():
            place = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
            found.setdefault(place, []).append(tensor)
    return list(found.values())


def move(tensors: Sequence[Sequence[torch.Tensor]], draw: np.random.Generator) -> None:
    """Copy tensors (:func:`weights_of`) to other memory, one after the other, in random order: the
    last ones are in the caches then.

    Where in memory weights lie decides which of them share a line of a cache, and so a model's
    speed: of equal models one may decode 2 % slower, for as long as its weights stay where they
    are (docs/evaluating.md).
    """
    with torch.inference_mode(False), torch.no_grad():
        for number in draw.permutation(len(tensors)):
            same = tensors[number]
            moved = same[0].detach().clone()
            for tensor in same:
                tensor.data = moved
