"""What layers are given and give, one layer at a time: statistics of inputs, and hidden states.

``hidden-i`` [windows, tokens, hidden] is what layer i is given, ``hidden-L`` what the head is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from gacprof.core.errors import CompressionError
from gacprof.core.files import write_json
from gacprof.extras.compress.layered import Call, LayeredModel, batch_of, run_layer
from gacprof.extras.compress.state import State, Work


@dataclass
class Seen:
    """Of a layer's inputs x over its tokens: Σ |xᵢ|, Σ xᵢ² and, where asked for, Σ x·xᵀ. Those of a
    batch are float32, their sum over batches is float64."""

    absolute: torch.Tensor
    squares: torch.Tensor
    moments: torch.Tensor | None
    tokens: int

    @classmethod
    def of(cls, x: torch.Tensor, moments: bool) -> Seen:
        rows = x.detach().reshape(-1, x.shape[-1])
        products = rows.T @ rows if moments else None
        return cls(rows.abs().sum(0), rows.square().sum(0), products, len(rows))

    def total(self) -> Seen:
        """The same as a sum that others can be added to."""
        moments = None if self.moments is None else self.moments.double()
        return Seen(self.absolute.double(), self.squares.double(), moments, self.tokens)

    def add(self, batch: Seen) -> None:
        self.tokens += batch.tokens
        self.absolute += batch.absolute
        self.squares += batch.squares
        if self.moments is not None and batch.moments is not None:
            self.moments += batch.moments

    def as_mapping(self, where: str) -> dict[str, torch.Tensor]:
        """``magnitude`` (mean |x|), ``moments``, ``norm`` (‖X‖_F).

        Raises :class:`CompressionError` for values that are not finite.
        """
        if not torch.isfinite(self.squares).all():
            raise CompressionError(
                f"the inputs of '{where}' are not finite on the calibration text: the model "
                "overflows, or its weights hold NaN"
            )
        found = {"magnitude": self.absolute / self.tokens, "norm": self.squares.sum().sqrt()}
        return found if self.moments is None else found | {"moments": self.moments}


@contextlib.contextmanager
def watching(modules: Mapping[str, nn.Module], moments: bool) -> Iterator[dict[str, Seen]]:
    """By name what each module was given within the block: one batch. Modules that are given the
    very same tensor (q, k and v) share one entry."""
    seen: dict[str, Seen] = {}
    last: list[Any] = [None, None]  # the tensor looked at last, and its entry

    def hook(name: str) -> Any:
        def before(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            if last[0] is not args[0]:
                last[:] = args[0], Seen.of(args[0], moments)
            if name in seen:  # called more than once
                seen[name] = seen[name].total()
                seen[name].add(last[1])
            else:
                seen[name] = last[1]

        return before

    handles = [m.register_forward_pre_hook(hook(n)) for n, m in modules.items()]
    try:
        yield seen
    finally:
        last.clear()
        for handle in handles:
            handle.remove()


def add_seen(totals: dict[str, Seen], batch: Mapping[str, Seen]) -> None:
    """Add what a batch showed. What modules share in it they share in the sum, counted once."""
    counted: dict[int, Seen] = {}
    for name, one in batch.items():
        same = counted.get(id(one))
        if name not in totals:
            totals[name] = same or one.total()
        elif totals[name] is not same:
            totals[name].add(one)
        counted[id(one)] = totals[name]


FORWARD = "forward.json"
"""Says that all layers were run."""


def hidden(index: int, of: str = "hidden") -> str:
    """The file of what layer ``index`` is given."""
    return f"{of}-{index:05d}.npy"


def reached(model: LayeredModel, state: State, of: str = "hidden") -> int:
    """The last layer whose input is there (the head counts as one); −1 where none is."""
    there = (i for i in range(len(model.layers) + 1) if state.has(hidden(i, of)))
    return max(there, default=-1)


def enter(model: LayeredModel, state: State, ids: torch.Tensor, of: str = "hidden") -> int:
    """Record how layers are called; write what the first is given, unless a later file is there.
    Returns the first layer whose output is not there."""
    begun = reached(model, state, of)
    if begun >= 0:
        model.record(ids)
        return begun
    with state.new_array(hidden(0, of), (*ids.shape, model.hidden_size)) as target:
        done = 0
        for batch in model.embed(ids):
            target[done : done + len(batch)] = batch.float().cpu().numpy()
            done += len(batch)
    return 0


def pass_through(model: LayeredModel, work: Work) -> None:
    """Run the text through all layers, unless an earlier try has; what each is given stays."""
    state, ids = work.state, work.ids
    if state.has(FORWARD):
        model.record(ids)
        return
    for index in range(enter(model, state, ids), len(model.layers)):
        work.tell(f"layer {index + 1} of {len(model.layers)}")
        with model.holding(index) as layer:
            pass_on(model, work, index, layer)
    write_json(state.path(FORWARD), {})


def pass_on(
    model: LayeredModel,
    work: Work,
    index: int,
    layer: nn.Module,
    watched: Mapping[str, str] | None = None,
    moments: bool = False,
) -> dict[str, Seen]:
    """Run all windows through a layer, a batch a task; returns what its ``watched`` modules (where
    they are in it, by name) were given."""
    source, seen = work.state.array(hidden(index)), dict[str, Seen]()
    starts = range(0, len(source), step := batch_of(source.shape[1]))
    calls = (
        (layer, model.calls[index], window(source, at, step, model.device), watched or {}, moments)
        for at in starts
    )
    batches = work.tasks.in_order(_run_batch, calls)
    with work.state.new_array(hidden(index + 1), source.shape) as target:
        for at in starts:
            y, batch = next(batches)
            write(model, index, y, target, at)
            add_seen(seen, batch)
            del y, batch  # before the next ones are made
    return seen


@torch.no_grad()
def _run_batch(
    layer: nn.Module, call: Call, x: torch.Tensor, watched: Mapping[str, str], moments: bool
) -> tuple[torch.Tensor, dict[str, Seen]]:
    """What a layer makes of a batch, and what its modules were given. Needs its arguments alone."""
    modules = {name: layer.get_submodule(path) for name, path in watched.items()}
    with watching(modules, moments) as seen:
        return run_layer(layer, call, x), seen


@torch.no_grad()
def run_all(
    model: LayeredModel, index: int, layer: nn.Module, source: Any, target: Any, at: int = 0
) -> int:
    """Run all windows of ``source`` through a layer into ``target`` from ``at`` on; returns where
    they end there."""
    step = batch_of(source.shape[1])
    for start in range(0, len(source), step):
        x = window(source, start, step, model.device)
        write(model, index, model.run(index, layer, x), target, at + start)
    return at + len(source)


def write(model: LayeredModel, index: int, y: torch.Tensor, target: Any, at: int) -> None:
    """Put what a layer made of a batch into a file of hidden states. Raises
    :class:`CompressionError` where that is none."""
    there = target[at : at + len(y)]
    if there.shape != y.shape:
        raise CompressionError(
            f"{model.layers[index]} is no decoder layer that is known here: it turns "
            f"{list(there.shape)} into {list(y.shape)}"
        )
    there[:] = y.float().cpu().numpy()


def window(source: Any, start: int, step: int, device: torch.device) -> torch.Tensor:
    """Windows from ``start`` on of a file of hidden states."""
    return torch.from_numpy(np.array(source[start : start + step])).to(device)
