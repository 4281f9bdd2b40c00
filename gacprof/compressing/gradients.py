"""First-order information of every weight, from one pass back over the layers.

The forward pass has left what every layer was given. Beginning with the loss behind the last
layer, each layer is run once more, window by window, with the gradient of what it gave; so again
only one layer is in memory. The loss is the mean negative log-likelihood of a window's tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from gacprof.compressing.forward import hidden, window
from gacprof.compressing.layered import LayeredModel
from gacprof.compressing.state import State
from gacprof.core.errors import CompressionError

FILE = "gradients-{:05d}.safetensors"

Tell = Callable[[str], None]


@dataclass
class _Sums:
    """Of one weight: Σ over windows of g and of g², and Σ |∂L/∂h·h| by row."""

    gradient: torch.Tensor
    squares: torch.Tensor
    outputs: torch.Tensor
    windows: int = field(default=0)

    def results(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        taylor = (weight * self.gradient).abs()
        return {
            "taylor_rows": taylor.sum(1),
            "taylor_columns": taylor.sum(0),
            "fisher_rows": (self.squares / self.windows).sqrt().sum(1),
            "gradient_rows": self.outputs / self.windows,
        }


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


def _layer_back(
    model: LayeredModel, state: State, index: int, layer: nn.Module, watched: Mapping[str, str]
) -> dict[str, torch.Tensor]:
    given, above = state.array(hidden(index)), state.array(hidden(index + 1, "gradient"))
    modules = {name: layer.get_submodule(path) for name, path in watched.items()}
    weights = [_weight(module).requires_grad_(True) for module in modules.values()]
    sums = [
        _Sums(torch.zeros_like(w), torch.zeros_like(w), torch.zeros(len(w), device=w.device))
        for w in weights
    ]
    outputs: dict[str, torch.Tensor] = {}
    hooks = [module.register_forward_hook(_keep(outputs, name)) for name, module in modules.items()]
    try:
        with state.new_array(hidden(index, "gradient"), given.shape) as target:
            for i in range(len(given)):
                x = window(given, i, 1, model.device).requires_grad_(True)
                outputs.clear()
                y = model.run(index, layer, x)
                ran = [j for j, name in enumerate(modules) if name in outputs]  # some experts not
                gave = [outputs[name] for name in modules if name in outputs]
                slope, *slopes = torch.autograd.grad(
                    y, [x, *(weights[j] for j in ran), *gave], window(above, i, 1, model.device)
                )
                target[i : i + 1] = slope.cpu().numpy()
                _add([sums[j] for j in ran], slopes[: len(ran)], slopes[len(ran) :], gave)
        for one in sums:
            one.windows = len(given)
    finally:
        for hook in hooks:
            hook.remove()
        for weight in weights:
            weight.requires_grad_(False)
    return {
        f"{name}/{what}": value
        for name, one, weight in zip(modules, sums, weights, strict=True)
        for what, value in one.results(weight.detach()).items()
    }


def _keep(outputs: dict[str, torch.Tensor], name: str) -> Callable[..., None]:
    def after(module: nn.Module, args: object, output: torch.Tensor) -> None:
        outputs[name] = output

    return after


def _add(
    sums: Sequence[_Sums],
    gradients: Sequence[torch.Tensor],
    slopes: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
) -> None:
    """Add one window."""
    for one, gradient, slope, output in zip(sums, gradients, slopes, outputs, strict=True):
        one.gradient += gradient
        one.squares += gradient.square()
        one.outputs += (slope * output.detach()).abs().flatten(0, -2).sum(0)


def _weight(module: nn.Module) -> torch.Tensor:
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return weight
