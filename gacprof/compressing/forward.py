"""Hidden states from layer to layer, through files: no more than a batch of them is in memory.

``hidden-i`` [windows, tokens, hidden] is what layer i is given, ``hidden-L`` what the head is.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from gacprof.compressing.inputs import Seen, watching
from gacprof.compressing.layered import LayeredModel, batch_of
from gacprof.compressing.state import State
from gacprof.core.errors import CompressionError


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
