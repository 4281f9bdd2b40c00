"""The variants run as whole models: prefill and decode, eager and compiled.

The models of a group are interleaved in every round (:mod:`gacprof.evaluation.benchmark`), the
dense one first, as the reference. What runs out of time or memory is named and left for another
call.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama import Shape, inventory_of
from steps import Clock, SkippedError, read_json
from variants import DENSE, PLANNED, UNALIGNED, Variant

from gacprof.core import Progress
from gacprof.core.errors import GacprofError, MeasurementError, first_line
from gacprof.core.files import write_json
from gacprof.devices.environment import free_bytes
from gacprof.devices.opening import open_device

if TYPE_CHECKING:
    import torch
    from torch import nn

    from gacprof.checkpoint.inventory import Inventory
    from gacprof.evaluation.summary import BenchResult

SHARED = ("model.embed_tokens", "lm_head")
"""What compression leaves alone, held once for all variants on a device."""
SEED = 0
ROUNDS = 12
GRACE = 0.05
"""Of the budget: how far a run that has begun may overrun it before it is given up."""
MEMORY_SHARE = 0.7
"""Of the free memory, for weights; the rest is for activations, caches and the compiler."""
RECOMPILE_LIMIT = 512
"""torch.compile falls back to eager, silently, after 8 shapes of one function: all variants
are one function."""
COMPILED = (DENSE, UNALIGNED, PLANNED)
"""The variants that are compiled: it takes many seconds a layer, and padding by hand is what
the compiler does itself."""


@dataclass(frozen=True)
class Run:
    """One workload of one group, eager or compiled: what one call of the bench times.

    Where ``decode_steps`` is not 0, decoding is what counts, after a prompt of ``tokens``.
    """

    group: str
    mode: str
    batch: int
    tokens: int
    decode_steps: int = 0

    @property
    def name(self) -> str:
        kind = "decode" if self.decode_steps else "prefill"
        return f"{self.group}, {self.mode}, {kind} {self.tokens}, batch {self.batch}"


def runs(shape: Shape, groups: Sequence[str]) -> Iterator[Run]:
    """Eager first for every group, then compiled: what is cut by time is the slowest to get."""
    modes = {"eager": shape.prefill, "compiled": shape.compiled_prefill}
    for mode, prefill in modes.items():
        if mode == "compiled" and not shape.compiled_layers:
            return
        for group in groups:
            for length in prefill:
                yield Run(group, mode, 1, length)
            for batch in shape.decode_batches:
                yield Run(group, mode, batch, shape.prompt, shape.decode_steps)


@dataclass
class EndToEnd:
    """The runs of some variants. What the bench gave for each is a file of its own in ``folder``,
    from which :func:`results` reads it."""

    folder: Path
    device: str
    shape: Shape
    variants: Sequence[Variant]
    clock: Clock
    progress: Progress
    problems: dict[str, str] = field(default_factory=dict)

    def measure(self) -> str:
        """Time every run that is missing, then those with too few rounds, as time allows."""
        self.shape, note = fitting(self.device, self.shape, self.variants)
        wanted = list(runs(self.shape, list(dict.fromkeys(v.group for v in self.variants))))
        rounds = {run: self._rounds(run) for run in wanted}
        missing = [run for run in wanted if not rounds[run]]
        short = [run for run in wanted if 0 < rounds[run] < ROUNDS]
        left = len(missing) + len(short)
        for due in (missing, short):  # what is not there at all comes before what is thin
            for group, mode in dict.fromkeys((run.group, run.mode) for run in due):
                todo = [run for run in due if (run.group, run.mode) == (group, mode)]
                self._group(todo, left)
                left -= len(todo)
        rounds = {run: self._rounds(run) for run in wanted}
        if not any(rounds.values()):
            raise SkippedError(f"nothing was measured: {next(iter(self.problems.values()))}")
        parts = [f"{sum(map(bool, rounds.values()))} of {len(wanted)} runs", note]
        thin = sum(0 < count < ROUNDS for count in rounds.values())
        parts += [f"{thin} have fewer than {ROUNDS} rounds"] if thin else []
        parts += [f"not measured: {run}: {self.problems[run]}" for run in self.problems]
        return "; ".join(filter(None, parts))

    def _file(self, run: Run) -> Path:
        return self.folder / f"{run.name.replace(', ', '_').replace(' ', '-')}.json"

    def _rounds(self, run: Run) -> int:
        path = self._file(run)
        return int(read_json(path, "bench")["bench"]["rounds"]) if path.exists() else 0

    def _group(self, todo: Sequence[Run], left: int) -> None:
        """The runs of one group in one mode, on models that are built once for all of them."""
        import torch

        group, compiled, shape = todo[0].group, todo[0].mode == "compiled", self.shape
        own = [v for v in self.variants if v.group == group]
        if compiled:
            own = [v for v in own if v.name in COMPILED]
            shape = replace(shape, layers=min(shape.layers, shape.compiled_layers))
        models: list[nn.Module] = []
        try:
            self._check_time()
            for variant in own:
                inventory = variant.inventory(shape)
                models.append(build(inventory, shape.dtype, self.device, *models[:1]))
            for i, run in enumerate(todo):
                try:
                    timed = renamed(self._timed(run, models, left - i), [v.name for v in own])
                except (GacprofError, RuntimeError) as error:
                    self.problems[run.name] = first_line(error)
                    continue
                if timed.rounds >= self._rounds(run):
                    plain = {"run": asdict(run), "layers": shape.layers, "bench": timed.as_dict()}
                    write_json(self._file(run), plain)
        except (GacprofError, RuntimeError) as error:  # the models themselves cannot be made
            self.problems.update({run.name: first_line(error) for run in todo})
        finally:
            models.clear()
            if compiled:
                torch.compiler.reset()
            gc.collect()
            open_device(self.device).close()  # gives their memory back

    def _timed(self, run: Run, models: list[nn.Module], left: int) -> BenchResult:
        """The run's timings. Raises :class:`GacprofError` when the time is up before they are."""
        import torch
        from torch._dynamo import config

        from gacprof.evaluation import bench

        self._check_time()
        if run.mode == "compiled":
            torch.compiler.reset()  # each workload is compiled for its own lengths
            for model in models:
                model.compile()
        left_s = self.clock.left_s()
        with config.patch(recompile_limit=RECOMPILE_LIMIT):
            return bench(
                models,
                tokens=(run.tokens,),
                decode_steps=run.decode_steps,
                batch=run.batch,
                device=self.device,
                rounds=ROUNDS,
                time_cap_s=None if left_s is None else left_s / left,
                progress=self._advance,
            )

    def _advance(self, done: float, total: float, what: object) -> None:
        """A compilation can take longer than all the rest: the clock is looked at between two
        timings too."""
        self.progress(done, total, what)
        if done < total:
            self._check_time(GRACE)

    def _check_time(self, grace: float = 0.0) -> None:
        left_s, budget_s = self.clock.left_s(), self.clock.budget_s
        if left_s is not None and budget_s is not None and left_s <= -grace * budget_s:
            raise MeasurementError("the time was up")


def results(folder: Path) -> list[dict[str, Any]]:
    """``run``, ``layers`` and ``bench`` of every run that was timed."""
    return [read_json(path, "run", "layers", "bench") for path in sorted(folder.glob("*.json"))]


def fitting(device: str, shape: Shape, variants: Sequence[Variant]) -> tuple[Shape, str]:
    """As many layers as the variants of one group may have together in the free memory, and a
    note where these are fewer.

    Raises :class:`MeasurementError` where not even one layer fits.
    """
    free = free_bytes(device)
    if free is None:
        return shape, ""
    ends = 2 * shape.vocabulary * shape.hidden
    together = {v.group: 0 for v in variants}
    for v in variants:
        together[v.group] += v.parameters - ends
    layer = max(together.values()) / shape.layers
    fit = min(shape.layers, int((MEMORY_SHARE * free / shape.itemsize - ends) / layer))
    if fit < 1:
        needed = (ends + layer) * shape.itemsize / MEMORY_SHARE
        raise MeasurementError(
            f"{free / 1e9:.1f} GB are free on {device}, one layer of every variant of "
            f"{shape.scale} needs {needed / 1e9:.1f}"
        )
    if fit == shape.layers:
        return shape, ""
    dense = (inventory_of(shape, {}).parameters - ends) * shape.itemsize
    return (
        replace(shape, layers=fit),
        f"{fit} of {shape.layers} layers: {free / 1e9:.1f} GB are free, dense alone is "
        f"{dense / 1e9:.1f} GB",
    )


def build(
    inventory: Inventory, dtype: str, device: str, like: nn.Module | None = None
) -> nn.Module:
    """The model of ``inventory`` with random weights, ready to run; embedding and head are those
    of ``like``.

    Raises :class:`CheckpointError` where transformers cannot build it; torch's out-of-memory
    error passes through.
    """
    import torch
    from torch import nn

    from gacprof.checkpoint.load import dtype_of
    from gacprof.checkpoint.skeleton import build_skeleton
    from gacprof.evaluation.models import device_of

    where, numbers = device_of(device), dtype_of(dtype)
    model, _ = build_skeleton(inventory, numbers)
    if like is not None:
        for name in SHARED:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, like.get_submodule(name))
    draw = torch.Generator(where).manual_seed(SEED)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.is_meta:
                made = _weights(parameter.shape, numbers, where, draw)
                setattr(module, name, nn.Parameter(made, requires_grad=False))
    return model.to(where).eval()


def _weights(
    shape: torch.Size, dtype: torch.dtype, device: torch.device, draw: torch.Generator
) -> torch.Tensor:
    """Normal, of a scale that keeps activations finite; a norm's weights are ones."""
    import torch

    made = torch.empty(shape, dtype=dtype, device=device)
    if len(shape) < 2:
        return made.fill_(1)
    return made.normal_(0, float(shape[-1]) ** -0.5, generator=draw)


def renamed(result: BenchResult, names: Sequence[str]) -> BenchResult:
    """The same result with the models called by the variants' names."""
    new = dict(zip(result.models, names, strict=True))
    timings = tuple(replace(timing, model=new[timing.model]) for timing in result.timings)
    return replace(result, models=tuple(names), timings=timings, sources=())
