"""Time checkpoints side by side: the same workloads, interleaved in random order on one device.

A round runs every model once at every workload, and a copy of the first: the A/A replicate, whose
difference from its original is the bench's own error. Models are compared within a round: what
slows the whole round cancels. A GPU is also timed by a captured CUDA graph, since otherwise it
decodes small models only as fast as the host launches kernels.
"""

import copy
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar, Literal

import numpy as np
from scipy import stats
from torch import nn

from gacprof.check.models import (
    CONFIDENCE,
    SEED,
    Checkpoint,
    Decode,
    Prefill,
    StaticDecode,
    Workload,
    common_dtype,
    loaded,
    random_ids,
    short_names,
    torch_device,
    vocabulary,
)
from gacprof.core.dtypes import dtype_name
from gacprof.core.errors import MeasurementError, require_within
from gacprof.core.points import MAX_DIM, Environment
from gacprof.core.results import Table
from gacprof.core.sizes import Interval
from gacprof.devices.device import first_line
from gacprof.devices.environment import read_environment

WARM_UP_ROUNDS = 2
MAX_SECONDS = 86_400.0  # a day
FEWEST_ROUNDS = 8  # even if the seconds are over: fewer tell little of their spread
# No verdict on less: a model differs from itself by where its weights lie. On an H200 it was
# 0.24 % in a captured decode, and single products at two addresses by up to 1 % (reports/noise.md).
MIN_DIFFERENCE = 0.01
TRIMMED = 0.2  # share of rounds left out at either end: other programs make one in ten much slower

BenchVerdict = Literal["reference", "faster", "slower", "undecided"]


@dataclass(frozen=True)
class Timing:
    """A model's times at a workload.

    ``latency_us`` is that of the prompt, or of one decoded token; ``ratio`` is the time over the
    first model's (below 1 is faster), with 95 % intervals; ``times_us`` are the rounds. The verdict
    is decided where the whole interval of the ratio is further from 1 than the bounds of the
    replicate's at this workload, and than 1 %. ``busy_share`` is the share of the time in which
    kernels ran, by a trace (for a captured step, of the same step launched by the host); None where
    no trace saw them all.
    """

    model: str
    workload: str
    latency_us: Interval
    ratio: Interval
    verdict: BenchVerdict
    times_us: tuple[float, ...]
    busy_share: float | None = None


@dataclass(frozen=True)
class BenchResult(Table):
    """The times of models. ``timings`` are by workload and model, the first model first;
    ``replicates`` are the first model's A/A replicate at each workload, whose verdict is undecided
    by that rule. ``not_captured`` is why a CUDA device lacks the captured workload, else empty."""

    schema: ClassVar[str] = "gacprof.BenchResult/1"
    rows_in: ClassVar[str] = "timings"

    models: tuple[str, ...]
    parameters: tuple[int, ...]
    dtype: str
    prefill: int
    decode: int
    rounds: int
    timings: tuple[Timing, ...]
    replicates: tuple[Timing, ...]
    environment: Environment
    not_captured: str = ""


def bench(
    checkpoints: Sequence[Checkpoint],
    *,
    prefill: int = 256,
    decode: int = 32,
    batch: int = 1,
    seconds: float = 60.0,
    device: str | None = None,
    dtype: str | None = None,
) -> BenchResult:
    """Time models side by side.

    Models take turns to read a prompt and decode tokens, and are compared with the first of them.
    On a CUDA device decoding is timed as a captured graph too.

    Parameters
    ----------
    checkpoints
        The reference first, then the others. All, and the reference once more, are in memory
        together.
    prefill
        Tokens of the prompt.
    decode
        Tokens that are decoded after it; 0 leaves decoding out.
    batch
        Sequences at once.
    seconds
        Seconds to measure for, without loading and warming up; at least eight rounds are run.
    device
        cpu, cuda or cuda:1. By default the accelerator, where there is one.
    dtype
        The type to compute in. By default the widest that the checkpoints store.

    Raises
    ------
    MeasurementError
        There is no checkpoint, no such device, or a virtual one.

    Examples
    --------
    >>> model = "tests/fixtures/checkpoints/asvd_mha_r1"
    >>> result = gacprof.bench([model, model], device="cpu", prefill=16, decode=4, seconds=0.5)
    >>> sorted({timing.workload for timing in result.timings})
    ['decode 4', 'prefill 16']
    """
    if not checkpoints:
        raise MeasurementError("bench needs a checkpoint, better two")
    require_within("prefill", prefill, MAX_DIM)
    require_within("batch", batch, MAX_DIM)
    if seconds:
        require_within("seconds", seconds, MAX_SECONDS)
    if decode:
        require_within("decode", decode, MAX_DIM)
    where = torch_device(device)
    environment = read_environment(str(where))
    if environment.kind == "virtual":
        raise MeasurementError(f"{environment.name} is virtual here: it has kernels and no times")
    numbers = dtype or common_dtype(checkpoints)
    models = [loaded(checkpoint, numbers, where) for checkpoint in checkpoints]
    columns = [*models, copy.deepcopy(models[0])]
    ids = random_ids(min(map(vocabulary, models)), (batch, prefill)).to(where)
    workloads: dict[str, Sequence[Workload]] = {}
    workloads[f"prefill {prefill}"] = [Prefill(model, ids) for model in columns]
    if decode:
        workloads[f"decode {decode}"] = [Decode(model, ids, decode) for model in columns]
    not_captured = ""
    steps: list[StaticDecode] = []
    if decode and where.type == "cuda":
        try:
            steps = [StaticDecode(model, ids, decode) for model in columns]
            for step in steps:
                step.capture()
            workloads[f"decode {decode}, captured"] = steps
        except Exception as error:  # any model's code and any kernel may refuse
            not_captured = first_line(error)
            steps = []
    times = run_rounds(columns, workloads, seconds)
    # Afterwards, since what has traced once launches more slowly; without graphs, which tracers
    # that attach behind them may stumble over.
    for step in steps:
        step.take_step = step.step
    names = short_names(checkpoints)
    timings: list[Timing] = []
    replicates: list[Timing] = []
    for name, row in workloads.items():
        compared = compare(names, name, times[name] / row[0].steps)
        for column, workload in enumerate(row):
            kernels_us = workload.kernels_us()
            if kernels_us is not None:
                timing = compared[column]
                # The trace is of another run than the timings, so that the share may exceed 1
                busy_share = kernels_us / workload.steps / timing.latency_us.value
                compared[column] = replace(timing, busy_share=min(1.0, busy_share))
        timings += compared[:-1]
        replicates.append(compared[-1])
    return BenchResult(
        models=names,
        parameters=tuple(sum(p.numel() for p in model.parameters()) for model in models),
        dtype=dtype_name(numbers),
        prefill=prefill,
        decode=decode,
        rounds=len(replicates[0].times_us),
        timings=tuple(timings),
        replicates=tuple(replicates),
        environment=environment,
        not_captured=not_captured,
    )


def run_rounds(
    models: Sequence[nn.Module], workloads: dict[str, Sequence[Workload]], seconds: float
) -> dict[str, np.ndarray]:
    """Return times [rounds, models] in µs of every workload, until the time is over."""
    draw = random.Random(SEED)
    rounds: dict[str, list[list[float]]] = {name: [] for name in workloads}
    number = 0
    start = time.monotonic()
    while number < WARM_UP_ROUNDS + FEWEST_ROUNDS or time.monotonic() - start < seconds:
        if number == WARM_UP_ROUNDS:
            start = time.monotonic()
        move_weights(models, draw)
        for name in draw.sample(list(workloads), len(workloads)):
            row = [0.0] * len(models)
            for column in draw.sample(range(len(models)), len(models)):
                row[column] = workloads[name][column].time_us()
            rounds[name].append(row)
        number += 1
    return {name: np.array(rows[WARM_UP_ROUNDS:]) for name, rows in rounds.items()}


def move_weights(models: Sequence[nn.Module], draw: random.Random) -> None:
    """Copy all parameters on the CPU to other memory, in random order.

    Addresses decide which weights share a line of a cache: of equal models one may decode 2 %
    slower for as long as its weights stay where they are.
    """
    parameters = chain.from_iterable(model.parameters() for model in models)
    # A GPU's stay: a captured graph reads them where they were. A GPU hashes addresses over its
    # caches; what is left of their effect is in the difference of the replicate.
    on_cpu = [parameter for parameter in parameters if parameter.device.type == "cpu"]
    for parameter in draw.sample(on_cpu, len(on_cpu)):
        parameter.data = parameter.data.clone()


def compare(names: Sequence[str], workload: str, times_us: np.ndarray) -> list[Timing]:
    """Return the models' timings and last the replicate's, from times [rounds, columns]. Models
    are compared with the mean of the first and its replicate, the replicate with the first."""
    # In logs a model twice as fast and one twice as slow are equally far from 1
    logs = np.log(times_us)
    # Two runs of the reference: their mean has less noise than either
    reference = (logs[:, :1] + logs[:, -1:]) / 2
    ratios = logs - reference
    ratios[:, 0] = 0.0
    ratios[:, -1] = logs[:, -1] - logs[:, 0]
    replicate = mean_interval(ratios[:, -1])
    # A replicate that is surely slower is so by its place in memory, as any model may be.
    margin = max(np.log1p(MIN_DIFFERENCE), abs(replicate.low), abs(replicate.high))
    timings = []
    for column, name in enumerate([*names, f"{names[0]} (replicate)"]):
        ratio = mean_interval(ratios[:, column])
        verdict: BenchVerdict = "undecided"
        if column == 0:
            verdict = "reference"
        elif ratio.high < -margin:
            verdict = "faster"
        elif ratio.low > margin:
            verdict = "slower"
        raw = tuple(times_us[:, column].tolist())
        latency = exponential(mean_interval(logs[:, column]))
        timings.append(Timing(name, workload, latency, exponential(ratio), verdict, raw))
    return timings


def mean_interval(values: np.ndarray) -> Interval:
    """Return the trimmed mean of one value a round, with Student's interval (Yuen's)."""
    mean = float(stats.trim_mean(values, TRIMMED))
    low, high = stats.mstats.trimmed_mean_ci(values, (TRIMMED, TRIMMED), alpha=1 - CONFIDENCE)
    return Interval(float(low), mean, float(high))


def exponential(interval: Interval) -> Interval:
    return Interval(*np.exp([interval.low, interval.value, interval.high]).tolist())
