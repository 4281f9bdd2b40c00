"""Statistics of a calibration text: covariances of layers' inputs and of the gradients by outputs.

A backward pass begins behind the last layer and runs each layer again, with the gradient of what it
gave: one layer's weights and statistics are in memory at a time.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import nn

from gacprof.checkpoint.inventory import Inventory
from gacprof.compress.layered import LayeredModel, batch_size
from gacprof.core.errors import CheckpointError, ConfigError

WINDOWS = 32
LENGTH = 512  # 16,384 tokens: more than a layer of a small model has features, minutes on a CPU
# more of a text is not read than tokens of this many characters would need
CHARACTERS_PER_TOKEN = 16


class Covariance:
    """Sums over x [n] of ``count`` tokens: ``products`` Σ x·xᵀ, ``absolute`` Σ |x|."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.products = torch.zeros(size, size, dtype=torch.float64, device=device)
        self.absolute = torch.zeros(size, dtype=torch.float64, device=device)
        self.count = 0

    def add(self, x: torch.Tensor) -> None:
        """Add the vectors along the last axis of ``x``."""
        # a batch is summed in float32, batches in float64: over a text float32 would lose digits
        rows = x.detach().reshape(-1, x.shape[-1])
        self.products += rows.T @ rows
        self.absolute += rows.abs().sum(0)
        self.count += len(rows)

    @property
    def mean(self) -> torch.Tensor:
        """The mean of x·xᵀ [n, n]."""
        return self.products / self.count


@dataclass
class LayerStatistics:
    """The covariances of what one decoder layer's linear layers read, by module name, and of
    ∂loss/∂output, the loss being summed over tokens; an expert that no token reached has neither.
    ``layer``, whose names begin with ``prefix``, has its weights in memory."""

    index: int
    prefix: str
    layer: nn.Module
    inputs: dict[str, Covariance] = field(default_factory=dict)
    gradients: dict[str, Covariance] = field(default_factory=dict)


def forward_statistics(
    model: LayeredModel, ids: torch.Tensor, modules: Mapping[int, Sequence[str]]
) -> Iterator[LayerStatistics]:
    """Yield each layer's input statistics, first to last; ``modules`` are those to watch."""
    hidden = model.embed(ids)
    for index, name in enumerate(model.layers):
        with model.layer(index) as layer:
            statistics = LayerStatistics(index, f"{name}.", layer)
            with _watch(statistics, modules.get(index, ())):
                hidden = _forward(model, index, layer, hidden)
            yield statistics


def backward_statistics(
    model: LayeredModel,
    ids: torch.Tensor,
    modules: Mapping[int, Sequence[str]],
    folder: Path,
    weights: bool = False,
) -> Iterator[LayerStatistics]:
    """Yield the statistics of each layer, from the last to the first. ``folder`` takes the hidden
    states; with ``weights`` the statistics have gradients too."""
    inputs = _hidden_states(model, ids, folder)
    slopes = _loss_gradients(model, ids, inputs.pop())
    for index in reversed(range(len(model.layers))):
        hidden = inputs.pop()
        with model.layer(index) as layer:
            layer.requires_grad_(weights)
            statistics = LayerStatistics(index, f"{model.layers[index]}.", layer)
            with _watch(statistics, modules.get(index, ()), gradients=True):
                slopes = _backward(model, index, layer, hidden, slopes)
            yield statistics


def _hidden_states(model: LayeredModel, ids: torch.Tensor, folder: Path) -> list[torch.Tensor]:
    """Return the inputs of all layers, and of the head."""
    hidden = model.embed(ids)
    states = []
    for index in range(len(model.layers) + 1):
        # mapped from a file: all layers' states need not fit in memory
        path = str(folder / f"hidden-{index}.bin")
        state = torch.from_file(path, shared=True, size=hidden.numel(), dtype=torch.float32)
        states.append(state.view(hidden.shape).copy_(hidden))
        if index < len(model.layers):
            with model.layer(index) as layer:
                hidden = _forward(model, index, layer, hidden)
    return states


@torch.no_grad()
def _forward(
    model: LayeredModel, index: int, layer: nn.Module, hidden: torch.Tensor
) -> torch.Tensor:
    """Return a layer's outputs for all windows, on the CPU."""
    batches = hidden.split(batch_size(hidden))
    return torch.cat([model.run(index, layer, x.to(model.device)).cpu() for x in batches])


def _loss_gradients(model: LayeredModel, ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the loss by the last layer's output [windows, tokens, hidden]."""
    slopes = []
    with model.without_layers() as stand_ins:
        # a window at a time: logits over a vocabulary are larger than all else
        for state, window in zip(hidden.split(1), ids.to(model.device).split(1), strict=True):
            x = state.to(model.device).requires_grad_(True)
            stand_ins[-1].output = x
            scores = model.model(input_ids=window, use_cache=False).logits[0, :-1].float()
            loss = nn.functional.cross_entropy(scores, window[0, 1:], reduction="sum")
            if not loss.isfinite():
                path = model.inventory.path
                raise CheckpointError(f"{path}: its loss on the calibration text is not finite")
            slopes.append(torch.autograd.grad(loss, x)[0].cpu())
    return torch.cat(slopes)


def _backward(
    model: LayeredModel, index: int, layer: nn.Module, hidden: torch.Tensor, above: torch.Tensor
) -> torch.Tensor:
    """Return the gradient of the loss by a layer's input, from that by its output ``above``."""
    slopes = []
    step = batch_size(hidden)
    for batch, slope in zip(hidden.split(step), above.split(step), strict=True):
        x = batch.to(model.device, copy=True).requires_grad_(True)
        model.run(index, layer, x).backward(slope.to(model.device))
        assert x.grad is not None
        slopes.append(x.grad.cpu())
    return torch.cat(slopes)


@contextlib.contextmanager
def _watch(
    statistics: LayerStatistics, names: Sequence[str], gradients: bool = False
) -> Iterator[None]:
    """Fill statistics while the block runs."""
    last_input = None
    last_name = ""

    def watch_input(name: str, module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        nonlocal last_input, last_name
        x = args[0]
        if x is last_input:  # q, k and v read one tensor: they share its covariance
            statistics.inputs.setdefault(name, statistics.inputs[last_name])
            return
        last_input = x
        last_name = name
        if name not in statistics.inputs:
            statistics.inputs[name] = Covariance(x.shape[-1], x.device)
        statistics.inputs[name].add(x)

    def watch_output(name: str, module: nn.Module, args: object, y: torch.Tensor) -> None:
        if name not in statistics.gradients:
            statistics.gradients[name] = Covariance(y.shape[-1], y.device)
        y.register_hook(statistics.gradients[name].add)  # runs in the backward pass

    handles = []
    for name in names:
        module = statistics.layer.get_submodule(name.removeprefix(statistics.prefix))
        handles.append(module.register_forward_pre_hook(partial(watch_input, name)))
        if gradients:
            handles.append(module.register_forward_hook(partial(watch_output, name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def calibration_ids(
    text: str | Path | torch.Tensor, inventory: Inventory, windows: int, length: int
) -> torch.Tensor:
    """Return the first windows of a text in UTF-8 as token ids [windows, tokens]; ids as they are.

    Raises :class:`ConfigError` for a text that is shorter than a window.
    """
    if isinstance(text, torch.Tensor):
        return text.long().cpu()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(inventory.folder)
    with Path(text).open(encoding="utf-8") as file:
        content = file.read(windows * length * CHARACTERS_PER_TOKEN)
    ids = torch.tensor(tokenizer(content, verbose=False)["input_ids"])
    if len(ids) < length:
        raise ConfigError(
            f"the text {text} has {len(ids)} tokens, fewer than a window of {length}: give a "
            "longer text or a shorter length"
        )
    count = min(windows, len(ids) // length)
    return ids[: count * length].reshape(count, length)
