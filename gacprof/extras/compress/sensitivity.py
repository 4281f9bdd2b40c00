"""How much worse a model gets when one weight alone is cut, for every weight and many ratios.

ASVD's search asks for hundreds of models that differ in one weight. All are run at once, layer by
layer: a variant begins with the hidden states at the layer that it changes, and goes on with all
the others through the layers behind. So every layer's weights are read once, and the layers before
a change are not run again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from gacprof.extras.compress.activations import enter, hidden, run_all, window
from gacprof.extras.compress.layered import LayeredModel, window_loss
from gacprof.extras.compress.methods.method import TargetLayer, uniform_rank
from gacprof.extras.compress.state import State, Work

PROBE_TOKENS = 512
"""The loss is measured on whole windows of about so many tokens, from the text's beginning."""

WORST = 1e9
"""Stands for a loss that is not finite."""

Variant = tuple[str, float]
Cut = Callable[[nn.Module, TargetLayer, float], contextlib.AbstractContextManager[None]]
PROBE, VARIANTS = "probe", "variants"
WHOLE: Variant = ("", 1.0)
"""Stands for the model with nothing cut."""


def search(
    model: LayeredModel,
    work: Work,
    ids: torch.Tensor,
    targets: Sequence[TargetLayer],
    shares: Sequence[float],
    pair: Callable[[TargetLayer, int], tuple[torch.Tensor, torch.Tensor]],
) -> dict[Variant, float]:
    """The mean loss with one target at the rank of one share of its parameters, by both, and that
    of the :data:`WHOLE` model.

    ``pair`` gives u and v of a target at a rank.
    """

    @contextlib.contextmanager
    def cut(module: nn.Module, target: TargetLayer, share: float) -> Iterator[None]:
        """The module with its weight at the rank of that share."""
        weight: Any = module.weight
        u, v = pair(target, uniform_rank(target, 1 - share))
        product = u.to(weight.device, torch.float32) @ v.to(weight.device, torch.float32)
        module.weight = nn.Parameter(product, requires_grad=False)
        try:
            yield
        finally:
            module.weight = weight

    state, layers = work.state, model.layers
    probe = ids[: max(1, PROBE_TOKENS // ids.shape[1])]
    begun = enter(model, state, probe, PROBE)
    order: list[Variant] = []
    for index, name in enumerate(layers):
        own = [(t, share) for t in targets if t.layer == index for share in shares]
        order += [(target.name, share) for target, share in own]
        if index < begun:
            continue
        work.tell(f"sensitivity, layer {index + 1} of {len(layers)}: {len(order)} variants")
        with model.holding(index) as layer, _fast(model.device):
            cuts = [
                cut(layer.get_submodule(target.name.removeprefix(f"{name}.")), target, share)
                for target, share in own
            ]
            _branch(model, state, index, layer, cuts, len(order) * len(probe))
        state.drop(hidden(index, PROBE))
        state.drop(hidden(index, VARIANTS))
    heads = [target for target in targets if target.layer is None]
    losses = _losses(model, state, order, probe, heads, shares, cut)
    for name in (PROBE, VARIANTS):
        state.drop(hidden(len(layers), name))
    return losses


def _branch(
    model: LayeredModel,
    state: State,
    index: int,
    layer: nn.Module,
    cuts: Sequence[contextlib.AbstractContextManager[None]],
    count: int,
) -> None:
    """Pass the variants so far through the layer, add those that change it, and pass the text."""
    base = state.array(hidden(index, PROBE))
    with state.new_array(hidden(index + 1, VARIANTS), (count, *base.shape[1:])) as out:
        done = 0
        if state.has(hidden(index, VARIANTS)):
            done = run_all(model, index, layer, state.array(hidden(index, VARIANTS)), out)
        for cut in cuts:
            with cut:
                done = run_all(model, index, layer, base, out, done)
    with state.new_array(hidden(index + 1, PROBE), base.shape) as out:
        run_all(model, index, layer, base, out)


def _losses(
    model: LayeredModel,
    state: State,
    order: Sequence[Variant],
    probe: torch.Tensor,
    heads: Sequence[TargetLayer],
    shares: Sequence[float],
    cut: Cut,
) -> dict[Variant, float]:
    last = len(model.layers)
    found: dict[Variant, float] = {}
    with torch.no_grad(), model.head() as logits, _fast(model.device):

        def loss(source: Any, first: int) -> float:
            total = 0.0
            for i in range(len(probe)):
                x = window(source, first + i, 1, model.device)
                total += float(window_loss(logits, x, probe[i : i + 1]))
            mean = total / len(probe)
            return mean if math.isfinite(mean) else WORST

        if order:
            variants = state.array(hidden(last, VARIANTS))
            for number, variant in enumerate(order):
                found[variant] = loss(variants, number * len(probe))
        base = state.array(hidden(last, PROBE))
        found[WHOLE] = loss(base, 0)
        for target in heads:
            for share in shares:
                with cut(model.model.get_submodule(target.name), target, share):
                    found[target.name, share] = loss(base, 0)
    return found


def _fast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """bfloat16 where there are matrix units for it: the tools search in half precision too."""
    has_units = device.type == "cuda" or bool(
        getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    )
    return torch.autocast(device.type, torch.bfloat16, enabled=has_units)
