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
        rows = x.detach().reshape(-1, x.shape[-1])
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


def pass_through(model: LayeredModel, state: State, ids: torch.Tensor, tell: Tell) -> None:
    """Run the text through all layers, unless an earlier try has; what each is given stays."""
    if state.has(FORWARD):
        model.record(ids)
        return
    for index in range(enter(model, state, ids), len(model.layers)):
        tell(f"layer {index + 1} of {len(model.layers)}")
        with model.holding(index) as layer:
            pass_on(model, state, index, layer, {}, False)
    state.save_json(FORWARD, {})


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
