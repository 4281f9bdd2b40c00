"""A request on one checkpoint and one map: what is known before any size is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gacprof.checkpoint.inventory import Dim, Inventory, NewSizes
from gacprof.checkpoint.tensors import TensorReader
from gacprof.cliffmap.source import SizeSource
from gacprof.core.errors import PlanError
from gacprof.diagnosing.neighbours import Neighbours, Word
from gacprof.diagnosing.predict import NOTHING, Predictor
from gacprof.planning.bounds import Bounds, grouped
from gacprof.planning.classes import DimClass, build_classes
from gacprof.planning.coupled import Axis, Dims, Kept
from gacprof.planning.memory import Ceiling, ceilings
from gacprof.planning.objectives import Objective, check_scores, energy_kept, objective
from gacprof.planning.on_offer import also_of, dense_of
from gacprof.planning.presets import Requirements, requirements
from gacprof.planning.request import SizesRequest


@dataclass(frozen=True)
class Limits:
    """What a plan must keep to, over all planned dims; None is no limit.

    ``latency_us`` is the workload's predicted time in the products of the planned weights;
    ``energy_kept`` is the least mean share of energy.
    """

    parameters: Ceiling | None = None
    memory: Ceiling | None = None
    latency_us: float | None = None
    energy_kept: float | None = None

    @property
    def active(self) -> tuple[str, ...]:
        """What is limited."""
        given = {
            "parameters": self.parameters, "memory": self.memory,
            "latency": self.latency_us, "energy": self.energy_kept,
        }  # fmt: skip
        return tuple(name for name, limit in given.items() if limit is not None)


@dataclass(frozen=True)
class Problem:
    """``kept`` are the shares of energy that each rank keeps, empty where no spectra were read;
    ``groups`` the dims that take one size, and their bounds; ``required`` what an engine asks."""

    request: SizesRequest
    predictor: Predictor
    goal: Objective
    kept: Kept
    groups: Sequence[tuple[Dims, Bounds]]
    required: Requirements

    @property
    def inventory(self) -> Inventory:
        return self.predictor.inventory

    @cached_property
    def neighbours(self) -> Neighbours:
        return Neighbours(self.predictor, self.request.window)

    def word(self, axis: Axis, dim: Dim, sizes: NewSizes) -> Word:
        """What the map says of the dim's size beside the sizes of those that it meets."""
        size = sizes[dim.name]
        assert size is not None
        return self.neighbours.word(dim, size, sizes, also_of(axis))

    def dense_us(self, dim: Dim) -> float | None:
        """The time of the dim's modules multiplied out."""
        modules = self.inventory.modules_of(dim.name)
        return sum((dense_of(self, module) for module in modules), NOTHING).latency_us

    def classes(self, limits: Limits | None = None) -> list[DimClass]:
        """The choices of the plan, their options kept apart for what is limited.

        Raises :class:`PlanError` where nothing is on offer at all.
        """
        classes = build_classes(self, limits.active if limits else ())
        held = [axis for group in classes for axis in group.axes if axis.held]
        if len(held) == len(self.groups) and not self.predictor.noisy:
            why = self.predictor.tokens_note or f"({held[0].held})"
            sweep = "'gacprof sweep --for CHECKPOINT' measures what a plan needs "
            colon = ": " if self.predictor.tokens_note else f"; {sweep}"
            raise PlanError(
                f"the map knows no safe size for any dim of this checkpoint{colon}{why}"
            )
        return classes

    def limits(self, least_kept: float | None) -> Limits:
        """The request's limits. What an objective itself makes the most of need not be a resource
        beside the budget: the best there is meets the limit, or nothing does."""
        parameters, memory = ceilings(self.inventory, self.request)
        return Limits(
            parameters,
            memory,
            None if self.goal.name == "latency" else self.request.latency_limit_us,
            None if self.goal.name == "energy" else least_kept,
        )


def problem_of(
    inventory: Inventory,
    source: SizeSource,
    request: SizesRequest,
    *,
    reader: TensorReader | None = None,
    all_spectra: bool = False,
    kept: Kept | None = None,
) -> Problem:
    """Check the request against the checkpoint and the map, and read the spectra that the
    objective needs, or ``all_spectra``; ``reader`` reads tensors that are not on disk. Where the
    original weights are at hand, ``kept`` are the spectra, and reach beyond a dim's size.

    Raises :class:`PlanError`, or :class:`CheckpointError` for factors that cannot be read.
    """
    dims = inventory.dims
    if not dims:
        raise PlanError(f"{inventory.path} has no adjustable dims: there is nothing to plan")
    goal = objective(request.objective, request.scores)
    if not source.timed and (goal.name == "latency" or request.latency_limit_us is not None):
        raise PlanError(
            f"'{source.name}' is {source.basis} and knows no latency: ask for the objective pad, "
            "energy or gac, without a limit on latency"
        )
    required = requirements(inventory, request.constraints.preset)
    tp = 1 if required.preset is None else required.preset.tp
    predictor = Predictor(source, inventory, request.tokens, request.dtype, tp)
    free = [dim for dim in dims if dim.adjustable]
    if not free:
        raise PlanError(f"no dim of this checkpoint can be changed: {dims[0].why}")
    groups = grouped(free, request.constraints, required)
    unpinned = [dim.name for members, bounds in groups if bounds.pin is None for dim in members]
    check_scores(request.scores, [dim.name for dim in dims], unpinned)
    spectra = all_spectra or goal.name in ("energy", "latency") or request.least_kept is not None
    if kept is None:
        kept = energy_kept(inventory, dims, reader) if spectra else {}
    return Problem(request, predictor, goal, kept, groups, required)
