"""The sizes on offer to an axis: what the source of sizes knows, and what the user, an engine and
the objective allow.

Here a size counts whatever the dims that it meets become; :mod:`gacprof.planning.classes` judges
it at their sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gacprof.checkpoint.inventory import NEIGHBOUR_MULTIPLES, Dim
from gacprof.core.errors import PlanError
from gacprof.core.points import MAX_DIM
from gacprof.diagnosing.profiles import LEAST_REACH, around
from gacprof.planning.axes import Bounds, Dims, SizeAxis
from gacprof.planning.costs import Kept, share_kept
from gacprof.planning.problem import Problem


def axis_of(problem: Problem, members: Dims, bounds: Bounds) -> SizeAxis:
    """The dims with the sizes on offer to them. Raises :class:`PlanError` for a size that a dim
    cannot have."""
    like = _likeness(problem, members, bounds)
    if bounds.pin is not None:
        refused = _refusal(members, bounds.pin, pinned=True)
        if refused:
            raise PlanError(f"{members[0].name} cannot be pinned to {bounds.pin}: {refused}")
        return SizeAxis(members, bounds, (bounds.pin,), like=like)
    if like is None:
        return _axis(problem, members, bounds)
    found: SizeAxis = problem.predictor.once(
        ("axis", like), lambda: _axis(problem, members, bounds)
    )
    return replace(found, members=members, like=like)


def _likeness(problem: Problem, members: Dims, bounds: Bounds) -> object:
    """All that the sizes and options of a dim follow from; None where others take its size or meet
    it, or it has a spectrum or a score."""
    dim, inventory = members[0], problem.inventory
    own = dim.name in problem.kept or problem.goal.scores
    if len(members) > 1 or own or problem.coupled.of(dim):
        return None
    written = (
        (place.axis, place.start, inventory.tensors[place.tensor].shape,
         inventory.tensors[place.tensor].nbytes)
        for place in dim.places
    )  # fmt: skip
    dense = (
        (m.out_features, m.in_features, len(m.gemms), problem.required.allows_dense(m.name))
        for m in inventory.modules_of(dim.name)
    )
    about = dim.kind, dim.ordered, dim.padding, dim.why, dim.dense_size, dim.params_per_unit
    shape = problem.predictor.shape_of(dim)
    return problem.goal.name, bounds, shape, about, tuple(written), tuple(dense)


def _axis(problem: Problem, members: Dims, bounds: Bounds) -> SizeAxis:
    goal, request = problem.goal, problem.request
    axis = SizeAxis(members, bounds)
    found = _known_sizes(problem, members, bounds)
    whole = request.least_kept == 1.0 and not request.has_budget  # nothing may be lost of any dim
    offered = sorted(
        size
        for size, verdicts in found.items()
        if (True in verdicts.values() or not goal.safe)
        and (size >= axis.now or not goal.pads)
        and (not goal.weighs or all(_keeps(d, size, problem.kept, whole) for d in members))
    )
    if goal.nearest is not None:
        below = [size for size in offered if size < axis.now]
        offered = below[-goal.nearest :] + offered[len(below) :][: goal.nearest]
    fuses = request.constraints.fuse and goal.nearest is None and not problem.predictor.noisy
    dense: tuple[None, ...] = ()
    if fuses and len(members) == 1 and _may_be_dense(problem, axis, offered):
        dense = (None,)
    held = "" if offered or dense else _why_held(problem, members, found)
    if not axis.may_stay and held:
        which = (
            "have no common size" if not axis.alike and bounds == Bounds() else f"must be {bounds}"
        )
        raise PlanError(f"{axis.name} {which}: {nothing_safe(problem, axis)}")
    meets = any(problem.coupled.of(dim) for dim in members)  # others may have to decide
    stays = axis.may_stay and (meets or held or request.constraints.untouched)
    sizes = sorted({*offered, axis.now} if stays else {*offered})
    return replace(axis, sizes=(*sizes, *dense), held=held)


def _keeps(dim: Dim, size: int, kept: Kept, whole: bool) -> bool:
    """Whether what the size keeps of a dim's energy is known, or is all of it."""
    share = share_kept(dim, size, kept)
    return share == 1.0 if whole else share is not None


def _known_sizes(
    problem: Problem, members: Dims, bounds: Bounds
) -> Mapping[int, Mapping[str, bool]]:
    """The sizes within reach that the source knows of all members, with the others as they are or
    at multiples: by verdict, whether the size may be chosen by it."""
    if problem.predictor.noisy:
        return {}
    low, high = _reach(members, problem.request.window, bounds)
    coupled, now = problem.coupled, max(dim.size for dim in members)
    found: dict[int, dict[str, bool]] = {}
    for multiple in (1, *NEIGHBOUR_MULTIPLES):
        pairs = [(dim, coupled.rounded(dim, multiple)) for dim in members]
        nears = [coupled.profile_at(dim, at, (), (low, high)) for dim, at in pairs]
        tried = set[int]().union(*(near.on_offer for near in nears)) | {now}
        if len(members) > 1:  # a size that was measured of one may be looked up for another
            also = tuple(sorted(tried))
            nears = [coupled.profile_at(dim, at, also, (low, high)) for dim, at in pairs]
        for size in tried if all(near.on_offer for near in nears) else ():
            costs = [near.profile.costs.get(size) for near in nears]
            known = [cost.verdict for cost in costs if cost is not None and cost.verdict]
            allowed = low <= size <= high and bounds.allow(size) and not _refusal(members, size)
            if allowed and len(known) == len(costs):
                worst = min(known, key=("misaligned", "undecided", "safe").index)
                offers = all(near.profile.offers(size, near.dim.size) for near in nears)
                verdicts = found.setdefault(size, {})
                verdicts[worst] = verdicts.get(worst, False) or offers
        if not any(coupled.of(dim) for dim in members):
            break
    return found


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


def _may_be_dense(problem: Problem, axis: SizeAxis, offered: Sequence[int]) -> bool:
    """Whether the dense weight in place of the pair is on offer: where the rank is its module's
    only one, and, for an objective that asks for safe sizes, where it is surely no slower than the
    pair as it is, or than one that is ``offered`` at a workload with a limit on time. A request for
    ``dense`` weights asks neither for that nor for less work."""
    (dim,), asked = axis.members, problem.request.constraints.dense
    modules = problem.inventory.modules_of(dim.name)
    if dim.kind != "rank" or dim.padding == "refused" or not modules:
        return False
    module = modules[0]
    full = dim.dense_size or min(module.out_features, module.in_features)
    within = axis.bounds.within(max(full, dim.size)) or asked
    several = len(problem.inventory.ranks_of(module)) > 1
    if not within or several or not problem.required.allows_dense(module.name):
        return False
    if problem.predictor.dense(module).latency_us is None:  # known are no times, but less work
        smaller = module.out_features * module.in_features <= dim.size * dim.params_per_unit
        return (smaller or asked) and problem.predictor.served_well(module)
    largest = max((dim.size, *offered))
    pairs = [(problem.predictor, dim.size), *((by, largest) for by in problem.timed)]
    return asked or not problem.goal.safe or any(by.no_slower(module, dim, r) for by, r in pairs)


def _why_held(problem: Problem, members: Dims, found: Mapping[int, Mapping[str, bool]]) -> str:
    """What leaves dims without a size to choose."""
    if problem.predictor.noisy:
        return problem.predictor.too_noisy
    missing = _missing(problem, members)
    if missing or not found:
        return missing or "the map knows no size near it"
    order = ("safe", "undecided", "misaligned")
    best = Counter(next(v for v in order if v in verdicts) for verdicts in found.values())
    counted = ", ".join(f"{count} {verdict}" for verdict, count in best.items())
    none = f"none suits the objective '{problem.goal.name}'" if best["safe"] else "none is safe"
    return f"of the sizes near it that the map knows {none} ({counted})"


def _missing(problem: Problem, members: Dims) -> str:
    """Which product of theirs the map lacks, where it lacks one."""
    profiles = (problem.coupled.profile_at(dim, {}).profile for dim in members)
    return next((profile.missing for profile in profiles if profile.missing), "")


def nothing_safe(problem: Problem, axis: SizeAxis) -> str:
    bounds, dim = axis.bounds, axis.members[0]
    for each in axis.members:
        if each.most is not None and max(bounds.least, bounds.multiple) > each.most:
            return f"the dense weight's rank is {each.dense_size}"
    if bounds.multiple > 1:
        engine = bounds.demanded.partition(":")[0]
        why = f"'gacprof sweep --for CHECKPOINT --preset {engine}' measures such sizes"
        return f"the map knows no such size that suits the objective ({why})"
    known, wider = problem.predictor.sizes(dim, 1, MAX_DIM), "a wider --window offers more sizes"
    if known and not known[0] <= dim.size <= known[-1]:
        wider = f"its sizes of {dim.name} are from {known[0]} to {known[-1]}"
    why = _missing(problem, axis.members) or wider
    return f"the map knows no such size that suits the objective ({why})"
