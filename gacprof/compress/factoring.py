"""The layers that low-rank methods factor, their factors, and the tensors that they become."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import torch
from torch import nn

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.linear import bias_of
from gacprof.checkpoint.layouts.names import tower_of
from gacprof.checkpoint.tensors import read_tensor
from gacprof.checkpoint.writer import OutputTensor, read_blocks
from gacprof.compress.layered import LayeredModel, LayerResults
from gacprof.compress.low_rank import LowRank, energy_by_rank, factor_weight, loss_by_rank
from gacprof.compress.options import Candidates, Objective, parameters_left
from gacprof.compress.statistics import LayerStatistics, backward_statistics, forward_statistics
from gacprof.core.errors import CheckpointError
from gacprof.core.sizes import SizeSource
from gacprof.diagnosing.safe_ranks import break_even_rank, safe_ranks
from gacprof.realigning.values import rounded
from gacprof.workload.deployment import Tokens
from gacprof.workload.products import plain_dtype

# roles of the layers that the publications factor, experts' too
PROJECTIONS = frozenset(
    ("q", "k", "v", "o", "qkv", "gate", "up", "gate_up", "down", "gdn_out", "mamba_out")
)
# modules whose factors SVD-LLM's layout can name
_NAMED = re.compile(
    r"(?P<stem>.+\.(q|k|v|o|out|gate|up|down))_proj|(?P<short>.+\.(fc1|fc2|w1|w2|w3))", re.DOTALL
)


@dataclass(frozen=True)
class Target:
    """A dense layer to be factored: ``weight`` of ``shape`` (out, in) becomes ``outer`` [out, r] ·
    ``inner`` [r, in]; these are tensor names. ``bias`` is empty where there is none."""

    name: str
    layer: int
    weight: str
    bias: str
    inner: str
    outer: str
    shape: tuple[int, int]

    @property
    def parameters(self) -> int:
        return prod(self.shape)

    @property
    def unit(self) -> int:
        """Parameters of one more rank."""
        return sum(self.shape)

    @property
    def max_rank(self) -> int:
        """The largest rank at which the factors are smaller than the weight."""
        return break_even_rank(*self.shape)

    def own_rank(self, ratio: float) -> int:
        """Return ASVD's and SVD-LLM's rank at one ratio: int(out · in · kept) // (in + out)."""
        rank = int(self.parameters * (1 - ratio)) // self.unit
        return max(1, min(rank, self.max_rank))


def targets_of(inventory: Inventory) -> list[Target]:
    """Return the layers to factor, in the order of the model."""
    targets = []
    for module in inventory.modules:
        match = _NAMED.fullmatch(module.name)
        is_projection = module.role.removeprefix("expert_") in PROJECTIONS
        if match is None or not is_projection or module.kind != "dense" or tower_of(module.name):
            continue
        gemm = module.gemms[0]
        is_plain = inventory.shape(gemm.weight) == (module.out_features, module.in_features)
        if is_plain and module.layer is not None:
            stem = match["stem"] or match["short"]
            bias = f"{module.name}.bias" if gemm.bias else ""
            inner, outer = f"{stem}_v_proj.weight", f"{stem}_u_proj.weight"
            names = (module.name, module.layer, gemm.weight, bias, inner, outer)
            targets.append(Target(*names, shape=(gemm.N, gemm.K)))
    if not targets:
        raise CheckpointError(
            f"{inventory.path}: no dense projection is stored in a way that can be factored"
        )
    return targets


@dataclass
class Factoring:
    """The layers of a model to be factored by one method. A layer's results are ``name/u`` and
    ``name/v`` and, by rank, ``name/energy`` and, where gradients were gathered, ``name/loss``."""

    inventory: Inventory
    method: LowRank
    objective: Objective
    results: LayerResults
    device: str

    def __post_init__(self) -> None:
        # results with this ending say what ranks lose
        self.curve = "/loss" if self.objective == "loss" else "/energy"
        self.targets = targets_of(self.inventory)
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
        """Return the candidate ranks by target, and the parameters that a ratio leaves of them."""
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
                factor = partial(self.results.cut, target.layer, f"{target.name}/{what}", shape)
                yield OutputTensor(name, info.dtype, shape, info.name, factor)
