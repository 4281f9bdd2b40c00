"""What a solver's outcome changes, costs and saves: the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gacprof.checkpoint.inventory import ALIGNED, Dim, Gemm, NewSizes
from gacprof.cliffmap.estimate import NOTHING
from gacprof.core.texts import workload_name
from gacprof.diagnosing.fixed import unchanged
from gacprof.diagnosing.predict import Estimate, Predictor
from gacprof.planning.axes import SizeAxis
from gacprof.planning.costs import footprint, planned, share_kept
from gacprof.planning.limits import PlanLimits, baseline
from gacprof.planning.problem import Problem
from gacprof.planning.schema import (
    Budget,
    Choice,
    EngineDemand,
    EnginePreset,
    Memory,
    PartSaved,
    PhaseTimes,
    Plan,
    StepChange,
    Workload,
    action,
)
from gacprof.planning.solving import SolvedClasses
from gacprof.planning.warnings import of_choices, of_times
from gacprof.stats.findings import Verdict

ESTIMATED = "the times are estimates"
BY_TIMES = f"the choice is exact by these times; {ESTIMATED}"


def summary(problem: Problem, outcome: SolvedClasses, limits: PlanLimits) -> Plan:
    """The plan of an outcome, every dim judged at the sizes chosen for the others."""
    inventory, predictor = problem.inventory, problem.predictor
    source, sizes, inexact = predictor.source, outcome.sizes, list[str]()
    found = {
        dim.name: _choice(problem, axis, dim, sizes, inexact)
        for group in outcome.classes
        for axis in group.axes
        for dim in axis.members
    }
    choices = [found[dim.name] for dim in inventory.dims if dim.name in found]
    changes = {c.dim: c.after for c in choices if c.after != c.before}
    now, after = predictor.weights({}), predictor.weights(changes)
    budget, memory = _costs(problem, limits, changes)
    saved = predictor.saved(changes) if changes and source.estimated else None
    proof = outcome.certificate
    notes = [*proof.notes, *_notes(problem, limits, changes, inexact)]
    estimated = ""
    if after.latency_us is not None and source.estimated:
        estimated = BY_TIMES if problem.goal.name == "latency" or limits.times else ESTIMATED
    return Plan(
        checkpoint=inventory.path,
        fingerprint=inventory.fingerprint,
        layout=inventory.layout,
        map=source.name,
        device=source.environment.name,
        objective=problem.goal.name,
        workload=Workload(tokens=predictor.tokens, dtype=predictor.dtype),
        tolerance=predictor.tolerance or None,
        basis=source.basis,
        budget=budget,
        memory=memory,
        choices=choices,
        certificate=proof.model_copy(
            update={"notes": notes, "estimated": estimated, "proved": proof.proved and not inexact}
        ),
        preset=_preset(problem),
        predicted_before_us=now.latency_us,
        predicted_after_us=after.latency_us,
        saved_us=None if saved is None else (saved.low, saved.value, saved.high),
        saved_in_part=[] if saved or not source.estimated else list(_in_part(predictor, changes)),
        phases=_phases(problem, changes),
        energy_kept=mean([c.energy_kept for c in choices]),
        warnings=[
            *of_choices(problem, outcome, choices, changes),
            *problem.required.unmet,
            *problem.request.notes,
            *unchanged(predictor),
            *of_times(problem, limits, after),
        ],
    )


def _in_part(predictor: Predictor, changes: NewSizes) -> Iterator[PartSaved]:
    """What changed weights save whose times are known, as a diagnosis counts it."""
    changed = [m for m in predictor.inventory.modules if any(name in changes for name in m.dims)]
    for at in map(predictor.at, sorted(predictor.tokens) if predictor.source.timed else ()):
        times = [(m.role, at.weights({}, [m]), at.weights(changes, [m])) for m in changed]
        unknown = {role for role, *each in times if any(t.latency_us is None for t in each)}
        known = [(now, then) for role, now, then in times if role not in unknown]
        now, then = (sum((pair[i] for pair in known), NOTHING) for i in (0, 1))
        saved = now.saved(then) if known else None
        if saved is not None and saved.value:
            roles = dict.fromkeys(role for role, *_ in times)
            yield PartSaved(
                tokens=next(iter(at.tokens)), low=saved.low, value=saved.value, high=saved.high,
                roles=[role for role in roles if role not in unknown],
                open=[role for role in roles if role in unknown],
            )  # fmt: skip


def _notes(
    problem: Problem, limits: PlanLimits, changes: NewSizes, inexact: Sequence[str]
) -> Iterator[str]:
    """What the proof rests on: sizes judged elsewhere, a baseline, estimated times."""
    if inexact:
        yield (
            f"the map does not hold {len(inexact)} dims with the new sizes of the dims that they "
            f"meet, the first is {inexact[0]}: they were judged with other sizes of these. After "
            "realigning, 'gacprof sweep --for OUT' measures them"
        )
    if problem.request.dominate is not None:
        yield _with_baseline(problem, changes)
    if problem.predictor.source.estimated:
        yield from filter(None, (each.bounds(changes) for each in limits.times))


def _with_baseline(problem: Problem, changes: NewSizes) -> str:
    """Parameters of the whole and times of the planned weights' products, and the baseline's."""
    asked, phases, lines = problem.request.dominate, problem.phases.values(), []
    for name, sizes in ((f"{asked}: ", baseline(problem)), ("the plan: ", changes)):
        parameters = footprint(problem.inventory, sizes).parameters
        taken = _taken(problem, [at.planned(sizes) for at in phases])
        lines.append(f"{name}{parameters:,} parameters, {taken}")
    dense = _taken(problem, [problem.compression.products(at, "dense") for at in phases])
    return f"{lines[0]} of these products; {lines[1]}; uncompressed: {dense}"


def _taken(problem: Problem, products: Sequence[Sequence[Gemm]]) -> str:
    """The time of these products in each phase."""
    return ", ".join(
        f"{workload_name(tokens)} {'unknown' if us is None else f'{us:.1f} µs'}"
        for (tokens, at), gemms in zip(problem.phases.items(), products, strict=True)
        for us in (at.gemms(gemms).latency_us,)
    )


def _phases(problem: Problem, changes: NewSizes) -> list[PhaseTimes]:
    """Of every token count of the workload and of the limits, where the source knows times."""
    if not problem.predictor.source.timed:
        return []
    found = []
    for tokens, at in problem.phases.items():
        own, dense = (problem.compression.products(at, of) for of in ("own", "dense"))
        planned = at.planned(changes)
        phase = PhaseTimes(
            workload=workload_name(tokens),
            tokens=tokens,
            before_us=at.gemms(own).latency_us,
            after_us=at.gemms(planned).latency_us,
            dense_us=at.gemms(dense).latency_us,
            steps=list(_steps(problem, at, own, dense, planned)),
        )
        found.append(phase)
    return found


def _steps(
    problem: Problem, at: Predictor, own: list[Gemm], dense: list[Gemm], planned: list[Gemm]
) -> Iterator[StepChange]:
    """Against the checkpoint as it is, unless it does not exist, and the uncompressed model."""
    whole, known = problem.whole, problem.compression
    if whole is None:
        return
    uncompressed = known.dense or whole.inventory
    against = {problem.inventory.fingerprint: own} if known.given == "own" else {}
    if uncompressed.fingerprint not in against:
        against[uncompressed.fingerprint] = dense
    for fingerprint, products in against.items():
        change = whole.change(at, products, planned)
        if change is not None:
            yield StepChange(
                against=fingerprint, low=change.low, value=change.value, high=change.high
            )


def _preset(problem: Problem) -> EnginePreset | None:
    preset, by_dim = problem.required.preset, problem.required.by_dim
    if preset is None:
        return None
    count = Counter(
        each
        for found in by_dim.values()
        for each in dict.fromkeys((d.multiple, d.why, d.source) for d in found.demands)
    )
    demands = [
        EngineDemand(multiple=multiple, why=why, source=source, dims=dims)
        for (multiple, why, source), dims in count.items()
    ]
    return EnginePreset(text=preset.text, demands=demands)


def _costs(problem: Problem, limits: PlanLimits, changes: NewSizes) -> tuple[Budget, Memory]:
    """Parameters of the planned weights, and bytes of the checkpoint, all dims resized together."""
    inventory, limit, memory = problem.inventory, limits.parameters, limits.memory
    now, then = footprint(inventory, {}), footprint(inventory, changes)
    weights = planned(inventory, [dim for dim in inventory.dims if dim.adjustable])
    rest = now.nbytes - weights.nbytes
    return Budget(
        limit=None if limit is None else limit.most,
        used=weights.parameters + then.parameters - now.parameters,
        before=weights.parameters,
        basis="no limit on parameters was given" if limit is None else limit.asked,
        checkpoint_before=now.parameters,
        checkpoint_after=then.parameters,
    ), Memory(
        limit=None if memory is None else memory.most + rest, before=now.nbytes, after=then.nbytes
    )


def _choice(
    problem: Problem, axis: SizeAxis, dim: Dim, chosen: NewSizes, inexact: list[str]
) -> Choice:
    """What becomes of a dim; its name goes to ``inexact`` where it was judged at other sizes than
    those chosen."""
    predictor, after = problem.predictor, chosen[dim.name]
    on_offer = () if axis.held else axis.sizes
    sizes = [size for size in on_offer if size is not None]
    dense = sum(m.in_features * m.out_features for m in problem.inventory.modules_of(dim.name))
    verdict: Verdict | None = None
    high: float | None = None
    why = ""
    if after is None:
        verdict, high = "safe", 0.0
    elif not axis.held or predictor.noisy:
        offer = problem.coupled.offer(dim, after, chosen, axis.shared)
        if offer.cost is not None:
            verdict, high = offer.cost.verdict, offer.cost.penalty_high
            why = offer.cost.why if verdict == "undecided" and offer.cost.tier == 1 else ""
            unchanged = after == dim.size and dim.size % ALIGNED == 0
            if not offer.exact and not unchanged:  # at odd ones too it shows what it costs
                inexact.append(dim.name)
    return Choice(
        dim=dim.name,
        kind=dim.kind,
        before=dim.size,
        after=after,
        action=action(dim.size, after),
        fusable=None in on_offer,
        cost=dense if after is None else after * dim.params_per_unit,
        latency_before_us=predictor.dim(dim, dim.size).latency_us,
        latency_after_us=(predictor.dim(dim, after) if after else _dense(problem, dim)).latency_us,
        window=(sizes[0], sizes[-1]) if sizes else None,
        candidates=sizes,
        energy_kept=share_kept(dim, after, problem.kept),
        safe=None if verdict is None else verdict == "safe",
        verdict=verdict,
        penalty_high=high,
        why=why,
    )


def _dense(problem: Problem, dim: Dim) -> Estimate:
    """The time of the dim's modules multiplied out."""
    modules = problem.inventory.modules_of(dim.name)
    return sum((problem.predictor.dense(module) for module in modules), NOTHING)


def mean(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known and len(known) == len(shares) else None
