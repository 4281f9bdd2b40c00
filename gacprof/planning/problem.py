"""What is known before any size is chosen: the request on one checkpoint and one source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gacprof.checkpoint.inventory import Gemm, Inventory, NewSizes
from gacprof.checkpoint.scanning import TensorReader
from gacprof.cliffmap.source import SizeSource
from gacprof.core.errors import PlanError
from gacprof.core.texts import LatencyLimit, latency_limits
from gacprof.diagnosing.predict import Predictor
from gacprof.diagnosing.profiles import CoupledDims
from gacprof.diagnosing.whole import Whole, benched
from gacprof.planning.axes import Bounds, Dims, grouped
from gacprof.planning.costs import Kept
from gacprof.planning.objectives import Lost, Objective, check_scores, energy_kept, objective
from gacprof.planning.request import OnTimes, SizesRequest
from gacprof.planning.requirements import Requirements, requirements


@dataclass(frozen=True)
class Compression:
    """What a compressor knows whose sizes are planned; nothing where a checkpoint is planned as it
    is. ``dense`` is the uncompressed model, which the user gave; ``own`` the one of the
    compressor's own sizes, where that is not the plan's; ``rounded`` what the compressor's own
    rounding makes of these. ``kept`` are the shares of energy kept of the original weights, which
    reach beyond a dim's size; ``lost`` is what sizes add to the loss."""

    dense: Inventory | None = None
    own: Inventory | None = None
    rounded: NewSizes | None = None
    kept: Kept | None = None
    lost: Lost | None = None

    @property
    def given(self) -> Literal["own", "dense"]:
        """Which model the user gave."""
        return "dense" if self.dense else "own"

    def products(self, at: Predictor, of: Literal["own", "dense"]) -> list[Gemm]:
        """The planned weights' products in one of these models."""
        model = self.dense if of == "dense" else self.own
        modules = [m for m in at.inventory.modules if m.dims]
        if model is not None:
            names = {module.name for module in modules}
            return [g for m in model.modules if m.name in names for g in m.gemms]
        ranks = (rank.name for m in modules for rank in at.inventory.ranks_of(m))
        return at.planned(dict.fromkeys(ranks) if of == "dense" else {})


PLAIN = Compression()


@dataclass(frozen=True)
class Problem:
    """What is known before any size is chosen. ``kept`` are the shares of energy that each rank
    keeps, empty where no spectra were read; ``groups`` the dims that take one size, and their
    bounds; ``required`` what an engine asks; ``limited`` the limits on time, ``compression`` holds
    the models that they may be relative to, and ``whole`` a bench of the model or of the
    uncompressed one."""

    request: SizesRequest
    predictor: Predictor
    goal: Objective
    kept: Kept
    groups: Sequence[tuple[Dims, Bounds]]
    required: Requirements
    limited: tuple[LatencyLimit, ...]
    compression: Compression
    whole: Whole | None

    @property
    def inventory(self) -> Inventory:
        return self.predictor.inventory

    @cached_property
    def coupled(self) -> CoupledDims:
        return CoupledDims(self.predictor, self.request.window)

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


def problem_of(
    inventory: Inventory,
    source: SizeSource,
    request: SizesRequest,
    compression: Compression = PLAIN,
    *,
    reader: TensorReader | None = None,
    all_spectra: bool = False,
) -> Problem:
    """Check the request against the checkpoint and the map, and read the spectra that the
    objective needs, or ``all_spectra``; ``reader`` reads tensors that are not on disk.

    Raises :class:`PlanError`, or :class:`CheckpointError` for factors that cannot be read.
    """
    dims, constraints = inventory.dims, request.constraints
    if not dims:
        raise PlanError(f"{inventory.path} has no adjustable dims: there is nothing to plan")
    goal = objective(request.objective, request.scores, compression.lost)
    limited = latency_limits(request.latency_limit_us)
    if not source.timed and goal.name == "latency":
        raise without_times(source)
    refuse_unmeasured(source, inventory, request)
    required = requirements(inventory, constraints.preset)
    tp = 1 if required.preset is None else required.preset.tp
    predictor = Predictor(source, inventory, request.tokens, request.dtype, tp)
    models = [inventory, *([compression.dense] if compression.dense else [])]
    whole = None if request.bench is None else benched(request.bench, models, predictor)
    free = [dim for dim in dims if dim.adjustable]
    if not free:
        raise PlanError(f"no dim of this checkpoint can be changed: {dims[0].why}")
    groups = grouped(free, constraints, required)
    unpinned = [dim.name for members, bounds in groups if bounds.pin is None for dim in members]
    check_scores(request.scores, [dim.name for dim in dims], unpinned)
    spectra = all_spectra or goal.name in ("energy", "latency") or request.least_kept is not None
    kept = compression.kept
    if kept is None:
        kept = energy_kept(inventory, dims, reader) if spectra else {}
    return Problem(request, predictor, goal, kept, groups, required, limited, compression, whole)


def without_times(source: SizeSource) -> PlanError:
    return PlanError(
        f"'{source.name}' is {source.basis} and knows no latency: ask for the objective pad, "
        "energy or gac, without a limit on latency"
    )


def refuse_unmeasured(
    source: SizeSource, inventory: Inventory, request: OnTimes, by: str = "--for"
) -> None:
    """Raise :class:`PlanError` for limits on time where the source knows none, or at token counts
    that it was not measured at, with the sweep (``by`` ``--for`` or ``--ranks``) of all counts that
    are asked for."""
    if not source.timed and (request.latency_limit_us is not None or request.dominate is not None):
        raise without_times(source)
    limits = [x for x in latency_limits(request.latency_limit_us) if x.tokens is not None]
    tokens, dtype = getattr(request, "tokens", None), getattr(request, "dtype", None)
    absent = [
        limit for limit in limits
        if Predictor(source, inventory, {limit.tokens or 0: 1.0}, dtype).tokens_note
    ]  # fmt: skip
    if not absent:
        return
    workload = Predictor(source, inventory, tokens, dtype).tokens
    counts = ",".join(map(str, sorted({*workload, *(x.tokens or 0 for x in limits)})))
    absent_counts = " and ".join(str(x.tokens) for x in absent)
    raise PlanError(
        f"the map '{source.name}' was not measured at {absent_counts} tokens, "
        f"which the latency limit '{absent[0].text}' needs: 'gacprof sweep {by} {inventory.path} "
        f"--tokens {counts}' measures all"
    )
