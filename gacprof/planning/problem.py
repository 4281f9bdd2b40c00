"""A request on one checkpoint and one map: what is known before any size is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from gacprof.checkpoint.inventory import Dim, Inventory, NewSizes
from gacprof.checkpoint.tensors import TensorReader
from gacprof.cliffmap.source import SizeSource
from gacprof.core.errors import PlanError
from gacprof.core.texts import LatencyLimit, latency_limits, multiple_of
from gacprof.diagnosing.predict import NOTHING, Predictor
from gacprof.diagnosing.profiles import CoupledDims, Offer
from gacprof.diagnosing.whole import Whole, benched
from gacprof.planning.bounds import Bounds, grouped
from gacprof.planning.classes import DimClass, build_classes
from gacprof.planning.coupled import Axis, Dims, Kept
from gacprof.planning.limits import (
    ROUNDING,
    Ceiling,
    Limits,
    References,
    TimeLimit,
    ceilings,
    of_all,
    refuse_unmeasured,
    rounded,
    time_limit,
)
from gacprof.planning.memory import footprint, planned
from gacprof.planning.objectives import Lost, Objective, check_scores, energy_kept, objective
from gacprof.planning.on_offer import also_of
from gacprof.planning.presets import Requirements, requirements
from gacprof.planning.request import SizesRequest


@dataclass(frozen=True)
class Problem:
    """``kept`` are the shares of energy that each rank keeps, empty where no spectra were read;
    ``groups`` the dims that take one size, and their bounds; ``required`` what an engine asks;
    ``limited`` the limits on time, ``references`` what they may be relative to, and ``whole`` a
    bench of the model or of the uncompressed one."""

    request: SizesRequest
    predictor: Predictor
    goal: Objective
    kept: Kept
    groups: Sequence[tuple[Dims, Bounds]]
    required: Requirements
    limited: tuple[LatencyLimit, ...] = ()
    references: References = field(default_factory=References)
    whole: Whole | None = None

    @property
    def inventory(self) -> Inventory:
        return self.predictor.inventory

    @cached_property
    def coupled(self) -> CoupledDims:
        return CoupledDims(self.predictor, self.request.window)

    def offer(self, axis: Axis, dim: Dim, sizes: NewSizes) -> Offer:
        """What the map says of the dim's size beside the sizes of those that it meets."""
        size = sizes[dim.name]
        assert size is not None
        return self.coupled.offer(dim, size, sizes, also_of(axis))

    def dense_us(self, dim: Dim) -> float | None:
        """The time of the dim's modules multiplied out."""
        modules = self.inventory.modules_of(dim.name)
        return sum((self.predictor.dense(module) for module in modules), NOTHING).latency_us

    def classes(self, limits: Limits | None = None) -> list[DimClass]:
        """The choices of the plan, their options kept apart for what is limited.

        Raises :class:`PlanError` where nothing is on offer at all.
        """
        classes = build_classes(self, limits or Limits())
        held = [axis for group in classes for axis in group.axes if axis.held]
        if len(held) == len(self.groups) and not self.predictor.noisy:
            why = self.predictor.tokens_note or f"({held[0].held})"
            sweep = "'gacprof sweep --for CHECKPOINT' measures what a plan needs "
            colon = ": " if self.predictor.tokens_note else f"; {sweep}"
            raise PlanError(
                f"the map knows no safe size for any dim of this checkpoint{colon}{why}"
            )
        return classes

    @cached_property
    def phases(self) -> dict[int, Predictor]:
        """The workload's token counts and those of the limits, each by itself."""
        named = [each.tokens for each in self.limited if each.tokens is not None]
        counts = sorted({*self.predictor.tokens, *named})
        return {count: self.predictor.at(count) for count in counts}

    @property
    def timed(self) -> tuple[Predictor, ...]:
        """Of every workload that is limited in time."""
        if self.request.dominate is not None:
            return tuple(self.phases.values())
        each = (self.phases.get(limit.tokens or 0, self.predictor) for limit in self.limited)
        return tuple({id(predictor): predictor for predictor in each}.values())

    def limits(self) -> Limits:
        """The request's limits.

        Raises :class:`PlanError` where a limit is relative to what is not known.
        """
        asked = self.request
        parameters, memory = ceilings(self.inventory, asked)
        times = [
            time_limit(limit, at, self.references, self._rest_us(at))
            for limit in self.limited
            for at in (self.phases.get(limit.tokens or 0, self.predictor),)
        ]
        if asked.dominate is not None:
            room, fast = self._dominated(asked.dominate)
            parameters = min(filter(None, (parameters, room)), key=lambda each: each.most)
            times += fast
        return Limits(parameters, memory, tuple(times), asked.least_kept, break_even=bool(times))

    def _rest_us(self, at: Predictor) -> float | None:
        """What the step takes besides the planned weights' products, where a bench tells."""
        if self.whole is None or len(at.tokens) > 1:
            return None
        own = at.planned({})
        step, products = self.whole.step_us(at, own), at.gemms(own).latency_us
        return None if step is None or products is None else max(0.0, step - products)

    @property
    def baseline(self) -> NewSizes:
        """The sizes that the plan is to dominate; empty where that is not asked for."""
        asked = self.request.dominate
        if asked is None:
            return {}
        return self.references.rounded or rounded(self.inventory.dims, multiple_of(asked))

    def _dominated(self, baseline: str) -> tuple[Ceiling, list[TimeLimit]]:
        """No larger than the baseline, and no slower at any token count of the workload."""
        sizes = self.baseline
        now, then = (footprint(self.inventory, each).parameters for each in ({}, sizes))
        weights = planned(self.inventory, [dim for dim in self.inventory.dims if dim.adjustable])
        room = of_all(then, now, weights.parameters, "parameters")
        room = replace(room, basis=f"{room.basis}, as {baseline} has")
        times = []
        for count, predictor in self.phases.items():
            took = predictor.weights(sizes)
            if took.latency_us is None:
                told = f"how long {baseline} takes at {count} tokens is not known"
                raise PlanError(f"{told}: {took.missing}")
            message = (
                f"{{:.1f}} µs at {count} tokens, where {baseline} takes {took.latency_us:.1f} µs"
            )
            most, asked = (
                took.latency_us * (1 + ROUNDING),
                f"--dominate {baseline} ({count} tokens)",
            )
            times.append(TimeLimit(predictor, most, asked, message.format))
        return room, times


def problem_of(
    inventory: Inventory,
    source: SizeSource,
    request: SizesRequest,
    *,
    reader: TensorReader | None = None,
    all_spectra: bool = False,
    kept: Kept | None = None,
    references: References | None = None,
    lost: Lost | None = None,
) -> Problem:
    """Check the request against the checkpoint and the map, and read the spectra that the
    objective needs, or ``all_spectra``; ``reader`` reads tensors that are not on disk. Where the
    original weights are at hand, ``kept`` are the spectra, and reach beyond a dim's size; ``lost``
    is what sizes add to the loss, for the objective ``loss``.

    Raises :class:`PlanError`, or :class:`CheckpointError` for factors that cannot be read.
    """
    dims = inventory.dims
    if not dims:
        raise PlanError(f"{inventory.path} has no adjustable dims: there is nothing to plan")
    goal = objective(request.objective, request.scores, lost)
    limited = latency_limits(request.latency_limit_us)
    if not source.timed and (goal.name == "latency" or limited or request.dominate):
        raise PlanError(
            f"'{source.name}' is {source.basis} and knows no latency: ask for the objective pad, "
            "energy or gac, without a limit on latency"
        )
    if limited:
        refuse_unmeasured(source, inventory, request)
    required = requirements(inventory, request.constraints.preset)
    tp = 1 if required.preset is None else required.preset.tp
    predictor = Predictor(source, inventory, request.tokens, request.dtype, tp)
    references = references or References()
    models = [inventory, *([references.dense] if references.dense else [])]
    whole = None if request.bench is None else benched(request.bench, models, predictor)
    free = [dim for dim in dims if dim.adjustable]
    if not free:
        raise PlanError(f"no dim of this checkpoint can be changed: {dims[0].why}")
    groups = grouped(free, request.constraints, required)
    unpinned = [dim.name for members, bounds in groups if bounds.pin is None for dim in members]
    check_scores(request.scores, [dim.name for dim in dims], unpinned)
    spectra = all_spectra or goal.name in ("energy", "latency") or request.least_kept is not None
    if kept is None:
        kept = energy_kept(inventory, dims, reader) if spectra else {}
    return Problem(request, predictor, goal, kept, groups, required, limited, references, whole)
