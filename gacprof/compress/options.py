"""The sizes that each rank or width may have, and the choice that loses the least.

An option is a size with its loss and its parameters; a size of None is the dense weight. What is
offered depends on the objective:

======= ==================================================================================
loss    ranks: every candidate, and the dense weight. Widths: candidates within ±25 % of
        the method's own size, since Taylor's first order holds for small changes alone
energy  candidates within ±25 % of the method's own size
uniform the largest candidate that isn't above the method's own size: one ratio for all
======= ==================================================================================

By energy a wide choice does harm: with every size offered SmolLM2 at 30 % was worse than with the
method's own sizes (perplexity 493 for 281).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gacprof.checkpoint.inventory import Dim, Inventory
from gacprof.compress.targets import Target
from gacprof.core.errors import PlanError
from gacprof.core.sizes import SizeSource
from gacprof.diagnosing.safe_ranks import safe_ranks
from gacprof.diagnosing.source import products_for
from gacprof.planning.solver import solve
from gacprof.workload.deployment import Tokens
from gacprof.workload.products import plain_dtype

Objective = Literal["loss", "energy", "uniform"]

WINDOW = 0.25
"""How far from a method's own size others are offered, as a fraction of it."""

PRUNED = "mlp"
"""The role of the widths that are pruned. No config says widths of experts that differ."""


@dataclass(frozen=True)
class Option:
    """A size of a dim, None for the dense weight; its loss and its parameters."""

    size: int | None
    loss: float
    parameters: int


@dataclass(frozen=True)
class Choice:
    """A size of every dim. They lose ``loss``, and none within the same parameters lose less than
    ``bound``."""

    sizes: Mapping[str, int | None]
    loss: float
    bound: float


Losses = Mapping[str, Sequence[float]]
"""What the sizes 0, 1, 2, … lose, by name."""


class RankOptions:
    """Candidate ranks by the shape of a weight: those that ``source`` calls safe, without one all
    multiples of ``multiple``."""

    def __init__(
        self,
        inventory: Inventory,
        targets: Sequence[Target],
        source: SizeSource | None = None,
        tokens: Tokens | None = None,
        multiple: int = 1,
    ) -> None:
        self.targets = targets
        self.candidates: dict[tuple[int, int], list[int]] = {}
        for shape in dict.fromkeys(target.shape for target in targets):
            if source is not None:
                ranks = safe_ranks(shape, source, tokens=tokens, dtype=plain_dtype(inventory))
            else:
                largest = max(target.max_rank for target in targets if target.shape == shape)
                ranks = list(range(multiple, largest + 1, multiple)) or [largest]
            self.candidates[shape] = ranks

    def choose(self, losses: Losses, ratio: float, objective: Objective) -> Choice:
        """Choose ranks, ``ratio`` of the targets' parameters removed.

        A target without candidates, or without losses (an expert that no token reached), stays
        dense.
        """
        options = {}
        for target in self.targets:
            dense = Option(None, 0.0, target.parameters)
            row = [dense]
            ranks = self.candidates[target.shape]
            if ranks and target.name in losses:
                curve = losses[target.name]
                if objective != "loss":
                    ranks = _near_own(ranks, target.own_rank(ratio), objective)
                row = [Option(rank, curve[rank], rank * target.unit) for rank in ranks]
                if objective == "loss":
                    row.append(dense)
            options[target.name] = row
        total = sum(target.parameters for target in self.targets)
        return choose(options, parameters_left(total, ratio))


class WidthOptions:
    """Candidate widths of MLPs, as :class:`RankOptions`. A width without candidates stays."""

    def __init__(
        self,
        inventory: Inventory,
        widths: Sequence[Dim],
        source: SizeSource | None = None,
        tokens: Tokens | None = None,
        multiple: int = 1,
    ) -> None:
        self.widths = widths
        self.total = sum(d.size * d.params_per_unit for d in inventory.dims if d.role == PRUNED)
        self.candidates: dict[str, list[int]] = {}
        for dim in widths:
            if source is not None:
                uses = products_for(inventory, source, tokens=tokens).uses_of(dim)
                verdicts = source.judge(uses, source.sizes(uses, 1, dim.size))
                sizes = [v.size for v in verdicts if v.verdict == "safe"] or [dim.size]
            else:
                sizes = [*range(multiple, dim.size, multiple), dim.size]
            self.candidates[dim.name] = sizes

    def choose(self, losses: Losses, ratio: float, objective: Objective) -> Choice:
        """Choose widths, ``ratio`` of the parameters of all MLPs removed. Layers that stay whole
        count among them."""
        pruned = sum(dim.size * dim.params_per_unit for dim in self.widths)
        room = pruned - (self.total - parameters_left(self.total, ratio))
        if room <= 0:
            raise PlanError(
                f"the pruned layers have {pruned / self.total:.0%} of the MLPs' parameters: "
                f"a ratio of {ratio:g} would leave nothing of them"
            )
        options = {}
        for dim in self.widths:
            own_size = max(1, dim.size * room // pruned)
            curve = losses[dim.name]
            unit = dim.params_per_unit
            sizes = _near_own(self.candidates[dim.name], own_size, objective)
            options[dim.name] = [Option(size, curve[size], size * unit) for size in sizes]
        return choose(options, room)


def parameters_left(total: int, ratio: float) -> int:
    """The parameters that a ratio leaves of a total, whole in spite of rounding (0.7 of 10)."""
    return int(total * (1 - ratio) + 1e-6)


def choose(options: Mapping[str, Sequence[Option]], room: int) -> Choice:
    """Choose an option of each dim: the least loss within ``room`` parameters.

    Raises :class:`PlanError` where the smallest options do not fit.
    """
    values = [[-option.loss for option in row] for row in options.values()]
    takes = [[option.parameters for option in row] for row in options.values()]
    smallest = sum(min(row) for row in takes)
    if smallest > room:
        raise PlanError(
            f"the sizes on offer take {smallest:,} parameters at least, and the ratio leaves "
            f"{room:,}: name a smaller ratio or multiple, or a source that knows smaller sizes"
        )
    solution = solve(values, [(takes, room)])
    pairs = zip(options.items(), solution.choice, strict=True)
    sizes = {name: row[index].size for (name, row), index in pairs}
    return Choice(sizes, -solution.value, -solution.bound)


def _near_own(sizes: Sequence[int], own_size: int, objective: Objective) -> list[int]:
    """The candidates within the window of a method's own size, by uniform the next below it;
    where there are none the nearest."""
    nearest = min(sizes, key=lambda size: (abs(size - own_size), size))
    if objective == "uniform":
        return [max((size for size in sizes if size <= own_size), default=nearest)]
    reach = WINDOW * own_size
    return [size for size in sizes if abs(size - own_size) <= reach] or [nearest]
