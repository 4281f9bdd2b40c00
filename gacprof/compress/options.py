"""Candidate sizes of a rank or width by an objective, and the choice that loses the least."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gacprof.core.errors import PlanError
from gacprof.planning.solver import solve

Objective = Literal["loss", "energy", "uniform"]
WINDOW = 0.25  # how far from a method's own size candidates lie, as a fraction of it


@dataclass(frozen=True)
class Option:
    """A candidate size of a dim, None for the dense weight; its loss and its parameters."""

    size: int | None
    loss: float
    parameters: int


@dataclass(frozen=True)
class Candidates:
    """The candidate sizes of a rank or a width. ``own_size`` is the method's at the ratio; one more
    entry takes ``unit`` parameters, the dense weight ``dense`` (a width has none)."""

    sizes: Sequence[int]
    own_size: int
    unit: int
    dense: int | None = None

    def options(self, losses: Sequence[float], objective: Objective) -> list[Option]:
        """Return the options, given the ``losses`` at the sizes 0, 1, 2, …"""
        dense = [] if self.dense is None else [Option(None, 0.0, self.dense)]
        if not self.sizes or not losses:  # no losses: an expert that no token reached
            return dense
        nearest = min(self.sizes, key=lambda size: (abs(size - self.own_size), size))
        if objective == "loss" and dense:
            sizes = self.sizes
        elif objective == "uniform":
            sizes = [max((s for s in self.sizes if s <= self.own_size), default=nearest)]
        else:
            # Taylor's first order (widths) holds for small changes alone; and with every size on
            # offer by energy SmolLM2 at 30 % was worse than with its own sizes (493 for 281)
            reach = WINDOW * self.own_size
            sizes = [s for s in self.sizes if abs(s - self.own_size) <= reach] or [nearest]
        options = [Option(size, losses[size], size * self.unit) for size in sizes]
        return options + dense if objective == "loss" else options


def parameters_left(total: int, ratio: float) -> int:
    return int(total * (1 - ratio) + 1e-6)  # 0.9 of 10 leaves 1, which floats make 0.99…


def choose(
    options: Mapping[str, Sequence[Option]], room: int
) -> tuple[dict[str, int | None], float, float]:
    """Return the sizes with the least loss within ``room`` parameters, the loss, its bound."""
    values = [[-option.loss for option in row] for row in options.values()]
    takes = [[option.parameters for option in row] for row in options.values()]
    smallest = sum(min(row) for row in takes)
    if smallest > room:
        raise PlanError(
            f"the smallest candidates take {smallest:,} parameters, and the ratio leaves "
            f"{room:,}: name a smaller ratio or multiple, or a source that knows smaller sizes"
        )
    solution = solve(values, [(takes, room)])
    chosen = zip(options, solution.choice, strict=True)
    sizes = {name: options[name][index].size for name, index in chosen}
    return sizes, -solution.value, -solution.bound
