"""Factors of every layer, saved layer by layer, and the tensors that they become."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import nn

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.linear import bias_of
from gacprof.checkpoint.tensors import read_tensor
from gacprof.checkpoint.writer import OutputTensor, read_blocks
from gacprof.compress.folder import LayerResults
from gacprof.compress.layered import LayeredModel
from gacprof.compress.low_rank import LowRank, energy_by_rank, factor_weight, loss_by_rank
from gacprof.compress.options import Candidates, Objective, parameters_left
from gacprof.compress.statistics import LayerStatistics, backward_statistics, forward_statistics
from gacprof.compress.targets import Target, targets_of
from gacprof.core.sizes import SizeSource
from gacprof.diagnosing.safe_ranks import safe_ranks
from gacprof.realigning.values import rounded
from gacprof.workload.deployment import Tokens
from gacprof.workload.products import plain_dtype


class Factoring:
    """The targets of a model, factored by one method. A target's results are ``name/u`` and
    ``name/v`` and, by rank, ``name/energy`` and, where gradients were gathered, ``name/loss``."""

    def __init__(
        self,
        inventory: Inventory,
        method: LowRank,
        objective: Objective,
        results: LayerResults,
        device: str,
    ) -> None:
        self.inventory = inventory
        self.method = method
        self.objective = objective
        # the ending of the results that say what ranks lose
        self.curve = "/loss" if objective == "loss" else "/energy"
        self.results = results
        self.device = torch.device(device)
        self.targets = targets_of(inventory)
        self.layers: dict[int, list[Target]] = {}
        for target in self.targets:
            self.layers.setdefault(target.layer, []).append(target)

    def statistics(self, ids: torch.Tensor | None, folder: Path) -> Iterable[LayerStatistics]:
        """Yield what factors are made from, by layer; ``ids`` is None where none are needed."""
        if ids is None:
            return [LayerStatistics(layer, "", nn.Module()) for layer in self.layers]
        model = LayeredModel(self.inventory, self.device)
        names = {layer: [target.name for target in row] for layer, row in self.layers.items()}
        if self.objective == "loss" or self.method == "kfac-svd":
            return backward_statistics(model, ids, names, folder)
        return forward_statistics(model, ids, names)

    def layer_results(self, statistics: LayerStatistics) -> dict[str, torch.Tensor]:
        """Factor a layer's targets."""
        results: dict[str, torch.Tensor] = {}
        for target in self.layers[statistics.index]:
            name = target.name
            inputs = statistics.inputs.get(name)
            gradients = statistics.gradients.get(name)
            if statistics.inputs and inputs is None:  # no token reached this expert
                continue
            stored = read_tensor(self.inventory, target.weight)
            factors = factor_weight(self.method, stored.to(self.device), inputs, gradients)
            results[f"{name}/energy"] = energy_by_rank(factors.sigma)
            if inputs is not None and gradients is not None:
                results[f"{name}/loss"] = loss_by_rank(factors, inputs.mean, gradients.mean)
            # beyond its largest rank a pair is no smaller than the weight
            results[f"{name}/u"] = rounded(factors.u[:, : target.max_rank], stored.dtype)
            results[f"{name}/v"] = rounded(factors.v[: target.max_rank], stored.dtype)
        return results

    def losses(self) -> dict[str, list[float]]:
        """Return what the ranks 0, 1, … of each target lose."""
        losses = {}
        for layer in self.layers:
            for name, values in self.results.load(layer).items():
                if name.endswith(self.curve):
                    losses[name.removesuffix(self.curve)] = values.tolist()
        return losses

    def candidates(
        self, ratio: float, source: SizeSource | None, tokens: Tokens | None, multiple: int
    ) -> tuple[dict[str, Candidates], int]:
        """Return the ranks on offer by target, and the parameters that a ratio leaves of them."""
        dtype = plain_dtype(self.inventory)
        ranks: dict[tuple[int, int], list[int]] = {}
        for shape, target in {target.shape: target for target in self.targets}.items():
            multiples = range(multiple, target.max_rank + 1, multiple)
            ranks[shape] = list(multiples) or [target.max_rank]
            if source is not None:
                ranks[shape] = safe_ranks(shape, source, tokens=tokens, dtype=dtype)
        candidates = {}
        for target in self.targets:
            sizes = (target.own_rank(ratio), target.unit, target.parameters)
            candidates[target.name] = Candidates(ranks[target.shape], *sizes)
        return candidates, parameters_left(sum(t.parameters for t in self.targets), ratio)

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
            out_features, in_features = target.shape
            shapes = {target.inner: (rank, in_features), target.outer: (out_features, rank)}
            for (name, shape), what in zip(shapes.items(), "vu", strict=True):
                # read when it is written: no more than one factor is in memory
                factor = partial(self._cut_factor, target, what, shape)
                yield OutputTensor(name, info.dtype, shape, info.name, factor)

    def _cut_factor(self, target: Target, what: str, shape: tuple[int, int]) -> list[torch.Tensor]:
        """A factor of a target cut to a shape, as the writer's only block."""
        factor = self.results.read(target.layer, f"{target.name}/{what}")
        return [factor[: shape[0], : shape[1]]]
