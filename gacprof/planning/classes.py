"""From dims to knapsack classes: what each dim may become, what it costs, what it would take.

Dims that must share one size (a common width for a plain config, say) form one class, whose
cost, latency and loss are the sums over its members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gacprof.checkpoint.inventory import Dim
from gacprof.cliffmap.judge import Verdict, judge
from gacprof.core.errors import PlanError
from gacprof.diagnosing.companions import Sizes, beside, time_together
from gacprof.diagnosing.latency_profile import (
    LEAST_REACH,
    LatencyProfile,
    around,
    latency_profile,
)
from gacprof.diagnosing.predict import Estimate, Predictor
from gacprof.planning.memory import bytes_per_unit, dense_bytes
from gacprof.planning.objectives import candidates, share_kept
from gacprof.planning.presets import Requirements
from gacprof.planning.request import Bounds

if TYPE_CHECKING:
    from gacprof.planning.problem import Problem

Dims = tuple[Dim, ...]
Kept = Mapping[str, Sequence[float]]
"""By dim name: the share of energy kept at each size from 0 to the dim's own, or to the original
weight's where that is at hand."""


@dataclass(frozen=True)
class Option:
    """One size for a class of dims. Costs are parameters, latency µs, over all members.

    ``nbytes`` are the cost as stored, at the dtypes of the weights. ``kept`` is the share of
    the members' energy (squared singular values) that the size keeps, summed over members and
    None where it is not known; ``verdict`` is the map's word on the worst member, whose penalty is
    at most ``penalty_high``; ``offered`` is whether a plan may choose the size by it
    (:meth:`LatencyProfile.offers`). ``fused`` means that the factor pair is multiplied out to one
    dense weight instead; ``size`` is then the rank that such a weight can have.
    """

    size: int
    cost: int
    nbytes: int
    latency_us: float | None
    verdict: Verdict | None
    kept: float | None = None
    fused: bool = False
    offered: bool = False
    penalty_high: float | None = None

    @property
    def safe(self) -> bool:
        return self.verdict == "safe"


@dataclass(frozen=True)
class DimClass:
    """Dims that take one common size, and the options they have, ascending by size.

    A class that is pinned has that one option. ``untouched`` stands for all members as they
    are, its size being the largest of theirs. ``candidates`` are the options that suit the
    objective; where there are none, the class stays as it is.
    """

    members: Dims
    options: tuple[Option, ...]
    untouched: Option
    bounds: Bounds
    missing: str = ""
    candidates: tuple[Option, ...] = ()

    @property
    def name(self) -> str:
        first = self.members[0].name
        return first if len(self.members) == 1 else f"{first} and {len(self.members) - 1} more"

    @property
    def before(self) -> int:
        """Parameters of the members as they are."""
        return self.untouched.cost

    @property
    def as_it_is(self) -> Option | None:
        """The option of its own size, with the map's word on it, where there is one."""
        own = (o for o in self.options if o.size == self.untouched.size and not o.fused)
        return next(own, None)

    @property
    def is_untouched(self) -> bool:
        """Whether the size of ``untouched`` is that of every member."""
        return all(dim.size == self.untouched.size for dim in self.members)


def build_class(problem: Problem, members: Dims, bounds: Bounds, sizes: Sizes) -> DimClass:
    """What dims that share one size may become, each judged beside the others at ``sizes``.

    Raises :class:`PlanError` for a size that a dim cannot have.
    """
    predictor, request = problem.predictor, problem.request
    near = beside(predictor, members, members, sizes)
    untouched = _untouched(near, members)
    if bounds.pin is not None:
        option = _pinned(near, members, bounds.pin, problem.kept)
        return DimClass(members, (option,), untouched, bounds, candidates=(option,))
    like = _likeness(problem, near, members, bounds)
    found = predictor.memo.get(like) if like else None
    options, missing = found or _options(problem, near, members, bounds, sizes)
    if like:
        predictor.memo[like] = options, missing
    if len(members) == 1 and request.constraints.fuse:
        dense = _fused(near, members[0], untouched, problem.required)
        options += tuple(option for option in dense if bounds.within(option.size))
    group = DimClass(members, options, untouched, bounds, missing)
    return replace(group, candidates=candidates(problem.goal, group, request.constraints.untouched))


def _likeness(
    problem: Problem, near: Predictor, members: Dims, bounds: Bounds
) -> tuple[object, ...] | None:
    """What a dim's options follow from, the same for equal experts; None for several dims and for
    one with a spectrum of its own."""
    dim = members[0]
    if len(members) > 1 or dim.name in problem.kept:
        return None
    of_dim = (dim.kind, dim.ordered, dim.padding, dim.why, dim.dense_size, dim.params_per_unit)
    stored = bytes_per_unit(problem.inventory, dim)
    return "options", near.shape_of(dim), of_dim, stored, bounds


def _options(
    problem: Problem, near: Predictor, members: Dims, bounds: Bounds, sizes: Sizes
) -> tuple[tuple[Option, ...], str]:
    """The sizes that the map and the bounds allow, and which product the map lacks, if any."""
    reach = _reach(members, problem.request.window, bounds)
    profiles = _profiles(problem.predictor, members, reach, sizes)
    common = set.intersection(*(set(profile.costs) for profile in profiles))
    allowed = [s for s in sorted(common) if bounds.allow(s) and not _refusal(members, s)]
    options = tuple(_option(near, members, profiles, size, problem.kept) for size in allowed)
    return options, next((profile.missing for profile in profiles if profile.missing), "")


def _profiles(
    predictor: Predictor, members: Dims, reach: tuple[int, int], sizes: Sizes
) -> list[LatencyProfile]:
    """One of each member, beside its companions."""
    nears = [(beside(predictor, members, [dim], sizes), dim) for dim in members]
    found = [latency_profile(near, dim, *reach) for near, dim in nears]
    if len(members) == 1:
        return found
    # A size that was measured of one member may be looked up for another.
    tried = set[int]().union(*(profile.costs for profile in found))
    return [latency_profile(near, dim, *reach, also=tried) for near, dim in nears]


def _reach(members: Dims, window: float, bounds: Bounds) -> tuple[int, int]:
    """The window, moved to what is allowed where the two do not meet. The nearest multiples that
    an engine takes are in it whatever its width."""
    low, high = around(members, window)
    if bounds.multiple > 1:
        sizes = [dim.size for dim in members]
        low = min(low, max(1, min(sizes) // bounds.multiple) * bounds.multiple)
        high = max(high, -(-max(sizes) // bounds.multiple) * bounds.multiple)
    if bounds.least > high:
        low = bounds.least
        high = low + max(LEAST_REACH, round(low * window))
    if bounds.most is not None and bounds.most < low:
        high = bounds.most
        low = max(1, high - max(LEAST_REACH, round(high * window)))
    return low, high


def _untouched(predictor: Predictor, members: Dims) -> Option:
    return Option(
        max(dim.size for dim in members),
        sum(dim.size * dim.params_per_unit for dim in members),
        sum(dim.size * bytes_per_unit(predictor.inventory, dim) for dim in members),
        time_together(predictor, members, {}),
        None,
        float(len(members)),
    )


def _option(
    predictor: Predictor,
    members: Dims,
    profiles: Sequence[LatencyProfile],
    size: int,
    kept: Kept,
) -> Option:
    verdict, high = _worst(profiles, size)
    shares = [share_kept(dim, size, kept) for dim in members]
    known = [share for share in shares if share is not None]
    only = profiles[0].costs.get(size) if len(members) == 1 else None
    sizes = {dim.name: size for dim in members}
    latency = only.latency_us if only else time_together(predictor, members, sizes)
    return Option(
        size,
        sum(size * dim.params_per_unit for dim in members),
        sum(size * bytes_per_unit(predictor.inventory, dim) for dim in members),
        latency,
        verdict,
        sum(known) if len(known) == len(shares) else None,
        penalty_high=high,
        offered=all(p.offers(size, dim.size) for p, dim in zip(profiles, members, strict=True)),
    )


def _worst(profiles: Sequence[LatencyProfile], size: int) -> tuple[Verdict | None, float | None]:
    """The verdict on the size over all members, and the bound of its penalty."""
    known = [profile.costs[size] for profile in profiles if size in profile.costs]
    if len(known) < len(profiles):
        return None, None
    order: tuple[Verdict, ...] = ("misaligned", "undecided", "safe")
    worst = min((cost.verdict for cost in known), key=order.index)
    bounds = [cost.penalty_high for cost in known if cost.penalty_high is not None]
    return worst, max(bounds) if len(bounds) == len(known) else None


def _pinned(predictor: Predictor, members: Dims, size: int, kept: Kept) -> Option:
    """The one option of a pinned class. Raises :class:`PlanError` where it cannot be made."""
    refused = _refusal(members, size, pinned=True)
    if refused:
        raise PlanError(f"{members[0].name} cannot be pinned to {size}: {refused}")
    profiles = [latency_profile(predictor, dim, size, size) for dim in members]
    return _option(predictor, members, profiles, size, kept)


def _refusal(members: Dims, size: int, pinned: bool = False) -> str:
    """Why the dims cannot have the size; empty where they can.

    A rank whose directions are in no order can be cut, by an SVD, but what that loses is not
    known here: only a pin asks for it.
    """
    for dim in members:
        cut = size < dim.size and not dim.ordered
        if cut and (dim.kind == "hidden" or (dim.kind == "rank" and not pinned)):
            return f"its {dim.size} entries are in no order of importance, so none can be cut"
        if size > dim.size and dim.padding == "refused":
            return dim.why
        if dim.most is not None and size > dim.most:
            return f"the dense weight's rank is {dim.dense_size}"
    return ""


def _fused(
    predictor: Predictor, dim: Dim, untouched: Option, required: Requirements
) -> list[Option]:
    """The dense weight in place of the pair, where the rank is a module's only one. It suits an
    objective that asks for safe sizes only where it is surely no slower than the pair as it is."""
    inventory = predictor.inventory
    if dim.kind != "rank" or dim.padding == "refused":
        return []
    for module in inventory.modules:
        if dim.name not in module.dims:
            continue
        ranks = [name for name in module.dims if inventory.dim(name).kind == "rank"]
        bias = any(gemm.bias for gemm in module.gemms)
        dense = predictor.gemm(module.out_features, module.in_features, bias)
        timed = dense.latency_us is not None
        if len(ranks) > 1 or not required.allows_dense(module.name):
            return []
        if not timed and not predictor.served_well(module):
            return []
        rank = dim.dense_size or min(module.out_features, module.in_features)
        if timed:
            offered = _no_slower(dense, predictor.dim(dim, dim.size), predictor.tolerance)
        else:  # of times nothing is known: only what is less work is offered
            offered = module.out_features * module.in_features <= untouched.cost
        return [
            Option(
                max(rank, dim.size),
                module.out_features * module.in_features,
                dense_bytes(inventory, module),
                dense.latency_us,
                "safe",
                1.0,
                fused=True,
                offered=offered,
                penalty_high=0.0,
            )
        ]
    return []


def _no_slower(dense: Estimate, pair: Estimate, tolerance: float) -> bool:
    """Whether the dense weight surely takes no longer than the factor pair, if that is known."""
    if dense.latency_us is None or pair.latency_us is None:
        return True
    known = None if dense.error is None or pair.error is None else [dense.error, pair.error]
    return judge([dense.latency_us, pair.latency_us], known, tolerance).verdict[0] == "safe"
