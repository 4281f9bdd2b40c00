"""What layers are given and give, one layer at a time: inputs, hidden states, gradients.

``hidden-i`` [windows, tokens, hidden] is what layer i is given, ``hidden-L`` what the head is.

The backward pass: the forward pass has left what every layer was given. Beginning with the loss
behind the last layer, each layer is run once more, window by window, with the gradient of what it
gave; so again only one layer is in memory. The loss is the mean negative log-likelihood of a
window's tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from gacprof.core.errors import CompressionError
from gacprof.extras.compress.layered import LayeredModel, batch_of
from gacprof.extras.compress.state import State, Tell


@dataclass
class Seen:
    """Of a layer's inputs x over all tokens: Σ |xᵢ|, Σ xᵢ² and, where asked for, Σ x·xᵀ."""

    absolute: torch.Tensor
    squares: torch.Tensor
    moments: torch.Tensor | None
    tokens: int = 0

    def add(self, x: torch.Tensor) -> None:
        rows = x.reshape(-1, x.shape[-1])
        self.tokens += len(rows)
        self.absolute += rows.abs().sum(0).double()
        self.squares += rows.square().sum(0).double()
        if self.moments is not None:
            self.moments += (rows.T @ rows).double()

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
    """By name what each module was given within the block. Modules that are given the very same
    tensor (q, k and v) share one entry: it is counted once."""
    seen: dict[str, Seen] = {}
    last: list[Any] = [None, None]  # the tensor counted last, and its entry

    def hook(name: str) -> Any:
        def before(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            x = args[0]
            same = last[1] if last[0] is x else None
            if name not in seen:
                seen[name] = same or _nothing(x, moments)
            if seen[name] is not same:
                seen[name].add(x)
                last[:] = x, seen[name]

        return before

    handles = [m.register_forward_pre_hook(hook(n)) for n, m in modules.items()]
    try:
        yield seen
    finally:
        last.clear()
        for handle in handles:
            handle.remove()


def _nothing(x: torch.Tensor, moments: bool) -> Seen:
    width = x.shape[-1]
    zeros = x.new_zeros(width, dtype=torch.float64)
    return Seen(zeros, zeros.clone(), zeros.new_zeros(width, width) if moments else None)


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


def pass_on(
    model: LayeredModel,
    state: State,
    index: int,
    layer: nn.Module,
    watched: Mapping[str, nn.Module],
    moments: bool,
    of: str = "hidden",
) -> dict[str, Seen]:
    """Run all windows through a layer; returns what the ``watched`` modules were given."""
    source = state.array(hidden(index, of))
    with (
        watching(watched, moments) as seen,
        state.new_array(hidden(index + 1, of), source.shape) as target,
    ):
        run_all(model, index, layer, source, target)
    return seen


@torch.no_grad()
def run_all(
    model: LayeredModel, index: int, layer: nn.Module, source: Any, target: Any, at: int = 0
) -> int:
    """Run all windows of ``source`` through a layer into ``target`` from ``at`` on; returns where
    they end there."""
    step = batch_of(source.shape[1])
    for start in range(0, len(source), step):
        x = window(source, start, step, model.device)
        y = model.run(index, layer, x)
        if y.shape != x.shape:
            raise CompressionError(
                f"{model.layers[index]} is no decoder layer that is known here: it turns "
                f"{list(x.shape)} into {list(y.shape)}"
            )
        target[at + start : at + start + len(y)] = y.float().cpu().numpy()
    return at + len(source)


def window(source: Any, start: int, step: int, device: torch.device) -> torch.Tensor:
    """Windows from ``start`` on of a file of hidden states."""
    return torch.from_numpy(np.array(source[start : start + step])).to(device)


FILE = "gradients-{:05d}.safetensors"


def back_through(
    model: LayeredModel,
    state: State,
    ids: torch.Tensor,
    watched: Sequence[Mapping[str, str]],
    tell: Tell,
) -> None:
    """Write ``gradients-i`` for every layer; ``watched`` are a layer's modules by target name.

    Files of hidden states and of gradients go as soon as no layer needs them any more.
    """
    last = len(model.layers)
    begun = next((i for i in range(last) if state.has(FILE.format(i))), last)
    if begun == last and not state.has(hidden(last, "gradient")):
        _loss(model, state, ids)
    for index in reversed(range(begun)):
        tell(f"gradients of layer {index}")
        with model.holding(index) as layer:
            found = _layer_back(model, state, index, layer, watched[index])
        state.save(FILE.format(index), found)
        state.drop(hidden(index + 1))
        state.drop(hidden(index + 1, "gradient"))


def _loss(model: LayeredModel, state: State, ids: torch.Tensor) -> None:
    """Write the gradient of each window's loss by what the last layer gave."""
    source = state.array(hidden(len(model.layers)))
    with (
        model.head() as logits,
        state.new_array(hidden(len(model.layers), "gradient"), source.shape) as target,
    ):
        for i in range(len(source)):
            x = window(source, i, 1, model.device).requires_grad_(True)
            found = logits(x, ids[i : i + 1])[0, :-1].float()
            loss = nn.functional.cross_entropy(found, ids[i, 1:].to(model.device))
            if not torch.isfinite(loss):
                raise CompressionError(
                    "the loss on the calibration text is not finite: the model overflows, or its "
                    "weights hold NaN"
                )
            (slope,) = torch.autograd.grad(loss, x)
            target[i : i + 1] = slope.cpu().numpy()


class _Sums:
    """Of one weight: Σ over windows of g and of g², and Σ |∂L/∂h·h| by row."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.gradient, self.squares = torch.zeros_like(weight), torch.zeros_like(weight)
        self.outputs = torch.zeros(len(weight), device=weight.device)

    def add(self, gradient: torch.Tensor, slope: torch.Tensor, output: torch.Tensor) -> None:
        """One window: the gradients by the weight and by the ``output`` h."""
        self.gradient += gradient
        self.squares += gradient.square()
        self.outputs += (slope * output.detach()).abs().flatten(0, -2).sum(0)

    def results(self, weight: torch.Tensor, windows: int) -> dict[str, torch.Tensor]:
        taylor = (weight * self.gradient).abs()
        return {
            "taylor_rows": taylor.sum(1),
            "taylor_columns": taylor.sum(0),
            "fisher_rows": (self.squares / windows).sqrt().sum(1),
            "gradient_rows": self.outputs / windows,
        }


def _layer_back(
    model: LayeredModel, state: State, index: int, layer: nn.Module, watched: Mapping[str, str]
) -> dict[str, torch.Tensor]:
    given, above = state.array(hidden(index)), state.array(hidden(index + 1, "gradient"))
    modules: dict[str, Any] = {name: layer.get_submodule(path) for name, path in watched.items()}
    weights = {name: module.weight.requires_grad_(True) for name, module in modules.items()}
    sums = {name: _Sums(weight) for name, weight in weights.items()}
    outputs: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Any:
        return lambda module, args, output: outputs.update({name: output})

    hooks = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
    try:
        with state.new_array(hidden(index, "gradient"), given.shape) as target:
            for i in range(len(given)):
                x = window(given, i, 1, model.device).requires_grad_(True)
                outputs.clear()
                y = model.run(index, layer, x)
                ran = [name for name in modules if name in outputs]  # some experts do not
                by = [x, *(weights[name] for name in ran), *(outputs[name] for name in ran)]
                slopes = torch.autograd.grad(y, by, window(above, i, 1, model.device))
                target[i : i + 1] = slopes[0].cpu().numpy()
                for k, name in enumerate(ran, 1):
                    sums[name].add(slopes[k], slopes[k + len(ran)], outputs[name])
    finally:
        for hook in hooks:
            hook.remove()
        for weight in weights.values():
            weight.requires_grad_(False)
    return {
        f"{name}/{what}": value
        for name, one in sums.items()
        for what, value in one.results(weights[name].detach(), len(given)).items()
    }
