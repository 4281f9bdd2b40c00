"""Factors of every layer, saved layer by layer, and the tensors that they become."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.linear import bias_of
from gacprof.checkpoint.tensors import read_tensor
from gacprof.checkpoint.writer import OutputTensor, read_blocks
from gacprof.compress.folder import LayerResults
from gacprof.compress.layered import LayeredModel
from gacprof.compress.low_rank import (
    METRICS,
    LowRank,
    energy_by_rank,
    factor_weight,
    loss_by_rank,
    unweighted,
)
from gacprof.compress.options import Candidates, Objective, parameters_left
from gacprof.compress.statistics import (
    Covariance,
    LayerStatistics,
    backward_statistics,
    forward_statistics,
)
from gacprof.compress.targets import Target
from gacprof.core.sizes import SizeSource
from gacprof.diagnosing.safe_ranks import safe_ranks
from gacprof.realigning.values import rounded
from gacprof.workload.deployment import Tokens
from gacprof.workload.products import plain_dtype


def curve_of(objective: Objective) -> str:
    """Return the ending of the results that say what ranks lose by an objective."""
    return "/loss" if objective == "loss" else "/energy"


class Factoring:
    """The targets of a model, factored by one method; ``results`` keeps each finished layer.

    A target's results are ``name/u`` and ``name/v``, up to the largest rank worth having, and by
    rank ``name/energy`` and, where gradients were gathered, ``name/loss``.
    """

    def __init__(
        self,
        inventory: Inventory,
        targets: Sequence[Target],
        method: LowRank,
        results: LayerResults,
        device: str = "cpu",
    ) -> None:
        self.inventory = inventory
        self.method = method
        self.results = results
        self.device = torch.device(device)
        self.targets = targets
        self.by_layer: dict[int, list[Target]] = {}
        for target in targets:
            self.by_layer.setdefault(target.layer, []).append(target)

    def run(self, ids: torch.Tensor | None, folder: Path, objective: Objective) -> None:
        """Factor the layers that are not finished.

        ``ids`` are windows of tokens [windows, tokens], None where the method needs none. Losses
        take a backward pass, whose hidden states lie in ``folder``.
        """
        curve = curve_of(objective)
        missing = [layer for layer in self.by_layer if not self.results.has(layer, curve)]
        if not missing:
            return
        passes: Iterable[LayerStatistics]
        if ids is None:
            passes = [LayerStatistics(layer, nn.Module()) for layer in missing]
        elif curve == "/loss" or METRICS[self.method].outputs is not unweighted:
            model = LayeredModel(self.inventory, self.device)
            passes = backward_statistics(model, ids, self._names, folder)
        else:
            model = LayeredModel(self.inventory, self.device)
            passes = forward_statistics(model, ids, self._names)
        for statistics in passes:
            if statistics.index in missing:
                self._factor_layer(statistics)

    def _names(self, layer: int) -> list[str]:
        return [target.name for target in self.by_layer.get(layer, [])]

    def _factor_layer(self, statistics: LayerStatistics) -> None:
        inputs, gradients = statistics.inputs, statistics.gradients
        tensors: dict[str, torch.Tensor] = {}
        for target in self.by_layer[statistics.index]:
            if inputs and target.name not in inputs:  # no token reached this expert
                continue
            tensors |= self._factor(target, inputs.get(target.name), gradients.get(target.name))
        self.results.save(statistics.index, tensors)

    def _factor(
        self, target: Target, inputs: Covariance | None, gradients: Covariance | None
    ) -> dict[str, torch.Tensor]:
        stored = read_tensor(self.inventory, target.weight)
        factors = factor_weight(self.method, stored.to(self.device), inputs, gradients)
        curves = {"energy": energy_by_rank(factors.sigma)}
        if inputs is not None and gradients is not None:
            curves["loss"] = loss_by_rank(factors, inputs.mean, gradients.mean)
        count = target.max_rank
        tensors = {
            "u": rounded(factors.u[:, :count], stored.dtype),
            "v": rounded(factors.v[:count], stored.dtype),
        }
        return {f"{target.name}/{what}": value for what, value in {**curves, **tensors}.items()}

    def losses(self, objective: Objective) -> dict[str, list[float]]:
        """Return what the ranks 0, 1, … of each target lose: energy, or by its objective loss."""
        curve = curve_of(objective)
        losses = {}
        for layer in self.by_layer:
            for name, values in self.results.load(layer).items():
                if name.endswith(curve):
                    losses[name.removesuffix(curve)] = values.tolist()
        return losses

    def candidates(
        self, ratio: float, source: SizeSource | None, tokens: Tokens | None, multiple: int
    ) -> tuple[dict[str, Candidates], int]:
        """Return the ranks on offer by target, and the parameters that a ratio leaves of them.

        Without a source they are the multiples.
        """
        dtype = plain_dtype(self.inventory)
        ranks: dict[tuple[int, int], list[int]] = {}
        for target in {target.shape: target for target in self.targets}.values():
            multiples = range(multiple, target.max_rank + 1, multiple)
            ranks[target.shape] = list(multiples) or [target.max_rank]
            if source is not None:
                ranks[target.shape] = safe_ranks(target.shape, source, tokens=tokens, dtype=dtype)
        candidates = {
            t.name: Candidates(ranks[t.shape], t.own_rank(ratio), t.unit, t.parameters)
            for t in self.targets
        }
        return candidates, parameters_left(sum(t.parameters for t in self.targets), ratio)

    def config(self, sizes: Mapping[str, int | None]) -> dict[str, Any]:
        """The config: SVD-LLM's layout has no ranks in it."""
        return dict(self.inventory.config)

    def new_tensors(self, sizes: Mapping[str, int | None]) -> Iterator[OutputTensor]:
        """Yield the tensors of the model at these ranks; None leaves a target dense."""
        factored = {t.weight: t for t in self.targets if sizes[t.name] is not None}
        biases = {t.bias: bias_of(t.outer) for t in factored.values() if t.bias}
        for info in self.inventory.stored_once:
            target = factored.get(info.name)
            if target is None:
                blocks = partial(read_blocks, self.inventory, info.name)
                name = biases.get(info.name, info.name)
                yield OutputTensor(name, info.dtype, info.shape, info.name, blocks)
                continue
            rank = sizes[target.name]
            assert rank is not None
            inner, outer = (rank, target.in_features), (target.out_features, rank)
            for name, what, shape in ((target.inner, "v", inner), (target.outer, "u", outer)):
                factor = partial(self._cut_factor, target, what, shape)
                yield OutputTensor(name, info.dtype, shape, info.name, factor)

    def _cut_factor(self, target: Target, what: str, shape: tuple[int, int]) -> list[torch.Tensor]:
        """A factor of a target cut to a shape, as the writer's only block."""
        factor = self.results.read(target.layer, f"{target.name}/{what}")
        return [factor[: shape[0], : shape[1]]]
