"""What can be had: parameters, predicted latency and energy of many plans side by side.

Ours over a range of budgets, and the baselines: the paper's dynamic programming at today's
budget, naive rounding, and the checkpoint as it is; all evaluated by the same map and spectra.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from gacprof.checkpoint import inventory_for
from gacprof.checkpoint.inventory import Dim, NewSizes
from gacprof.core import Progress
from gacprof.core.errors import PlanError
from gacprof.core.files import Record
from gacprof.core.formatting import Framed
from gacprof.core.request import verb
from gacprof.planning.classes import DimClass, build_classes
from gacprof.planning.costs import footprint, share_kept
from gacprof.planning.evaluation import mean
from gacprof.planning.limits import ROUNDED, Ceiling, PlanLimits, limits_of, rounded
from gacprof.planning.objectives import objective
from gacprof.planning.problem import Problem, problem_of
from gacprof.planning.request import ParetoRequest
from gacprof.planning.solving import SolvedClasses, solve_within
from gacprof.solver import InfeasibleBudget, solve_gac

MULTIPLES = (8, 64)
PAPER = "paper's DP, today's budget"
SLOWER = "some pairs are slower than the dense products in their place"
ALIKE = "every budget that can be met gives the same plan"


@dataclass(frozen=True)
class Variant:
    """One way to size the dims: of the whole checkpoint ``parameters`` and ``nbytes``, of the
    workload ``latency_us`` in the planned weights' products, None where the map lacks one;
    ``bounds_us`` are an estimated time's.

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
    bounds_us: tuple[float, float] | None = None


def _variant(
    problem: Problem, method: str, sizes: NewSizes, note: str = "", proved: bool | None = None
) -> Variant:
    """What any choice of sizes takes and keeps, whoever made it."""

    def is_safe(dim: Dim, size: int) -> bool | None:
        """The map's word on the size at the new sizes of the dims that it meets."""
        cost = problem.coupled.offer(dim, size, sizes).cost
        return None if cost is None or cost.penalty_high is None else cost.verdict == "safe"

    takes = footprint(problem.inventory, sizes)
    time = problem.predictor.weights(sizes)
    bounds = time.interval if problem.predictor.source.estimated else None
    dims = [dim for members, _ in problem.groups for dim in members]
    after = [(dim, sizes.get(dim.name, dim.size)) for dim in dims]
    return Variant(
        method,
        takes.parameters,
        takes.nbytes,
        time.latency_us,
        mean([share_kept(dim, size, problem.kept) for dim, size in after]),
        mean([size is None or is_safe(dim, size) for dim, size in after]),
        note,
        proved,
        None if bounds is None else (bounds.low, bounds.high),
    )


@dataclass(frozen=True)
class Pareto(Record, Framed):
    """Many ways to size one checkpoint, all judged by one map."""

    schema: ClassVar = "gacprof.pareto/1"
    derived: ClassVar = ("schema",)

    checkpoint: str
    map: str
    device: str
    dtype: str
    objective: str
    tokens: dict[int, float]
    variants: tuple[Variant, ...]
    notes: tuple[str, ...] = ()

    def frame_rows(self) -> Iterator[dict[str, Any]]:
        return (asdict(variant) for variant in self.variants)

    def frame_title(self) -> str:
        return f"{self.checkpoint} on {self.device}, objective {self.objective}"


def _pareto(request: ParetoRequest) -> Pareto:
    """Plans over many budgets beside naive rounding and the paper's choice, all of one checkpoint
    on one map.

    Ours are ``budgets`` plans from the least that can be had to what never binds, and one at
    today's parameters; constraints and limits are theirs alone: rounding knows of none.

    Raises :class:`CheckpointError`, :class:`MapError`, :class:`PlanError`, or
    :class:`SolverError` where no budget leaves a plan.
    """
    inventory, source, progress = (
        inventory_for(request.checkpoint), request.open_source(), request.progress
    )  # fmt: skip
    if not source.timed:
        raise PlanError(
            f"'{source.name}' is {source.basis} and knows no latency, so there is no front: "
            "'gacprof plan' makes a plan for one budget"
        )
    problem = problem_of(inventory, source, request, all_spectra=True)
    predictor, limits = problem.predictor, limits_of(problem)
    variants = [_variant(problem, "as it is", {}), *_rounded(problem)]
    variants += _papers(problem)
    ours = []
    for outcome, today, slower in _ours(problem, limits, request.budgets, progress):
        proof = outcome.certificate
        method = f"gacprof {request.objective}" + (", today's budget" if today else "")
        note = "; ".join([*proof.notes, *[SLOWER] * slower])
        ours.append(_variant(problem, method, outcome.sizes, note, proof.proved))
    if not ours:
        raise PlanError("no budget leaves a plan that meets the quality floor or latency limit")
    return Pareto(
        inventory.path,
        source.name,
        source.environment.name,
        predictor.dtype,
        request.objective,
        predictor.tokens,
        (*variants, *ours),
        (*predictor.view.notes, *[ALIKE] * (len(ours) == 1 < request.budgets)),
    )


pareto = verb("pareto", ParetoRequest, _pareto)


def _ours(
    problem: Problem, limits: PlanLimits, budgets: int, progress: Progress | None
) -> Iterator[tuple[SolvedClasses, bool, bool]]:
    """The objective's choices from the tightest budget that can be met to one that never binds:
    each different choice once, cheapest first; whether it is that of today's size, and whether some
    pairs had to be slower than the dense products in their place."""
    known: dict[bool, Sequence[DimClass]] = {}

    def classes_of(kept: PlanLimits) -> Sequence[DimClass]:  # the same at every budget
        if kept.break_even not in known:
            known[kept.break_even] = build_classes(problem, replace(kept, parameters=_ceiling(0)))
        return known[kept.break_even]

    every = classes_of(replace(limits, break_even=False))
    try:
        ceiling = limits.parameters or _ceiling(1 << 62)
        unbound, _ = solve_within(problem, classes_of, replace(limits, parameters=ceiling))
    except InfeasibleBudget:
        return
    least = sum(min(option.parameters for option in group.options) for group in every)
    most = sum(option.parameters for option in unbound.chosen)
    today = sum(group.now.parameters for group in every)
    steps = [least + (most - least) * k // max(1, budgets - 1) for k in range(budgets)]
    seen: set[tuple[int | None, ...]] = set()
    for number, room in enumerate(sorted({*steps, today})):
        if progress:
            progress(number, len(steps) + 1, "budget")
        within = replace(limits, parameters=_ceiling(room))
        try:
            outcome, kept = solve_within(problem, classes_of, within)
        except InfeasibleBudget:
            continue
        if outcome.certificate.interrupted:
            raise KeyboardInterrupt
        key = tuple(outcome.sizes.values())
        if key not in seen:
            seen.add(key)
            yield outcome, room == today, limits.break_even and not kept.break_even


def _ceiling(room: int) -> Ceiling:
    amount = "{:,} parameters in the planned dims".format
    return Ceiling(amount(room), room, amount)


def _rounded(problem: Problem) -> Iterator[Variant]:
    """What the compressors' own flags do: every dim to a multiple, up, down or to the nearest."""
    dims = problem.inventory.dims
    for multiple in MULTIPLES:
        for way in ROUNDED:
            sizes = rounded(dims, multiple, way)
            grown = way == "down" and any((sizes.get(d.name) or 0) > d.size for d in dims)
            note = f"sizes below {multiple} grow to {multiple}" if grown else ""
            yield _variant(problem, f"{way} to {multiple}", sizes, note)


def _papers(problem: Problem) -> Iterator[Variant]:
    """Algorithm 1 of arXiv 2604.09595: Eq. 4 by dynamic programming in units of 8·M_min, M_min
    the fewest rows of a weight. A cut whose loss is not known (of a width) is not offered to it,
    so that its choice can be evaluated."""
    goal = objective("gac", problem.request.scores)
    try:
        classes = build_classes(replace(problem, goal=goal), PlanLimits(parameters=_ceiling(0)))
    except PlanError:
        return
    options = [[option for option in g.options if option.kept is not None] for g in classes]
    free = [(g, row) for g, row in zip(classes, options, strict=True) if row]
    if not free:
        return
    written = {dim.name for group, _ in free for dim in group.members}
    rows = [m.out_features for m in problem.inventory.modules if written & set(m.dims)]
    today = sum(group.now.parameters for group, _ in free)
    try:
        solution = solve_gac(
            [[option.parameters for option in row] for _, row in free],
            [[option.value for option in row] for _, row in free],
            today,
            8 * min(rows),
        )
    except InfeasibleBudget:
        return
    pairs = zip(free, solution.choice, strict=True)
    sizes = {name: s for (g, row), j in pairs for name, s in g.sizes(row[j]).items()}
    note = f"{solution.overrun:,} parameters over its own budget" if solution.overrun else ""
    yield _variant(problem, PAPER, sizes, note)
