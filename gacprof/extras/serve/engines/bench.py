"""Faster where it is served? The workloads of a bench, run by a real engine.

Every model lives in an engine's process of its own, all at the same time, and the reference once
more as a hidden A/A replicate: so that blocks of single calls are interleaved, in a fresh random
order, exactly as in :mod:`gacprof.evaluation.benchmark`, and the same fit and verdicts apply.

A prefill is the time to the first token of a prompt that no call had before. A decode call reads a
prompt untimed and gives the mean time of the tokens that follow. Batch 1.
"""

from __future__ import annotations

import filecmp
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gacprof.checkpoint import scan
from gacprof.core.errors import GacprofError, MeasurementError
from gacprof.core.files import read_bytes
from gacprof.core.points import Environment
from gacprof.core.request import verb
from gacprof.devices.environment import free_bytes
from gacprof.devices.opening import open_device
from gacprof.evaluation.benchmark import SEED, workloads_of
from gacprof.evaluation.models import distinct_names
from gacprof.evaluation.request import EngineBenchRequest
from gacprof.evaluation.summary import BenchResult, BenchSummary, Rounds
from gacprof.evaluation.workloads import BenchWorkload, CallTime, Clock, Runner
from gacprof.extras.serve.carried import seen_by_loader
from gacprof.extras.serve.engines.engine import (
    SPARE_POSITIONS,
    BenchEngine,
    EngineProcess,
    engine_of,
)


class EngineClock(Clock):
    """The engine takes the time itself, in its own process."""

    def __init__(self, engine: BenchEngine) -> None:
        super().__init__(torch.device("cpu"))
        self._engine = engine.name

    @property
    def name(self) -> str:
        return f"{self._engine}, in its process"


class EngineRunner(Runner):
    """One model at one workload, in an engine's process. Every call has a prompt of its own."""

    def __init__(
        self, process: EngineProcess, workload: BenchWorkload, vocabulary: int, steps: int
    ) -> None:
        self._process, self._workload, self._steps = process, workload, steps
        self._vocabulary = vocabulary
        self._draw = np.random.default_rng([SEED, workload.tokens])

    def call(self) -> CallTime:
        ids = self._draw.integers(self._vocabulary, size=self._workload.tokens).tolist()
        more = {"steps": self._steps} if self._workload.kind == "decode" else {}
        return CallTime(**self._process.ask(self._workload.kind, ids=ids, **more))

    def time(self, clock: Clock) -> CallTime:
        return self.call()


def _bench_engine(request: EngineBenchRequest) -> BenchResult:
    """Prefill at every length of ``tokens`` and decode after the shortest, by an engine.

    A round holds one call of each workload and model; a decode call is the mean of
    ``decode_steps`` tokens. Rounds and time cap as in :func:`gacprof.bench`.

    Raises :class:`MeasurementError` for an engine that is missing or refuses a model,
    :class:`CheckpointError` for a model in another format than the engine's.
    """
    models, engine, steps = request.models, request.engine, request.decode_steps
    setting, paths = _setting(models, engine, request)
    found, workloads = setting.engine, workloads_of(request.tokens, min(steps, 1), 1)
    names = distinct_names(list(map(str, models)))
    same = [path == paths[0] or _same_files(path, paths[0]) for path in paths]
    with setting.opened(paths, max(request.tokens) + steps) as processes:
        vocabulary = min(int(each.facts["vocabulary"]) for each in processes)
        runners = [
            [EngineRunner(each, workload, vocabulary, steps) for each in processes]
            for workload in workloads
        ]
        taken = Rounds(
            workloads, runners, EngineClock(found), request.rounds, request.time_cap_s,
            request.progress,
        )  # fmt: skip
        summary = BenchSummary(names, workloads, same, taken)
        taken.run(summary.decided)
    facts = processes[0].facts
    return BenchResult(
        models=names,
        sources=tuple(map(str, models)),
        parameters=tuple(map(_parameters, paths, processes)),
        dtype=facts["dtype"],
        batch=1,
        decode_steps=steps,
        rounds=taken.count,
        timings=summary.timings(),
        replicates=summary.replicates(),
        environment=_environment(found, facts),
        timer=f"timed by {engine}'s own process",
        notes=(*_conditions(setting, processes), *summary.notes()),
        engine=f"{engine} {facts['version']}",
    )


bench_engine = verb("bench_engine", EngineBenchRequest, _bench_engine)


@dataclass(frozen=True)
class _Setting:
    """How models are opened, the same for all."""

    engine: BenchEngine
    python: Path
    threads: int
    dtype: str | None
    trust: bool

    @contextmanager
    def opened(self, paths: Sequence[Path], positions: int) -> Iterator[list[EngineProcess]]:
        """A process for each model, and the last for the reference once more: the first one again
        where there is no room."""
        with ExitStack() as stack:
            processes = [self.one(stack, path, positions) for path in paths]
            first = processes[0]
            again = first if _no_room(first) else self.one(stack, paths[0], positions)
            yield [*processes, again]

    def one(self, stack: ExitStack, path: Path, positions: int) -> EngineProcess:
        """A model, and room for so many tokens and a few more.

        Raises :class:`MeasurementError` where the model has fewer positions (vLLM itself does)."""
        process = stack.enter_context(EngineProcess(self.engine, self.python, self.threads))
        if self.engine.format == "folder" and not self.trust:
            path = stack.enter_context(seen_by_loader(path))
        process.open(path, positions + SPARE_POSITIONS, self.dtype, self.trust)
        most = process.facts.get("positions") or positions
        if positions > most:
            raise MeasurementError(
                f"{path} has {most} positions: a prompt and its decode steps of {positions} tokens "
                "together do not fit; ask for fewer (--tokens, --decode-steps)"
            )
        return process


def _setting(
    models: Sequence[Any], engine: str, how: EngineBenchRequest
) -> tuple[_Setting, list[Path]]:
    """The engine, and what it loads of the models.

    Raises :class:`MeasurementError` for an engine that is not there, a dtype that it does not
    choose, and code that nobody has allowed.
    """
    found = engine_of(engine)
    dtype = None if how.dtype is None else str(how.dtype)
    interpreter, paths = found.python(how.python), [found.model(model) for model in models]
    for path in paths if found.format == "folder" and not how.trust_remote_code else ():
        config = read_bytes(path / "config.json").decode("utf-8", "replace")
        if '"auto_map"' in config:
            raise MeasurementError(
                f"{path} brings code of its own (auto_map in its config.json), and {engine} runs "
                "it with --trust-remote-code only; a folder of 'gacprof export' brings gacprof's"
            )
    if dtype is not None and found.format == "gguf":
        raise MeasurementError(f"{engine} computes in what the file holds: leave out the dtype")
    count = how.threads or len(os.sched_getaffinity(0))
    return _Setting(found, interpreter, count, dtype, how.trust_remote_code), paths


def _no_room(process: EngineProcess) -> bool:
    """Whether the reference cannot be held a second time, by what its process takes."""
    takes, free = process.ask("memory"), free_bytes("cpu")
    return takes is not None and free is not None and takes > free


def _same_files(a: Path, b: Path) -> bool:
    """The same bytes in all files: then no timing can tell the two apart."""
    if a.is_file() or b.is_file():
        return a.is_file() and b.is_file() and filecmp.cmp(a, b, shallow=False)
    mine, other = (sorted(f.name for f in folder.iterdir() if f.is_file()) for folder in (a, b))
    return mine == other and not any(filecmp.cmpfiles(a, b, mine, shallow=False)[1:])


def _parameters(path: Path, process: EngineProcess) -> int:
    """As the engine counts them, else as the headers do; 0 where neither can."""
    if process.facts.get("parameters"):
        return int(process.facts["parameters"])
    try:
        return scan(path).parameters
    except GacprofError:
        return 0


def _environment(engine: BenchEngine, facts: dict[str, Any]) -> Environment:
    where = open_device("cuda" if facts["device"] == "cuda" else "cpu").environment
    beneath: dict[str, str] = facts.get("beneath", {})
    return replace(where, stack={engine.name: facts["version"], **beneath})


def _conditions(setting: _Setting, processes: Sequence[EngineProcess]) -> Iterator[str]:
    """What was not as it should be, or was not asked for."""
    name, threads = setting.engine.name, setting.threads
    note = setting.engine.version_note(processes[0].facts["version"])
    if note:
        yield note
    used = {int(each.facts.get("threads", threads)) for each in processes}
    if used != {threads}:
        yield f"{threads} threads were asked for, {name} took {max(used)}"
    kinds = sorted({each.facts["dtype"] for each in processes})
    if len(kinds) > 1:
        yield f"the models are computed in different dtypes ({', '.join(kinds)})"
    if processes[-1] is processes[0]:
        yield (
            "the A/A replicate is the reference's own process (a second one has no room): what "
            "another process does to the time does not show in the A/A spread"
        )
