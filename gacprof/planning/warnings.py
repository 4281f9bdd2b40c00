"""What the user of a plan has to know: its warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gacprof.checkpoint.inventory import NewSizes
from gacprof.core.dtypes import of_merging
from gacprof.diagnosing.merging import left_apart
from gacprof.diagnosing.predict import Estimate
from gacprof.planning.axes import SizeAxis
from gacprof.planning.limits import PlanLimits
from gacprof.planning.problem import Problem
from gacprof.planning.schema import Choice
from gacprof.planning.solving import SolvedClasses

CUT = "cut: the model's function changes"
OF_BEST_TIER = "undecided, though of the best tier"


def of_choices(
    problem: Problem, outcome: SolvedClasses, choices: Sequence[Choice], changes: NewSizes
) -> Iterator[str]:
    """What dims stay, move unmeasured, are multiplied out, undecided or cut."""
    predictor = problem.predictor
    axes = [axis for group in outcome.classes for axis in group.axes]
    yield from predictor.view.notes
    refused = [d for d in problem.inventory.dims if not d.adjustable]
    if refused:
        yield f"{len(refused)} dims cannot be changed: {refused[0].why}"
    held = [axis for axis in axes if axis.held]
    if held:
        count = "1 dim stays as it is" if len(held) == 1 else f"{len(held)} dims stay as they are"
        first = "" if len(held) == 1 else "the first is "
        yield f"{count}, {first}{held[0].name}: {held[0].held}"
    unmeasured = [c for c in choices if c.latency_before_us is None and c.after != c.before]
    if unmeasured and predictor.source.timed:
        yield _unmeasured(problem, unmeasured)
    if problem.goal.name == "gac":
        yield from _degenerate(axes, outcome.sizes)
    yield from _multiplied_out(problem, [c for c in choices if c.after is None])
    if problem.goal.name != "latency" and problem.compression.given == "own":
        yield from left_apart(predictor, changes)
    pinned = {d.name for axis in axes if axis.bounds.pin is not None for d in axis.members}
    unsafe = [c for c in choices if c.dim in pinned and not c.safe]
    if unsafe:
        yield f"{len(unsafe)} pinned sizes are not known to be safe, the first is {unsafe[0].dim}"
    yield from _undecided(choices, predictor.tolerance)
    cut = sum(c.action == "truncate" for c in choices)
    if cut:
        yield f"{'1 dim is' if cut == 1 else f'{cut} dims are'} {CUT}"


def _multiplied_out(problem: Problem, fused: Sequence[Choice]) -> Iterator[str]:
    if fused and problem.compression.given == "dense":
        yield (
            f"{len(fused)} weights stay dense, which are {_faster(problem, fused)} than the factor "
            "pairs of the method's own sizes"
        )
    elif fused:
        named = {choice.dim for choice in fused}
        merged = (m.dtype for m in problem.inventory.modules if named.intersection(m.dims))
        yield (
            f"{len(fused)} factor pairs are multiplied out to dense weights, which are "
            f"{_faster(problem, fused)}; rounding them may move a logit by "
            f"{of_merging(merged):.1e} of the largest"
        )


def of_times(problem: Problem, limits: PlanLimits, after: Estimate) -> Iterator[str]:
    """``after`` is what the planned sizes take."""
    source = problem.predictor.source
    if limits.times and not limits.break_even:
        yield (
            "no plan within the limits has all factor pairs as fast as the dense products in their "
            f"place: some {'may be' if source.estimated else 'are'} slower"
        )
    if after.latency_us is None and source.timed:
        yield f"the time of the planned sizes together is not known: {after.missing}"


def _unmeasured(problem: Problem, moved: Sequence[Choice]) -> str:
    """Of dims whose time as they are is not known."""
    predictor, one = problem.predictor, moved[0]
    by_tier = not predictor.tolerance
    what = "whose cost is not known" if by_tier else "that the map has not measured"
    to = "sizes of the best tier" if by_tier else "better sizes"
    to = "safe sizes" if all(choice.safe for choice in moved) else to
    now = predictor.dim(problem.inventory.dim(one.dim), one.before)
    return (
        f"{len(moved)} dims have sizes {what}, the first is {one.dim} with {one.before}: "
        f"they move to {to} ({one.after or 'dense'}), but what all of it gains is not known: "
        f"{now.missing}"
    )


def _faster(problem: Problem, fused: Sequence[Choice]) -> str:
    """How dense weights do against their factor pairs, as far as that is known."""
    source = problem.predictor.source
    if not source.timed:
        return "no larger"
    if source.estimated:
        saved = problem.predictor.saved({choice.dim: None for choice in fused})
        if saved is None or saved.low <= 0 <= saved.high:
            return "not certainly faster or slower"
        faster = saved.value
    else:
        faster = sum((c.latency_before_us or 0) - (c.latency_after_us or 0) for c in fused)
    return f"{faster:.1f} µs faster" if faster >= 0 else f"{-faster:.1f} µs slower"


def _undecided(choices: Sequence[Choice], tolerance: float) -> list[str]:
    bounds = [choice.penalty_high for choice in choices if choice.verdict == "undecided"]
    if not bounds:
        return []
    known = [bound for bound in bounds if bound is not None]
    most = f", at most {max(known):.1%}" if len(known) == len(bounds) else ""
    sizes = "1 chosen size is" if len(bounds) == 1 else f"{len(bounds)} chosen sizes are"
    if not tolerance:  # tiers, no penalties
        reasons = dict.fromkeys(choice.why for choice in choices if choice.why)
        why = "; ".join(reasons) or "the rules leave open whether larger ones are served better"
        return [f"{sizes} {OF_BEST_TIER * bool(reasons) or 'undecided'}: {why}"]
    return [
        f"{sizes} undecided: the map's errors leave open whether more than "
        f"{tolerance:.0%} is lost{most}"
    ]


def _degenerate(axes: Sequence[SizeAxis], chosen: NewSizes) -> list[str]:
    at_end = sum(
        len(axis.sizes) > 1 and chosen[axis.members[0].name] in (axis.sizes[0], axis.sizes[-1])
        for axis in axes
    )
    if at_end <= len(axes) / 2:
        return []
    return [
        f"{at_end} of {len(axes)} dims sit at an end of their window: Eq. 4 is linear "
        "in cost and says nothing about quality; prefer the objective 'energy'"
    ]
