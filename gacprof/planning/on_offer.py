"""The sizes on offer for dims that take one size: what the source knows and the bounds and the
objective allow, beside any sizes of the dims that they meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gacprof.checkpoint.inventory import NEIGHBOUR_MULTIPLES, Dim
from gacprof.core.errors import PlanError
from gacprof.core.points import MAX_DIM
from gacprof.diagnosing.predict import Estimate
from gacprof.diagnosing.profiles import LEAST_REACH, around
from gacprof.planning.bounds import Bounds
from gacprof.planning.coupled import Axis, Dims, Kept, share_kept
from gacprof.stats.judge import judge

if TYPE_CHECKING:
    from gacprof.planning.problem import Problem


def axis_of(problem: Problem, members: Dims, bounds: Bounds) -> Axis:
    """The sizes that dims of one size may be offered, beside any sizes of the others that the map
    holds. Raises :class:`PlanError` for a size that a dim cannot have."""
    if bounds.pin is not None:
        refused = _refusal(members, bounds.pin, pinned=True)
        if refused:
            raise PlanError(f"{members[0].name} cannot be pinned to {bounds.pin}: {refused}")
        return Axis(members, bounds, (bounds.pin,))
    like = _likeness(problem, members, bounds)
    if like is None:
        return _axis(problem, members, bounds)
    found: Axis = problem.predictor.once(like, lambda: _axis(problem, members, bounds))
    return replace(found, members=members)


def _likeness(problem: Problem, members: Dims, bounds: Bounds) -> object:
    """What the sizes on offer follow from: the same for equal experts. None where others meet."""
    dim = members[0]
    if len(members) > 1 or dim.name in problem.kept or problem.coupled.of(dim):
        return None
    described = dim.kind, dim.ordered, dim.padding, dim.why, dim.dense_size
    dense = [
        (m.out_features, m.in_features, len(m.gemms), problem.required.allows_dense(m.name))
        for m in problem.inventory.modules_of(dim.name)
    ]
    return (
        "axis",
        problem.goal.name,
        problem.predictor.shape_of(dim),
        described,
        tuple(dense),
        bounds,
    )


def _axis(problem: Problem, members: Dims, bounds: Bounds) -> Axis:
    goal = problem.goal
    now = max(dim.size for dim in members)
    found = _known_sizes(problem, members, bounds)
    request = problem.request
    whole = request.least_kept == 1.0 and not request.has_budget  # nothing may be lost of any dim
    offered = sorted(
        size
        for size, verdicts in found.items()
        if (True in verdicts.values() or not goal.safe)
        and (size >= now or not goal.pads)
        and (not goal.weighs or all(_keeps(d, size, problem.kept, whole) for d in members))
    )
    if goal.nearest is not None:
        below, above = ([s for s in offered if (s < now) == less] for less in (True, False))
        offered = below[-goal.nearest :] + above[: goal.nearest]
    axis = Axis(members, bounds)
    dense: tuple[None, ...] = ()
    if len(members) == 1 and problem.request.constraints.fuse and goal.nearest is None:
        noisy = problem.predictor.noisy
        dense = (None,) if not noisy and _may_be_dense(problem, members[0], bounds) else ()
    held = "" if offered or dense else _why_held(problem, members, found)
    if not axis.may_stay and held:
        which = (
            "have no common size" if not axis.alike and bounds == Bounds() else f"must be {bounds}"
        )
        raise PlanError(f"{axis.name} {which}: {nothing_safe(problem, axis)}")
    meets = any(problem.coupled.of(dim) for dim in members)  # others may have to decide
    stays = axis.may_stay and (meets or held or problem.request.constraints.untouched)
    sizes = sorted({*offered, now} if stays else {*offered})
    return replace(axis, sizes=(*sizes, *dense), held=held)


def _keeps(dim: Dim, size: int, kept: Kept, whole: bool) -> bool:
    """Whether what the size keeps of a dim's energy is known, or is all of it."""
    share = share_kept(dim, size, kept)
    return share == 1.0 if whole else share is not None


def _known_sizes(
    problem: Problem, members: Dims, bounds: Bounds
) -> Mapping[int, Mapping[str, bool | str]]:
    """The sizes within reach that the map knows of all members, beside the others as they are or at
    multiples: by verdict, whether the size may be chosen by it."""
    low, high = _reach(members, problem.request.window, bounds)
    coupled, now = problem.coupled, max(dim.size for dim in members)
    found: dict[int, dict[str, bool]] = {}
    for multiple in (1, *NEIGHBOUR_MULTIPLES):
        others = [coupled.rounded(dim, multiple) for dim in members]
        pairs = list(zip(members, others, strict=True))
        nears = [coupled.profile_at(dim, at, (), (low, high)) for dim, at in pairs]
        tried = set[int]().union(*(near.on_offer for near in nears)) | {now}
        if len(members) > 1:  # a size that was measured of one may be looked up for another
            also = tuple(sorted(tried))
            nears = [coupled.profile_at(dim, at, also, (low, high)) for dim, at in pairs]
        for size in tried if all(near.on_offer for near in nears) else ():
            costs = [near.profile.costs.get(size) for near in nears]
            if low <= size <= high and bounds.allow(size) and not _refusal(members, size):
                known = [cost.verdict for cost in costs if cost is not None]
                if len(known) == len(costs):
                    offers = all(near.profile.offers(size, near.dim.size) for near in nears)
                    worst = min(known, key=("misaligned", "undecided", "safe").index)
                    verdicts = found.setdefault(size, {})
                    verdicts[worst] = verdicts.get(worst, False) or offers
        if not any(coupled.of(dim) for dim in members):
            break
    return {} if problem.predictor.noisy else found


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


def _may_be_dense(problem: Problem, dim: Dim, bounds: Bounds) -> bool:
    """Whether the dense weight in place of the pair is on offer: where the rank is its module's
    only one, and, for an objective that asks for safe sizes, where it is surely no slower than the
    pair as it is, in the workload or in one that is limited. A request for ``dense`` weights asks
    neither for that nor for less work."""
    asked = problem.request.constraints.dense
    if dim.kind != "rank" or dim.padding == "refused":
        return False
    for module in problem.inventory.modules_of(dim.name):
        ranks = [n for n in module.dims if problem.inventory.dim(n).kind == "rank"]
        dense = problem.predictor.dense(module)
        full = dim.dense_size or min(module.out_features, module.in_features)
        within = bounds.within(max(full, dim.size)) or asked
        if not within or len(ranks) > 1 or not problem.required.allows_dense(module.name):
            return False
        if dense.latency_us is None:  # of times nothing is known: only what is less work
            smaller = module.out_features * module.in_features <= dim.size * dim.params_per_unit
            return (smaller or asked) and problem.predictor.served_well(module)
        return (
            asked
            or not problem.goal.safe
            or any(
                _no_slower(by.dense(module), by.dim(dim, dim.size), by.tolerance)
                for by in (problem.predictor, *problem.timed)
            )
        )
    return False


def _no_slower(dense: Estimate, pair: Estimate, tolerance: float) -> bool:
    """Whether the dense weight surely takes no longer than the factor pair, if that is known."""
    if dense.latency_us is None or pair.latency_us is None:
        return True
    known = None if dense.error is None or pair.error is None else [dense.error, pair.error]
    return judge([dense.latency_us, pair.latency_us], known, tolerance).verdict[0] == "safe"


def _why_held(
    problem: Problem, members: Dims, found: Mapping[int, Mapping[str, bool | str]]
) -> str:
    """What leaves dims without a size to choose."""
    if problem.predictor.noisy:
        return next(note for note in problem.predictor.view.notes if "noisy" in note)
    missing = _missing(problem, members)
    if missing:
        return missing
    if not found:
        return "the map knows no size near it"
    order = ("safe", "undecided", "misaligned")
    best = Counter(next(v for v in order if v in verdicts) for verdicts in found.values())
    counted = ", ".join(f"{count} {verdict}" for verdict, count in best.items())
    none = f"none suits the objective '{problem.goal.name}'" if best["safe"] else "none is safe"
    return f"of the sizes near it that the map knows {none} ({counted})"


def _missing(problem: Problem, members: Dims) -> str:
    """Which product of theirs the map lacks, where it lacks one."""
    profiles = (problem.coupled.profile_at(dim, {}).profile for dim in members)
    return next((profile.missing for profile in profiles if profile.missing), "")


def nothing_safe(problem: Problem, axis: Axis) -> str:
    bounds = axis.bounds
    for dim in axis.members:
        if dim.most is not None and max(bounds.least, bounds.multiple) > dim.most:
            return f"the dense weight's rank is {dim.dense_size}"
    dim, wider = axis.members[0], "a wider --window offers more sizes"
    known = problem.predictor.sizes(dim, 1, MAX_DIM)
    if known and not known[0] <= dim.size <= known[-1]:
        wider = f"its sizes of {dim.name} are from {known[0]} to {known[-1]}"
    why = _missing(problem, axis.members) or wider
    if bounds.multiple > 1:
        engine = bounds.demanded.partition(":")[0]
        why = f"'gacprof sweep --for CHECKPOINT --preset {engine}' measures such sizes"
    return f"the map knows no such size that suits the objective ({why})"


def also_of(axis: Axis) -> tuple[int, ...]:
    """Sizes that were measured of one of several dims, and may be looked up for another."""
    return tuple(size for size in axis.sizes if size is not None) if len(axis.members) > 1 else ()
