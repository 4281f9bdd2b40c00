"""The backward pass over the calibration text, one layer in memory at a time.

The forward pass has left what every layer was given. Beginning with the loss behind the last layer,
each layer is run once more with the gradient of what it gave. What is gathered of its modules goes
to the caller at once, so that no layer's statistics are kept on disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from gacprof.core.errors import CompressionError
from gacprof.extras.compress.activations import Seen, hidden, watching, window
from gacprof.extras.compress.layered import LayeredModel, batch_of
from gacprof.extras.compress.state import State, Tell

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
    tokens: int = 0

    @classmethod
    def nothing(cls, slope: torch.Tensor, whole: bool) -> Slopes:
        n = slope.shape[-1]
        moments = slope.new_zeros(n, n) if whole and n <= LARGEST else None
        return cls(slope.new_zeros((), dtype=torch.float64), moments, n)

    def add(self, slope: torch.Tensor) -> None:
        rows = slope.reshape(-1, self.outputs)
        self.tokens += len(rows)
        self.trace += rows.square().sum(dtype=torch.float64)
        if self.moments is not None:
            self.moments.addmm_(rows.T, rows)

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
    seen: Mapping[str, Seen] = field(default_factory=dict)
    slopes: dict[str, Slopes] = field(default_factory=dict)


Take = Callable[[int, Found, Sequence[str]], None]


def back_through(
    model: LayeredModel,
    state: State,
    ids: torch.Tensor,
    watched: Sequence[Mapping[str, str]],
    gather: Gather,
    is_done: Callable[[int], bool],
    take: Take,
    tell: Tell,
) -> None:
    """Give what is found of every layer to ``take``, the head (index L) first; ``watched`` are a
    layer's modules by target name.

    ``take`` also gets the files that nothing needs once the layer's results are saved. A layer
    below which a pass has been, and that ``is_done``, is not run again.
    """
    last = len(model.layers)
    there = (i for i in range(last + 1) if state.has(hidden(i, "gradient")))
    lowest = min(there, default=last + 1)
    for index in reversed(range(last + 1)):
        spent = hidden(index), hidden(index + 1, "gradient")
        if lowest <= index and is_done(index):
            for file in spent:
                state.drop(file)
            continue
        if index == last:
            found = _loss(model, state, ids, watched[index], gather)
        else:
            tell(f"gradients of layer {index + 1} of {last}")
            with model.holding(index) as layer:
                found = _layer_back(model, state, index, layer, watched[index], gather)
        take(index, found, spent)


def _loss(
    model: LayeredModel,
    state: State,
    ids: torch.Tensor,
    heads: Mapping[str, str],
    gather: Gather,
) -> Found:
    """Write the gradient of each window's mean loss by what the last layer gave."""
    index = len(model.layers)
    source = state.array(hidden(index))
    modules = {name: model.model.get_submodule(path) for name, path in heads.items()}
    found = Found()
    with (
        model.head() as logits,
        watching(modules, gather.inputs) as found.seen,
        _outputs(modules) as outputs,
        state.new_array(hidden(index, "gradient"), source.shape) as target,
    ):
        for i in range(len(source)):
            x = window(source, i, 1, model.device).requires_grad_(True)
            scores = logits(x, ids[i : i + 1])[0, :-1].float()
            loss = nn.functional.cross_entropy(scores, ids[i, 1:].to(model.device))
            if not torch.isfinite(loss):
                raise CompressionError(
                    "the loss on the calibration text is not finite: the model overflows, or its "
                    "weights hold NaN"
                )
            slope, *own = torch.autograd.grad(loss, [x, *outputs.values()])
            target[i : i + 1] = slope.cpu().numpy()
            _add(found.slopes, dict(zip(outputs, own, strict=True)), ids.shape[1], gather)
    return found


def _layer_back(
    model: LayeredModel,
    state: State,
    index: int,
    layer: nn.Module,
    watched: Mapping[str, str],
    gather: Gather,
) -> Found:
    given, above = state.array(hidden(index)), state.array(hidden(index + 1, "gradient"))
    modules: dict[str, Any] = {name: layer.get_submodule(path) for name, path in watched.items()}
    sums = {name: Sums(m.weight) for name, m in modules.items()} if gather.scores else {}
    step = 1 if gather.scores else batch_of(given.shape[1])  # scores are of windows
    found = Found()
    with (
        _weights(modules if gather.scores else {}) as weights,
        watching(modules, gather.inputs) as found.seen,
        _outputs(modules) as outputs,
        state.new_array(hidden(index, "gradient"), given.shape) as target,
    ):
        for i in range(0, len(given), step):
            x = window(given, i, step, model.device).requires_grad_(True)
            outputs.clear()
            y = model.run(index, layer, x)
            ran = list(outputs)  # some experts do not
            by = [x, *outputs.values(), *(weights[name] for name in ran if weights)]
            slope, *slopes = torch.autograd.grad(y, by, window(above, i, step, model.device))
            target[i : i + step] = slope.cpu().numpy()
            own = dict(zip(ran, slopes, strict=False))
            _add(found.slopes, own, given.shape[1], gather)
            for k, name in enumerate(ran if weights else (), len(ran)):
                sums[name].add(slopes[k], own[name], outputs[name])
    found.scores = {
        f"{name}/{what}": value
        for name, one in sums.items()
        for what, value in one.results(len(given)).items()
    }
    return found


def _add(
    slopes: dict[str, Slopes], own: Mapping[str, torch.Tensor], length: int, gather: Gather
) -> None:
    """Gradients of the mean loss by outputs, as those of the sum over a window's tokens."""
    for name, slope in own.items() if gather.outputs else ():
        if name not in slopes:
            slopes[name] = Slopes.nothing(slope, gather.outputs == "whole")
        slopes[name].add(slope * (length - 1))


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
