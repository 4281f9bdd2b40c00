"""What a plan changes, what it costs, what it is predicted to save, and what to know of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gacprof.checkpoint.inventory import Dim, Inventory
from gacprof.diagnosing.predict import Predictor
from gacprof.planning.budgets import members
from gacprof.planning.classes import DimClass, Option, share_kept
from gacprof.planning.memory import footprint, planned
from gacprof.planning.objectives import Objective
from gacprof.planning.schema import Budget, Choice, Memory, Plan, Workload, action
from gacprof.planning.solving import Limits, Outcome


@dataclass(frozen=True)
class Made:
    """All that a plan is told from. ``kept`` is empty where no spectra were read."""

    inventory: Inventory
    predictor: Predictor
    goal: Objective
    classes: Sequence[DimClass]
    offered: Mapping[str, Sequence[Option]]
    outcome: Outcome
    limits: Limits
    kept: Mapping[str, Sequence[float]]


def account(made: Made, notes: Sequence[str] = ()) -> Plan:
    inventory, predictor = made.inventory, made.predictor
    choices = [
        _choice(made, dim, made.outcome.chosen[group.name], made.offered[group.name])
        for group in made.classes
        for dim in group.members
    ]
    changes = {c.dim: c.after for c in choices if c.after != c.before}
    now, after = predictor.weights({}), predictor.weights(changes)
    budget, memory = _costs(made, changes)
    shares = [c.energy_kept for c in choices if c.energy_kept is not None]
    warnings = [*_warnings(made), *notes]
    if after.latency_us is None:
        warnings.append(f"the time of the planned sizes together is not known: {after.missing}")
    return Plan(
        checkpoint=inventory.path,
        fingerprint=inventory.fingerprint,
        layout=inventory.layout,
        map=predictor.map.name,
        device=predictor.map.environment.name,
        objective=made.goal.name,
        workload=Workload(tokens=predictor.tokens, dtype=predictor.dtype),
        tolerance=predictor.tolerance,
        budget=budget,
        memory=memory,
        choices=choices,
        certificate=made.outcome.certificate,
        predicted_before_us=now.latency_us,
        predicted_after_us=after.latency_us,
        energy_kept=sum(shares) / len(shares) if len(shares) == len(choices) else None,
        warnings=warnings,
    )


def _costs(made: Made, changes: Mapping[str, int | None]) -> tuple[Budget, Memory]:
    """Parameters of the planned weights, and bytes of the checkpoint, all dims resized together."""
    now, then = footprint(made.inventory, {}), footprint(made.inventory, changes)
    weights = planned(made.inventory, members(made.classes))
    limit, memory = made.limits.parameters, made.limits.memory
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


def _choice(made: Made, dim: Dim, chosen: Option | None, offered: Sequence[Option]) -> Choice:
    predictor = made.predictor
    sizes = [option.size for option in offered if not option.fused]
    common: dict[str, Any] = {
        "dim": dim.name,
        "kind": dim.kind,
        "before": dim.size,
        "latency_before_us": predictor.dim(dim, dim.size).latency_us,
        "window": (sizes[0], sizes[-1]) if sizes else None,
        "candidates": sizes,
        "fusable": any(option.fused for option in offered),
    }
    if chosen is not None and chosen.fused:
        return Choice(
            **common,
            after=None,
            action="fuse",
            cost=chosen.cost,
            latency_after_us=chosen.latency_us,
            energy_kept=1.0,
            safe=chosen.safe,
            verdict=chosen.verdict,
            penalty_high=chosen.penalty_high,
        )
    after = dim.size if chosen is None else chosen.size
    return Choice(
        **common,
        after=after,
        action=action(dim.size, after),
        cost=after * dim.params_per_unit,
        latency_after_us=predictor.dim(dim, after).latency_us,
        energy_kept=share_kept(dim, after, made.kept),
        safe=None if chosen is None else chosen.safe,
        verdict=None if chosen is None else chosen.verdict,
        penalty_high=None if chosen is None else chosen.penalty_high,
    )


def _warnings(made: Made) -> list[str]:
    inventory, outcome, classes = made.inventory, made.outcome, made.classes
    warnings = [made.predictor.dtype_note] if made.predictor.dtype_note else []
    refused = [d for d in inventory.dims if not d.adjustable]
    if refused:
        warnings.append(f"{len(refused)} dims cannot be changed: {refused[0].why}")
    stuck = [group for group in classes if not made.offered[group.name]]
    if stuck:
        reason = stuck[0].missing or "the map knows no safe size near it"
        warnings.append(f"{len(stuck)} dims stay as they are, {stuck[0].name}: {reason}")
    pairs = [(g, o) for g in classes for o in [outcome.chosen[g.name]] if o is not None]
    if made.goal.name == "gac":
        warnings += _degenerate(made, pairs)
    fused = [(g, o) for g, o in pairs if o.fused]
    if fused:
        faster = sum((g.untouched.latency_us or 0) - (o.latency_us or 0) for g, o in fused)
        warnings.append(
            f"{len(fused)} factor pairs are multiplied out to dense weights, which are "
            + (f"{faster:.1f} µs faster" if faster >= 0 else f"{-faster:.1f} µs slower")
        )
    unsafe = [g for g, o in pairs if not o.safe and g.bounds.pin is not None]
    if unsafe:
        warnings.append(
            f"{len(unsafe)} pinned sizes are not known to be safe, the first is {unsafe[0].name}"
        )
    warnings += _undecided(made, [o for _, o in pairs])
    cut = sum(len(_cut(g, o)) for g, o in pairs)
    if cut:
        dims = "1 dim is" if cut == 1 else f"{cut} dims are"
        warnings.append(f"{dims} cut: the model's function changes")
    return warnings


def _undecided(made: Made, chosen: Sequence[Option]) -> list[str]:
    bounds = [option.penalty_high for option in chosen if option.verdict == "undecided"]
    if not bounds:
        return []
    known = [bound for bound in bounds if bound is not None]
    most = f", at most {max(known):.1%}" if len(known) == len(bounds) else ""
    sizes = "1 chosen size is" if len(bounds) == 1 else f"{len(bounds)} chosen sizes are"
    return [
        f"{sizes} undecided: the map's errors leave open whether more than "
        f"{made.predictor.tolerance:.0%} is lost{most}"
    ]


def _degenerate(made: Made, pairs: Sequence[tuple[DimClass, Option]]) -> list[str]:
    at_end = sum(_at_an_end(o, made.offered[g.name]) for g, o in pairs)
    if at_end <= len(made.classes) / 2:
        return []
    return [
        f"{at_end} of {len(made.classes)} dims sit at an end of their window: Eq. 4 is linear in "
        "cost and says nothing about quality; prefer the objective 'energy'"
    ]


def _at_an_end(chosen: Option, offered: Sequence[Option]) -> bool:
    return len(offered) > 1 and chosen in (offered[0], offered[-1])


def _cut(group: DimClass, option: Option) -> list[Dim]:
    return [] if option.fused else [dim for dim in group.members if option.size < dim.size]
