"""The variants run as whole models: prefill and decode, eager and compiled.

The models of a group are interleaved in every round (:mod:`gacprof.evaluation.benchmark`), the
dense one first, as the reference. What runs out of time or memory is named and left for another
call.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama import Shape, inventory_of
from steps import Clock, SkippedError, read_json
from variants import DENSE, PLANNED, UNALIGNED, Variant

from gacprof.core import Progress
from gacprof.core.errors import GacprofError, MeasurementError, first_line
from gacprof.core.files import write_json
from gacprof.devices.device import open_device
from gacprof.devices.environment import free_bytes

if TYPE_CHECKING:
    import torch
    from torch import nn

    from gacprof.checkpoint.inventory import Inventory
    from gacprof.evaluation import BenchResult

FILE = "end_to_end.json"
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


class _TimeIsUpError(GacprofError):
    """Raised between two timings: a compilation can take longer than all the rest."""


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


class EndToEnd:
    """The timings of one survey, kept in ``end_to_end.json`` as they come."""

    def __init__(
        self,
        folder: Path,
        device: str,
        shape: Shape,
        variants: Sequence[Variant],
        clock: Clock,
        progress: Progress,
    ) -> None:
        self._path, self._device, self._variants = folder / FILE, device, variants
        self._clock, self._progress = clock, progress
        self.shape, self.note = fitting(device, shape, variants)
        self._sizes = [{"group": v.group, "name": v.name, "sizes": dict(v.sizes)} for v in variants]
        self.results: dict[str, dict[str, Any]] = {}
        self.problems: dict[str, str] = {}
        self._go_on()

    def _go_on(self) -> None:
        """Keep an earlier call's results, where it ran these very variants. Where it had memory
        for fewer layers these are fewer too, so that results stay comparable."""
        if not self._path.exists():
            return
        earlier = read_json(self._path)
        fewer = min(self.shape.layers, earlier["shape"]["layers"])
        shape = replace(self.shape, layers=fewer)
        if (earlier["variants"], earlier["shape"]) == (self._sizes, shape.as_dict()):
            self.shape, self.results = shape, dict(earlier["results"])

    def measure(self) -> str:
        """Time every run that is missing, then those with too few rounds, as time allows."""
        groups = list(dict.fromkeys(variant.group for variant in self._variants))
        wanted = list(runs(self.shape, groups))
        missing = [run for run in wanted if run.name not in self.results]
        short = [run for run in wanted if self._rounds(run) in range(1, ROUNDS)]
        for due in (missing, short):
            for group, mode in dict.fromkeys((run.group, run.mode) for run in due):
                self._group([run for run in due if (run.group, run.mode) == (group, mode)], wanted)
                self._save()
        self._save()
        left = [run.name for run in wanted if run.name not in self.results]
        if len(left) == len(wanted):
            raise SkippedError(f"nothing was measured: {next(iter(self.problems.values()))}")
        short = [run for run in wanted if self._rounds(run) in range(1, ROUNDS)]
        parts = [f"{len(wanted) - len(left)} of {len(wanted)} runs", self.note]
        parts += [f"{len(short)} have fewer than {ROUNDS} rounds"] if short else []
        parts += [f"not measured: {name}: {self.problems[name]}" for name in left]
        return "; ".join(filter(None, parts))

    def _rounds(self, run: Run) -> int:
        found = self.results.get(run.name)
        return int(found["bench"]["rounds"]) if found else 0

    def _save(self) -> None:
        absent = {name: why for name, why in self.problems.items() if name not in self.results}
        write_json(
            self._path,
            {"shape": self.shape.as_dict(), "variants": self._sizes, "results": self.results,
             "not_measured": absent},
        )  # fmt: skip

    def _group(self, todo: Sequence[Run], wanted: Sequence[Run]) -> None:
        """The runs of one group in one mode, on models that are built once for all of them."""
        import torch

        group, compiled = todo[0].group, todo[0].mode == "compiled"
        own = [v for v in self._variants if v.group == group]
        shape = self.shape
        if compiled:
            own = [v for v in own if v.name in COMPILED]
            shape = replace(shape, layers=min(shape.layers, shape.compiled_layers))
        models: list[nn.Module] = []
        try:
            if self._clock.is_up:
                raise _TimeIsUpError("the time was up")
            for variant in own:
                inventory = variant.inventory(shape)
                models.append(build(inventory, shape.dtype, self._device, *models[:1]))
            for run in todo:
                try:
                    timed = self._timed(run, models, len(wanted) - len(self.results))
                except (GacprofError, RuntimeError) as error:
                    self.problems[run.name] = first_line(error)
                    continue
                if timed.rounds >= self._rounds(run):
                    bench = renamed(timed, [variant.name for variant in own]).as_dict()
                    self.results[run.name] = {
                        "run": asdict(run), "layers": shape.layers, "bench": bench,
                    }  # fmt: skip
        except (GacprofError, RuntimeError) as error:  # the models themselves cannot be made
            self.problems.update({run.name: first_line(error) for run in todo})
        finally:
            models.clear()
            if compiled:
                torch.compiler.reset()
            gc.collect()
            open_device(self._device).close()  # gives their memory back

    def _timed(self, run: Run, models: list[nn.Module], runs_left: int) -> BenchResult:
        """The run's timings. Raises :class:`GacprofError` when the time is up before they are."""
        import torch
        from torch._dynamo import config

        from gacprof.evaluation import bench

        left = self._clock.left_s()
        if self._clock.is_up:
            raise _TimeIsUpError("the time was up")
        if run.mode == "compiled":
            torch.compiler.reset()  # each workload is compiled for its own lengths
            for model in models:
                model.compile()
        with config.patch(recompile_limit=RECOMPILE_LIMIT):
            return bench(
                models,
                tokens=(run.tokens,),
                decode_steps=run.decode_steps,
                batch=run.batch,
                device=self._device,
                rounds=ROUNDS,
                time_cap_s=None if left is None else left / max(1, runs_left),
                progress=self._advance,
            )

    def _advance(self, done: int, total: int, what: object) -> None:
        self._progress(done, total, what)
        left, budget = self._clock.left_s(), self._clock.budget_s
        if left is not None and budget is not None and done < total and left < -GRACE * budget:
            raise _TimeIsUpError("the time was up")


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
    from gacprof.evaluation import device_of

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
