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

from gacprof.compressing.activations import enter, hidden, pass_on, window
from gacprof.compressing.layered import LayeredModel, batch_of
from gacprof.compressing.state import State
from gacprof.compressors.method import Target, uniform_rank

PROBE_TOKENS = 512
"""The loss is measured on whole windows of about so many tokens, from the text's beginning."""

WORST = 1e9
"""Stands for a loss that is not finite."""

Pair = Callable[[Target, int], tuple[torch.Tensor, torch.Tensor]]
Variant = tuple[str, float]
PROBE, VARIANTS = "probe", "variants"


def search(
    model: LayeredModel,
    state: State,
    targets: Sequence[Target],
    shares: Sequence[float],
    ids: torch.Tensor,
    pair: Pair,
    tell: Callable[[str], None],
) -> dict[Variant, float]:
    """The mean loss with one target at the rank of one share of its parameters, by both.

    ``pair`` gives u and v of a target at a rank.
    """
    probe = ids[: max(1, PROBE_TOKENS // ids.shape[1])]
    enter(model, state, probe, PROBE)
    by_layer: dict[int | None, list[Target]] = {}
    for target in targets:
        by_layer.setdefault(target.layer, []).append(target)
    order: list[Variant] = []
    for index, name in enumerate(model.layers):
        own = by_layer.get(index, [])
        order += [(target.name, share) for target in own for share in shares]
        if any(state.has(hidden(i, PROBE)) for i in range(index + 1, len(model.layers) + 1)):
            continue
        tell(f"sensitivity, layer {index + 1} of {len(model.layers)}: {len(order)} variants")
        with model.holding(index) as layer, _fast(model.device):
            places = {t.name: layer.get_submodule(t.name.removeprefix(f"{name}.")) for t in own}
            _branch(model, state, index, layer, own, shares, places, pair, len(order) * len(probe))
            pass_on(model, state, index, layer, {}, False, PROBE)
        state.drop(hidden(index, PROBE))
        state.drop(hidden(index, VARIANTS))
    losses = _losses(model, state, order, probe, by_layer.get(None, []), shares, pair)
    for name in (PROBE, VARIANTS):
        state.drop(hidden(len(model.layers), name))
    return losses


def _branch(
    model: LayeredModel,
    state: State,
    index: int,
    layer: nn.Module,
    targets: Sequence[Target],
    shares: Sequence[float],
    places: dict[str, nn.Module],
    pair: Pair,
    count: int,
) -> None:
    """Pass the variants so far through the layer, and add those that change it."""
    base = state.array(hidden(index, PROBE))
    step = batch_of(base.shape[1])
    done = 0
    with (
        torch.no_grad(),
        state.new_array(hidden(index + 1, VARIANTS), (count, *base.shape[1:])) as out,
    ):
        if state.has(hidden(index, VARIANTS)):
            earlier = state.array(hidden(index, VARIANTS))
            for start in range(0, len(earlier), step):
                x = window(earlier, start, step, model.device)
                out[start : start + len(x)] = model.run(index, layer, x).float().cpu().numpy()
            done = len(earlier)
        for target in targets:
            for share in shares:
                with _cut(places[target.name], target, share, pair):
                    for start in range(0, len(base), step):
                        x = window(base, start, step, model.device)
                        y = model.run(index, layer, x).float().cpu().numpy()
                        out[done : done + len(y)] = y
                        done += len(y)


def _losses(
    model: LayeredModel,
    state: State,
    order: Sequence[Variant],
    probe: torch.Tensor,
    heads: Sequence[Target],
    shares: Sequence[float],
    pair: Pair,
) -> dict[Variant, float]:
    last = len(model.layers)
    found: dict[Variant, float] = {}
    with torch.no_grad(), model.head() as logits, _fast(model.device):

        def loss(source: Any, first: int) -> float:
            total = 0.0
            for i in range(len(probe)):
                x = window(source, first + i, 1, model.device)
                scores = logits(x, probe[i : i + 1])[0, :-1].float()
                wanted = probe[i, 1:].to(model.device)
                total += float(nn.functional.cross_entropy(scores, wanted))
            mean = total / len(probe)
            return mean if math.isfinite(mean) else WORST

        if order:
            variants = state.array(hidden(last, VARIANTS))
            for number, variant in enumerate(order):
                found[variant] = loss(variants, number * len(probe))
        base = state.array(hidden(last, PROBE))
        for target in heads:
            for share in shares:
                with _cut(model.model.get_submodule(target.name), target, share, pair):
                    found[target.name, share] = loss(base, 0)
    return found


@contextlib.contextmanager
def _cut(module: nn.Module, target: Target, share: float, pair: Pair) -> Iterator[None]:
    """The module with its weight at the rank of that share."""
    weight: Any = module.weight
    u, v = pair(target, uniform_rank(target, 1 - share))
    product = u.to(weight.device, torch.float32) @ v.to(weight.device, torch.float32)
    module.weight = nn.Parameter(product, requires_grad=False)
    try:
        yield
    finally:
        module.weight = weight


def _fast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """bfloat16 where there are matrix units for it: the tools search in half precision too."""
    has_units = device.type == "cuda" or bool(
        getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    )
    return torch.autocast(device.type, torch.bfloat16, enabled=has_units)
