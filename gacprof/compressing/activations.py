"""What layers are given and give, one layer at a time: inputs, hidden states, gradients.

``hidden-i`` [windows, tokens, hidden] is what layer i is given, ``hidden-L`` what the head is.

The backward pass: the forward pass has left what every layer was given. Beginning with the loss
behind the last layer, each layer is run once more, window by window, with the gradient of what it
gave; so again only one layer is in memory. The loss is the mean negative log-likelihood of a
window's tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from gacprof.compressing.layered import LayeredModel, batch_of
from gacprof.compressing.state import State
from gacprof.core.errors import CompressionError


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
    last: list[tuple[torch.Tensor, Seen]] = []

    def hook(name: str) -> object:
        def before(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            x = args[0]
            if last and last[0][0] is x and name not in seen:
                seen[name] = last[0][1]
            elif name not in seen:
                seen[name] = _nothing(x, moments)
            if not (last and last[0][0] is x and last[0][1] is seen[name]):
                seen[name].add(x)
                last[:] = [(x, seen[name])]

        return before

    handles = [m.register_forward_pre_hook(hook(n)) for n, m in modules.items()]  # type: ignore[arg-type]
    try:
        yield seen
    finally:
        last.clear()
        for handle in handles:
            handle.remove()


def _nothing(x: torch.Tensor, moments: bool) -> Seen:
    width = x.shape[-1]

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=x.device)

    return Seen(zeros(width), zeros(width), zeros(width, width) if moments else None)


def hidden(index: int, of: str = "hidden") -> str:
    """The file of what layer ``index`` is given."""
    return f"{of}-{index:05d}.npy"


def enter(model: LayeredModel, state: State, ids: torch.Tensor, of: str = "hidden") -> None:
    """Record how layers are called; write what the first is given, unless a later file is there."""
    if any(state.has(hidden(i, of)) for i in range(len(model.layers) + 1)):
        model.record(ids)
        return
    shape = (*ids.shape, model.hidden_size)
    with state.new_array(hidden(0, of), shape) as target:
        done = 0
        for batch in model.embed(ids):
            target[done : done + len(batch)] = batch.float().cpu().numpy()
            done += len(batch)


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
    step = batch_of(source.shape[1])
    with (
        torch.no_grad(),
        watching(watched, moments) as seen,
        state.new_array(hidden(index + 1, of), source.shape) as target,
    ):
        for start in range(0, len(source), step):
            x = window(source, start, step, model.device)
            y = model.run(index, layer, x)
            if y.shape != x.shape:
                raise CompressionError(
                    f"{model.layers[index]} is no decoder layer that is known here: it turns "
                    f"{list(x.shape)} into {list(y.shape)}"
                )
            target[start : start + step] = y.float().cpu().numpy()
    return seen


def window(source: object, start: int, step: int, device: torch.device) -> torch.Tensor:
    """Windows from ``start`` on of a file of hidden states."""
    import numpy as np

    part = np.array(source[start : start + step])  # type: ignore[index]
    return torch.from_numpy(part).to(device)


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
