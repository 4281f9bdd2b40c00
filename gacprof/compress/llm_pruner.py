"""LLM-Pruner (arXiv 2305.11627): prune hidden units of MLPs by their Taylor importance.

A unit is a row of gate and up with its column of down; its importance is the sum over these weights
of |w · ∂loss/∂w|, a first-order estimate of what removing it adds to the loss. Heads stay whole.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from gacprof.checkpoint.inventory import Dim, Inventory
from gacprof.checkpoint.writer import OutputTensor
from gacprof.compress.layered import LayeredModel, LayerResults
from gacprof.compress.low_rank import tails
from gacprof.compress.options import Candidates, Objective, parameters_left
from gacprof.compress.statistics import LayerStatistics, backward_statistics
from gacprof.core.errors import CheckpointError, PlanError
from gacprof.core.sizes import SizeSource
from gacprof.core.verdicts import as_verdicts
from gacprof.diagnosing.source import products_for
from gacprof.realigning.changes import new_checkpoint
from gacprof.realigning.realign import output_tensors
from gacprof.workload.deployment import Tokens

PRUNED = "mlp"
"""The role of the widths that are pruned. No config says widths of experts that differ."""


def prunable_widths(inventory: Inventory) -> list[Dim]:
    """Return the widths that are pruned. Raises :class:`CheckpointError` where there are none."""
    layers = 1 + max((module.layer or 0 for module in inventory.modules), default=0)
    # the publication's command leaves the first four and the last two of 32 layers whole
    inner = range(layers // 8, layers - layers // 16)
    widths = [d for d in inventory.dims if d.role == PRUNED and d.adjustable and d.layer in inner]
    if not widths:
        raise CheckpointError(f"{inventory.path}: no MLP has a width that could be pruned")
    return widths


def taylor_importance(statistics: LayerStatistics, dim: Dim) -> torch.Tensor:
    """Return the importance of a width's units [size], from the gradients of a layer's weights."""
    importance = torch.zeros(dim.size, dtype=torch.float64)
    for place in dim.places:
        name = place.tensor.removeprefix(statistics.prefix)
        weight = statistics.layer.get_parameter(name)
        assert weight.grad is not None
        taylor = (weight * weight.grad).detach().abs().double().cpu()
        stretch = taylor.narrow(place.axis, place.start, dim.size)
        importance += stretch.movedim(place.axis, 0).reshape(dim.size, -1).sum(1)
    return importance


@dataclass
class Pruning:
    """The widths of a model's MLPs to be pruned, and the importance of their units."""

    inventory: Inventory
    objective: Objective
    results: LayerResults
    device: str
    curve: ClassVar[str] = ""

    def __post_init__(self) -> None:
        self.widths = prunable_widths(self.inventory)
        self.layers = sorted({dim.layer for dim in self.widths if dim.layer is not None})

    def statistics(self, ids: torch.Tensor | None, folder: Path) -> Iterator[LayerStatistics]:
        """Yield what the importance of units is worked out from, by layer."""
        assert ids is not None  # compress asks for a text
        model = LayeredModel(self.inventory, self.device)
        return backward_statistics(model, ids, {}, folder, weights=True)

    def layer_results(self, statistics: LayerStatistics) -> dict[str, torch.Tensor]:
        """Return the importance of a layer's units by width."""
        widths = [dim for dim in self.widths if dim.layer == statistics.index]
        return {dim.name: taylor_importance(statistics, dim) for dim in widths}

    def importance(self) -> dict[str, torch.Tensor]:
        importance: dict[str, torch.Tensor] = {}
        for layer in self.layers:
            importance |= self.results.load(layer)
        return importance

    def losses(self) -> dict[str, list[float]]:
        """Return the importance that the widths 0, 1, … lose; by energy as a share of all."""
        losses = {}
        for name, importance in self.importance().items():
            lost = tails(importance.sort(descending=True).values)
            total = 1.0 if self.objective == "loss" else float(lost[0]) or 1.0
            losses[name] = (lost / total).tolist()
        return losses

    def candidates(
        self, ratio: float, source: SizeSource | None, tokens: Tokens | None, multiple: int
    ) -> tuple[dict[str, Candidates], int]:
        """Return the candidate widths by dim, and the parameters that they may take together."""
        total = sum(d.size * d.params_per_unit for d in self.inventory.dims if d.role == PRUNED)
        pruned = sum(dim.size * dim.params_per_unit for dim in self.widths)
        # the ratio is of all MLPs: what layers that stay whole keep, the others lose besides
        room = pruned - (total - parameters_left(total, ratio))
        if room <= 0:
            raise PlanError(
                f"the pruned layers have {pruned / total:.0%} of the MLPs' parameters: "
                f"a ratio of {ratio:g} would leave nothing of them"
            )
        candidates = {}
        for dim in self.widths:
            sizes = [*range(multiple, dim.size, multiple), dim.size]
            if source is not None:
                uses = products_for(self.inventory, source, tokens=tokens).uses_of(dim)
                verdicts = source.judge(uses, source.sizes(uses, 1, dim.size))
                offered = as_verdicts(verdicts, source.tolerance).offered.tolist()
                sizes = offered or [dim.size]
            own_size = max(1, dim.size * room // pruned)
            candidates[dim.name] = Candidates(sizes, own_size, dim.params_per_unit)
        return candidates, room

    def new_tensors(self, sizes: Mapping[str, int | None]) -> Iterator[OutputTensor]:
        """Return the tensors of the model with the most important units of each width."""
        # second names of the same bytes (a tied head) are written once
        names = {info.name for info in self.inventory.stored_once}
        new = new_checkpoint(self.inventory, sizes)
        tensors = output_tensors(new, self.importance())
        return (tensor for tensor in tensors if tensor.name in names)
