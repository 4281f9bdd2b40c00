"""What a choice of sizes changes, costs and saves, by the same map and the same spectra.

:func:`summary` makes the plan of a solver's outcome; :class:`Evaluator` weighs any sizes, whoever
chose them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gacprof.checkpoint.inventory import Dim, NewSizes
from gacprof.core.dtypes import of_merging
from gacprof.diagnosing.companions import companions
from gacprof.diagnosing.latency_profile import latency_profile
from gacprof.planning.classes import DimClass, Option
from gacprof.planning.memory import footprint, planned
from gacprof.planning.objectives import share_kept
from gacprof.planning.problem import Limits, Problem
from gacprof.planning.schema import (
    Budget,
    Choice,
    EngineDemand,
    EnginePreset,
    Memory,
    Plan,
    Workload,
    action,
)
from gacprof.planning.solving import Outcome

CUT = "cut: the model's function changes"


def summary(problem: Problem, outcome: Outcome, limits: Limits) -> Plan:
    """The plan of an outcome, with all of its dims resized together."""
    inventory, predictor = problem.inventory, problem.predictor
    choices = [
        _choice(problem, group, dim, option)
        for group, option in outcome.pairs
        for dim in group.members
    ]
    changes = {c.dim: c.after for c in choices if c.after != c.before}
    now, after = predictor.weights({}), predictor.weights(changes)
    budget, memory = _costs(problem, limits, changes)
    warnings = [*_warnings(problem, outcome), *problem.required.unmet, *problem.request.notes]
    if after.latency_us is None and predictor.source.timed:
        warnings.append(f"the time of the planned sizes together is not known: {after.missing}")
    return Plan(
        checkpoint=inventory.path,
        fingerprint=inventory.fingerprint,
        layout=inventory.layout,
        map=predictor.source.name,
        device=predictor.source.environment.name,
        objective=problem.goal.name,
        workload=Workload(tokens=predictor.tokens, dtype=predictor.dtype),
        tolerance=predictor.tolerance or None,
        basis=predictor.source.basis,
        budget=budget,
        memory=memory,
        choices=choices,
        certificate=outcome.certificate,
        preset=_preset(problem),
        predicted_before_us=now.latency_us,
        predicted_after_us=after.latency_us,
        energy_kept=_mean([c.energy_kept for c in choices]),
        warnings=warnings,
    )


def _preset(problem: Problem) -> EnginePreset | None:
    preset, by_dim = problem.required.preset, problem.required.by_dim
    if preset is None:
        return None
    count = Counter(each for found in by_dim.values() for each in found.apart)
    demands = [
        EngineDemand(multiple=multiple, why=demand.why, source=demand.source, dims=dims)
        for (multiple, demand), dims in count.items()
    ]
    return EnginePreset(text=preset.text, demands=demands)


def _costs(problem: Problem, limits: Limits, changes: NewSizes) -> tuple[Budget, Memory]:
    """Parameters of the planned weights, and bytes of the checkpoint, all dims resized together."""
    inventory, limit, memory = problem.inventory, limits.parameters, limits.memory
    now, then = footprint(inventory, {}), footprint(inventory, changes)
    weights = planned(inventory, [dim for dim in inventory.dims if dim.adjustable])
    rest = now.nbytes - weights.nbytes
    return Budget(
        limit=None if limit is None else limit.limit,
        used=weights.parameters + then.parameters - now.parameters,
        before=weights.parameters,
        basis="no limit on parameters was given" if limit is None else limit.basis,
        checkpoint_before=now.parameters,
        checkpoint_after=then.parameters,
    ), Memory(
        limit=None if memory is None else memory.limit + rest, before=now.nbytes, after=then.nbytes
    )


def _choice(problem: Problem, group: DimClass, dim: Dim, chosen: Option | None) -> Choice:
    predictor = problem.predictor
    sizes = [option.size for option in group.candidates if not option.fused]
    if chosen is not None and chosen.fused:
        after, cost, latency = None, chosen.cost, chosen.latency_us
    else:
        after = dim.size if chosen is None else chosen.size
        cost, latency = after * dim.params_per_unit, predictor.dim(dim, after).latency_us
    return Choice(
        dim=dim.name,
        kind=dim.kind,
        before=dim.size,
        after=after,
        action=action(dim.size, after),
        fusable=any(option.fused for option in group.candidates),
        cost=cost,
        latency_before_us=predictor.dim(dim, dim.size).latency_us,
        latency_after_us=latency,
        window=(sizes[0], sizes[-1]) if sizes else None,
        candidates=sizes,
        energy_kept=share_kept(dim, after, problem.kept),
        safe=None if chosen is None else chosen.safe,
        verdict=None if chosen is None else chosen.verdict,
        penalty_high=None if chosen is None else chosen.penalty_high,
    )


def _warnings(problem: Problem, outcome: Outcome) -> list[str]:
    predictor = problem.predictor
    warnings = list(predictor.view.notes)
    refused = [d for d in problem.inventory.dims if not d.adjustable]
    if refused:
        warnings.append(f"{len(refused)} dims cannot be changed: {refused[0].why}")
    stuck = [group for group in outcome.classes if not group.candidates]
    if stuck:
        count = "1 dim stays as it is" if len(stuck) == 1 else f"{len(stuck)} dims stay as they are"
        first = "" if len(stuck) == 1 else "the first is "
        warnings.append(f"{count}, {first}{stuck[0].name}: {_why_stuck(problem, stuck[0])}")
    pairs = [(group, option) for group, option in outcome.pairs if option is not None]
    timed = predictor.source.timed
    blind = [(g, o) for g, o in pairs if g.untouched.latency_us is None and timed]
    blind = [(g, o) for g, o in blind if o.size != g.untouched.size]
    if blind:
        group, option = blind[0]
        warnings.append(
            f"{len(blind)} dims have sizes that the map has not measured, the first is "
            f"{group.name} with {group.untouched.size}: they move to safe sizes "
            f"({option.size}), but what that gains is not known"
        )
    if problem.goal.name == "gac":
        warnings += _degenerate(outcome, pairs)
    fused = [(g, o) for g, o in pairs if o.fused]
    if fused:
        faster = sum((g.untouched.latency_us or 0) - (o.latency_us or 0) for g, o in fused)
        gain = f"{faster:.1f} µs faster" if faster >= 0 else f"{-faster:.1f} µs slower"
        warnings.append(
            f"{len(fused)} factor pairs are multiplied out to dense weights, which are "
            + (gain if timed else "no larger")
            + f"; rounding them may move a logit by {_rounding(problem, fused):.1e} of the largest"
        )
    unsafe = [g for g, o in pairs if not o.safe and g.bounds.pin is not None]
    if unsafe:
        warnings.append(
            f"{len(unsafe)} pinned sizes are not known to be safe, the first is {unsafe[0].name}"
        )
    warnings += _undecided([o for _, o in pairs], predictor.tolerance)
    cut = sum(o.size < dim.size for g, o in pairs if not o.fused for dim in g.members)
    if cut:
        dims = "1 dim is" if cut == 1 else f"{cut} dims are"
        warnings.append(f"{dims} {CUT}")
    return warnings


def _why_stuck(problem: Problem, group: DimClass) -> str:
    """What leaves a class without a size to choose."""
    if group.missing:
        return group.missing
    verdicts = Counter(option.verdict for option in group.options if not option.fused)
    if not verdicts:
        return "the map knows no size near it"
    counted = ", ".join(f"{count} {verdict or 'unknown'}" for verdict, count in verdicts.items())
    none = f"none suits the objective '{problem.goal.name}'" if verdicts["safe"] else "none is safe"
    return f"of the sizes near it that the map knows {none} ({counted})"


def _rounding(problem: Problem, merged: Sequence[tuple[DimClass, Option]]) -> float:
    names = {dim.name for group, _ in merged for dim in group.members}
    return of_merging(m.dtype for m in problem.inventory.modules if names.intersection(m.dims))


def _undecided(chosen: Sequence[Option], tolerance: float) -> list[str]:
    bounds = [option.penalty_high for option in chosen if option.verdict == "undecided"]
    if not bounds:
        return []
    known = [bound for bound in bounds if bound is not None]
    most = f", at most {max(known):.1%}" if len(known) == len(bounds) else ""
    sizes = "1 chosen size is" if len(bounds) == 1 else f"{len(bounds)} chosen sizes are"
    if not tolerance:  # tiers, no penalties
        return [f"{sizes} undecided: the rules leave open whether larger ones are served better"]
    return [
        f"{sizes} undecided: the map's errors leave open whether more than "
        f"{tolerance:.0%} is lost{most}"
    ]


def _degenerate(outcome: Outcome, pairs: Sequence[tuple[DimClass, Option]]) -> list[str]:
    at_end = sum(
        len(group.candidates) > 1 and option in (group.candidates[0], group.candidates[-1])
        for group, option in pairs
    )
    if at_end <= len(outcome.classes) / 2:
        return []
    return [
        f"{at_end} of {len(outcome.classes)} dims sit at an end of their window: Eq. 4 is linear "
        "in cost and says nothing about quality; prefer the objective 'energy'"
    ]


@dataclass(frozen=True)
class Variant:
    """One way to size the dims: of the whole checkpoint ``parameters`` and ``nbytes``, of the
    workload ``latency_us`` in the planned weights' products, None where the map lacks one.

    ``energy_kept`` is the mean share over all dims, 1 for padding, None where a dim is cut
    that has no spectrum; ``aligned`` the share of dims on a safe size, None where the map
    cannot tell. ``proved`` says of a solver's choice whether it is the best there is.
    """

    method: str
    parameters: int
    nbytes: int
    latency_us: float | None
    energy_kept: float | None
    aligned: float | None
    note: str = ""
    proved: bool | None = None


class Evaluator:
    """Parameters, latency, energy and alignment of any choice of sizes."""

    def __init__(self, problem: Problem) -> None:
        self.dims = [dim for members, _ in problem.groups for dim in members]
        self._predictor = problem.predictor
        self._kept: Mapping[str, Sequence[float]] = problem.kept
        self._known: dict[tuple[object, ...], bool | None] = {}
        self._companions = {
            dim.name: [
                companions(problem.inventory, [dim], [dim], crossing=crossing)
                for crossing in (True, False)
            ]
            for dim in self.dims
        }

    def variant(
        self, method: str, sizes: NewSizes, note: str = "", proved: bool | None = None
    ) -> Variant:
        takes = footprint(self._predictor.inventory, sizes)
        after = [(dim, sizes.get(dim.name, dim.size)) for dim in self.dims]
        return Variant(
            method,
            takes.parameters,
            takes.nbytes,
            self._predictor.weights(sizes).latency_us,
            _mean([share_kept(dim, size, self._kept) for dim, size in after]),
            _mean([size is None or self._is_safe(dim, size, sizes) for dim, size in after]),
            note,
            proved,
        )

    def _is_safe(self, dim: Dim, size: int, sizes: NewSizes) -> bool | None:
        """The map's word on the size, beside the new sizes of dims that share its products; of
        those on its axis alone where the map does not hold all of them together."""
        across, along = self._companions[dim.name]
        for dims in ([*along, *across], along):
            others = {d.name: sizes.get(d.name, d.size) or d.size for d in dims}
            key = dim.name, size, *others.items()
            if key not in self._known:
                profile = latency_profile(self._predictor.beside(others), dim, size, size)
                cost = profile.costs.get(size)
                judged = cost is not None and cost.penalty_high is not None
                self._known[key] = cost.verdict == "safe" if cost and judged else None
            if self._known[key] is not None:
                return self._known[key]
        return None


def _mean(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known and len(known) == len(shares) else None
