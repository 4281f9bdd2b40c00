"""The backward pass over the calibration text, one layer in memory at a time.

The forward pass has left what every layer was given. Beginning with the loss behind the last layer,
each layer is run once more with the gradient of what it gave. What is gathered of its modules goes
to the caller at once, so that no layer's statistics are kept on disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from gacprof.core.errors import CompressionError
from gacprof.core.tasks import Tasks
from gacprof.extras.compress.activations import Seen, add_seen, hidden, watching, window, write
from gacprof.extras.compress.layered import (
    Call,
    LayeredModel,
    batch_of,
    refuse_infinite,
    run_layer,
    window_loss,
)
from gacprof.extras.compress.state import Work

FILE = "gradients-{:05d}.safetensors"
"""Scores of a layer's weights."""

LARGEST = 32768
"""Of more outputs than these only the mean square of their gradients is kept: the matrix of a
head over a vocabulary would take 4 GiB and more."""


@dataclass
class Slopes:
    """Of the gradients g of the loss by a module's outputs, over its tokens: Σ g·gᵀ [out, out], or
    None where only its trace is wanted. The loss is summed over a window's tokens."""

    trace: torch.Tensor
    moments: torch.Tensor | None
    outputs: int
    tokens: int

    @classmethod
    def of(cls, slope: torch.Tensor, whole: bool) -> Slopes:
        rows = slope.reshape(-1, slope.shape[-1])
        moments = rows.T @ rows if whole and rows.shape[1] <= LARGEST else None
        return cls(rows.square().sum(dtype=torch.float64), moments, rows.shape[1], len(rows))

    def add(self, batch: Slopes) -> None:
        self.tokens += batch.tokens
        self.trace += batch.trace
        if self.moments is not None and batch.moments is not None:
            self.moments += batch.moments

    def covariance(self, where: str) -> torch.Tensor:
        """The mean of g·gᵀ over tokens [out, out]; one number c for c·I where the trace is known
        alone. Raises :class:`CompressionError` for gradients that are not finite."""
        if not torch.isfinite(self.trace):
            raise CompressionError(
                f"the gradients of the outputs of '{where}' are not finite on the calibration "
                "text: take a method and an objective that need none (svd-llm, energy)"
            )
        if self.moments is None:
            return self.trace / (self.tokens * self.outputs)
        return self.moments / self.tokens


class Sums:
    """Of one weight: Σ over windows of g and of g², and Σ |∂L/∂h·h| by row; L is the mean over a
    window's tokens."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight.detach()
        self.gradient, self.squares = torch.zeros_like(weight), torch.zeros_like(weight)
        self.outputs = torch.zeros(len(weight), device=weight.device)

    def add(self, gradient: torch.Tensor, slope: torch.Tensor, output: torch.Tensor) -> None:
        """One window: the gradients by the weight and by the ``output`` h."""
        self.gradient += gradient
        self.squares += gradient.square()
        self.outputs += (slope * output.detach()).abs().flatten(0, -2).sum(0)

    def results(self, windows: int) -> dict[str, torch.Tensor]:
        taylor = (self.weight * self.gradient).abs()
        return {
            "taylor_rows": taylor.sum(1),
            "taylor_columns": taylor.sum(0),
            "fisher_rows": (self.squares / windows).sqrt().sum(1),
            "gradient_rows": self.outputs / windows,
        }


@dataclass(frozen=True)
class Gather:
    """What is gathered: the ``scores`` of weights, ``inputs``' moments, and of the gradients of
    ``outputs`` their mean square (``trace``) or their covariance (``whole``)."""

    scores: bool = False
    inputs: bool = False
    outputs: Literal["", "trace", "whole"] = ""


@dataclass
class Found:
    """What was gathered of a layer, by target name; ``scores`` by name and kind."""

    scores: dict[str, torch.Tensor] = field(default_factory=dict)
    seen: dict[str, Seen] = field(default_factory=dict)
    slopes: dict[str, Slopes] = field(default_factory=dict)

    def add(self, seen: Mapping[str, Seen], slopes: Mapping[str, Slopes]) -> None:
        """Of one batch."""
        add_seen(self.seen, seen)
        for name, one in slopes.items():
            if name in self.slopes:
                self.slopes[name].add(one)
            else:
                self.slopes[name] = one


Take = Callable[[int, Found, Sequence[str]], None]


def back_through(
    model: LayeredModel,
    work: Work,
    watched: Sequence[Mapping[str, str]],
    gather: Gather,
    is_done: Callable[[int], bool],
    take: Take,
) -> None:
    """Give what is found of every layer to ``take``, the head (index L) first; ``watched`` are a
    layer's modules by target name.

    ``take`` also gets the files that nothing needs once the layer's results are saved. A layer
    below which a pass has been, and that ``is_done``, is not run again.
    """
    last, state = len(model.layers), work.state
    there = (i for i in range(last + 1) if state.has(hidden(i, "gradient")))
    lowest = min(there, default=last + 1)
    for index in reversed(range(last + 1)):
        spent = hidden(index), hidden(index + 1, "gradient")
        if lowest <= index and is_done(index):
            for file in spent:
                state.drop(file)
            continue
        if index == last:
            found = _loss(model, work, watched[index], gather)
        else:
            work.tell(f"gradients of layer {index + 1} of {last}")
            with model.holding(index) as layer:
                found = _layer_back(model, work, index, layer, watched[index], gather)
        take(index, found, spent)


def _loss(model: LayeredModel, work: Work, heads: Mapping[str, str], gather: Gather) -> Found:
    """Write the gradient of each window's mean loss by what the last layer gave."""
    index, ids = len(model.layers), work.ids
    source, found = work.state.array(hidden(index)), Found()
    modules = {name: model.model.get_submodule(path) for name, path in heads.items()}
    with (
        model.head() as logits,
        work.state.new_array(hidden(index, "gradient"), source.shape) as target,
    ):
        for i in range(len(source)):
            x = window(source, i, 1, model.device).requires_grad_(True)
            with watching(modules, gather.inputs) as seen, _outputs(modules) as outputs:
                loss = window_loss(logits, x, ids[i : i + 1])
            refuse_infinite(loss)
            slope, *own = torch.autograd.grad(loss, [x, *outputs.values()])
            target[i : i + 1] = slope.cpu().numpy()
            by_output = dict(zip(outputs, own, strict=True))
            found.add(seen, _slopes(by_output, ids.shape[1], gather))
    return found


def _layer_back(
    model: LayeredModel,
    work: Work,
    index: int,
    layer: nn.Module,
    watched: Mapping[str, str],
    gather: Gather,
) -> Found:
    """A batch of windows a task, added up in the text's order. Scores are of single windows, and
    the gradients by weights that they are made of stay in this process."""
    given, above = work.state.array(hidden(index)), work.state.array(hidden(index + 1, "gradient"))
    step = 1 if gather.scores else batch_of(given.shape[1])
    tasks = Tasks() if gather.scores else work.tasks
    starts, found, sums = range(0, len(given), step), Found(), dict[str, Sums]()
    if gather.scores:
        sums = {name: Sums(layer.get_parameter(f"{p}.weight")) for name, p in watched.items()}
    calls = (
        (layer, model.calls[index], watched, gather,
         *(window(each, at, step, model.device) for each in (given, above)))
        for at in starts
    )  # fmt: skip
    batches = tasks.in_order(_back, calls)
    with work.state.new_array(hidden(index, "gradient"), given.shape) as target:
        for at in starts:
            batch = next(batches)
            write(model, index, batch.slope, target, at)
            found.add(batch.seen, batch.slopes)
            for name, slopes in batch.by_weight.items():
                sums[name].add(*slopes)
            del batch  # before the next one is made
    found.scores = {
        f"{name}/{what}": value
        for name, one in sums.items()
        for what, value in one.results(len(given)).items()
    }
    return found


class Batch(NamedTuple):
    """What a batch of windows shows of a layer: the gradient by what it was given, ``seen`` and
    ``slopes`` of its modules, and where scores are gathered the gradients by each module's weight
    and output, and that output."""

    slope: torch.Tensor
    seen: dict[str, Seen]
    slopes: dict[str, Slopes]
    by_weight: dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def _back(
    layer: nn.Module,
    call: Call,
    watched: Mapping[str, str],
    gather: Gather,
    x: torch.Tensor,
    above: torch.Tensor,
) -> Batch:
    """Of the windows ``x``, by the gradient of what the layer gives. Needs its arguments alone."""
    modules: dict[str, Any] = {name: layer.get_submodule(path) for name, path in watched.items()}
    x.requires_grad_(True)
    with (
        _weights(modules if gather.scores else {}) as weights,
        watching(modules, gather.inputs) as seen,
        _outputs(modules) as outputs,
    ):
        y = run_layer(layer, call, x)
        by = [x, *outputs.values(), *(weights[name] for name in outputs if weights)]
        slope, *slopes = torch.autograd.grad(y, by, above)  # some experts do not run
    own = dict(zip(outputs, slopes, strict=False))
    by_weight = {
        name: (by_it, own[name], outputs[name].detach())
        for name, by_it in zip(outputs, slopes[len(outputs) :], strict=False)
    }
    return Batch(slope, seen, _slopes(own, x.shape[1], gather), by_weight)


def _slopes(own: Mapping[str, torch.Tensor], length: int, gather: Gather) -> dict[str, Slopes]:
    """Gradients of the mean loss by outputs, as those of the sum over a window's tokens."""
    return {
        name: Slopes.of(slope * (length - 1), gather.outputs == "whole")
        for name, slope in (own.items() if gather.outputs else ())
    }


@contextlib.contextmanager
def _weights(modules: Mapping[str, Any]) -> Iterator[dict[str, torch.Tensor]]:
    """The modules' weights, whose gradients are wanted within the block."""
    weights = {name: module.weight.requires_grad_(True) for name, module in modules.items()}
    try:
        yield weights
    finally:
        for weight in weights.values():
            weight.requires_grad_(False)


@contextlib.contextmanager
def _outputs(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, torch.Tensor]]:
    """By name what each module gave last."""
    outputs: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Any:
        return lambda module, args, output: outputs.update({name: output})

    hooks = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()
